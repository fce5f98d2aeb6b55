"""A passage on its way into the index, and the names by which words of a query reach it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

SEED, DSL, NOTES, CATALOGUE, DOCUMENTS = "seed", "dsl", "notes", "catalogue", "documents"
ID_LENGTH = 100  # the tools take no longer one


@dataclass(frozen=True, slots=True)
class Piece:
    """What one search result is made of. `weight` multiplies its rank."""

    id: str
    source: str
    title: str
    text: str
    weight: float = 1.0


def unique(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same pieces; an id that is taken or too long gets a suffix, the same every time."""
    taken: set[str] = set()
    for piece in pieces:
        name, count = _short(piece.id), 1
        while name in taken:
            count += 1
            name = _short(f"{piece.id}~{count}")
        taken.add(name)
        yield piece if name == piece.id else replace(piece, id=name)


def parts(text: str) -> list[str]:
    """The words in an identifier: `SoftmaxSm100.online_softmax` -> Softmax Sm100 online softmax."""
    return _PART.findall(text)


def names(title: str, text: str) -> str:
    """Words of the identifiers in a passage that a tokenizer would leave in one piece."""
    joined = {word for word in _WORD.findall(f"{title} {text}") if _MIXED.search(word)}
    found = {part for word in sorted(joined) for part in parts(word) if len(part) > 1}
    return " ".join(sorted(found))


def plain(text: str) -> str:
    """Text without control characters (a terminal would obey some) and lone surrogates."""
    return _CONTROL.sub(" ", text.encode("utf-8", "replace").decode("utf-8"))


def _short(name: str) -> str:
    if len(name) <= ID_LENGTH:
        return name
    digest = sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: ID_LENGTH - 9]}~{digest}"


_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+[0-9]*|[A-Z]+[0-9]*|[0-9]+")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{3,}")
_MIXED = re.compile(r"[a-z0-9][A-Z]|[A-Z][A-Z][a-z]|[a-z][0-9]+[a-z]")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
