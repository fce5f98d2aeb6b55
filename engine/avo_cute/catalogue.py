"""The catalogue of optimisations: directions that someone published, and whether they were tried.

`catalogue.toml` is an array of tables `[[direction]]`; a direction is known by its name
in the lineage, in directives and in the knowledge base.
"""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from .bench import Bench
from .history import SEEN
from .records import Attempt


@dataclass(frozen=True, slots=True)
class Direction:
    """One idea: what it does, when it can work, what it gave where it was published."""

    name: str  # letters, digits and "-"
    title: str
    mechanism: str
    precondition: str
    effect: str  # as published
    source: str
    where: str  # in the seed
    how: str  # to try it here
    families: tuple[str, ...] = ()  # of targets; empty: all


def directions(family: str) -> tuple[Direction, ...]:
    """The catalogue's directions for a family of targets ("sm90", "sm100"), in its order."""
    return tuple(d for d in _all() if not d.families or family in d.families)


def directions_of(bench: Bench) -> tuple[Direction, ...]:
    """Those for the bench's target, if the catalogue speaks of its task."""
    return directions(bench.target.family) if bench.task.settings.catalogue else ()


def read(text: str) -> tuple[Direction, ...]:
    """Directions from TOML. KeyError for an entry that lacks a field; others are passed over."""
    names = [f.name for f in fields(Direction) if f.name != "families"]
    return tuple(
        Direction(**{n: str(row[n]).strip() for n in names}, families=tuple(row["families"]))
        for row in tomllib.loads(text).get("direction", ())
    )


def mentions(names: Iterable[str], attempts: Sequence[Attempt]) -> Mapping[str, list[Attempt]]:
    """For each name the attempts that speak of it, in subject or reasons, oldest first.

    Upper case, and how words are joined, make no difference: `ex2-emulation` is in "ex2 emulation"
    and in "EX2_Emulation". What the engine and the compiler said about an attempt does not count.
    """
    parts, starts, at = [], [], 0
    for attempt in attempts:
        reasons, _, _ = attempt.body[:_REASONS].partition(SEEN)
        starts.append(at)
        parts.append(f"{attempt.subject}\0{reasons}\0")
        at += len(parts[-1])
    told = _plain("".join(parts))
    return {name: [attempts[i] for i in _places(told, _plain(name), starts)] for name in names}


def _places(told: bytes, name: bytes, starts: Sequence[int]) -> Iterator[int]:
    """Which of the texts that begin at `starts` hold `name` as whole words."""
    at = told.find(name) if name else -1
    while at >= 0:
        after = at + len(name)
        if not (told[at - 1 : at].isalnum() or told[after : after + 1].isalnum()):
            index = bisect_right(starts, at)
            yield index - 1
            after = starts[index] if index < len(starts) else len(told)
        at = told.find(name, after)


def _plain(text: str) -> bytes:
    """A byte for each character."""
    return text.encode("ascii", "replace").lower().translate(_JOINED)


@cache
def _all() -> tuple[Direction, ...]:
    return read(Path(__file__).with_name("catalogue.toml").read_text("utf-8"))


_REASONS = 4000  # characters of a body that are looked at
_JOINED = bytes.maketrans(b"-_/\n\t", b"     ")
