"""What the user added, kept in the lineage, so that a run that goes on elsewhere has it too.

    refs/knowledge    a commit for every change; in its tree, for every document,
        <name>/original    the file as it was added
        <name>/text        the text in it

`<name>` is written so that any name is one folder (`%2F` for `/`). Two processes that add at once
wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from .. import trailers
from ..errors import BadInput
from ..repo import ABSENT, EMPTY_TREE, FILE, Entry, RefUpdate, Repo
from ..runlock import notes_lock
from .piece import DOCUMENTS, Piece
from .sections import sections

REF = "refs/knowledge"
MOST = 500  # documents
_WEIGHT = 1.25  # of their passages: the user chose them
MOST_TEXT = 40_000_000  # bytes of text of all of them


@dataclass(frozen=True, slots=True)
class Offered:
    """A document to be added: its name, its bytes and the text in them."""

    name: str
    original: bytes
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one that was offered: "added", "replaced" or "unchanged"."""

    name: str
    what: str
    known_as: str = ""  # the name under which the same file is there already


@dataclass(frozen=True, slots=True)
class Document:
    """A document that is there. `characters` of text."""

    name: str
    characters: int


@dataclass(frozen=True, slots=True)
class _Kept:
    original: Entry
    text: Entry


def head(repo: Repo) -> str:
    """The commit with all documents; "" where none was ever added."""
    return repo.rev_parse(REF) or ""


def add(repo: Repo, offered: Sequence[Offered]) -> list[Change]:
    """Keep documents, all or none; one of the same name is replaced, the same file stays."""
    entries = _written(repo, offered)
    changes: list[Change] = []

    def change(kept: dict[str, _Kept]) -> str:
        changes[:] = [
            _put(kept, one.name, entry) for one, entry in zip(offered, entries, strict=True)
        ]
        _check(repo, kept)
        done = [c.name for c in changes if c.what != "unchanged"]
        return f"Add {done[0] if len(done) == 1 else f'{len(done)} documents'}" if done else ""

    _change(repo, change)
    return changes


def remove(repo: Repo, name: str) -> None:
    """Take a document away; `BadInput` where there is none of that name."""

    def change(kept: dict[str, _Kept]) -> str:
        if name not in kept:
            there = ", ".join(sorted(kept)[:20]) or "none"
            raise BadInput(f"there is no document {name!r}; there are: {there}")
        del kept[name]
        return f"Remove {name}"

    _change(repo, change)


def documents(repo: Repo) -> list[Document]:
    """Every document, by name."""
    commit = head(repo)
    return [Document(name, len(text)) for name, text in texts(repo, commit)] if commit else []


def texts(repo: Repo, commit: str) -> list[tuple[str, str]]:
    """Name and text of every document of a commit, by name."""
    kept = _kept(repo, commit)
    blobs = repo.read_blobs([kept[name].text.blob for name in sorted(kept)])
    return [(n, b.decode("utf-8", "replace")) for n, b in zip(sorted(kept), blobs, strict=True)]


def pieces(repo: Repo, commit: str) -> Iterator[Piece]:
    """The documents as passages, cut at their headings."""
    for name, text in texts(repo, commit) if commit else ():
        for number, section in enumerate(sections(text), 1):
            title = f"{name}: {section.heading}" if section.heading else name
            yield Piece(f"{DOCUMENTS}:{name}#{number}", DOCUMENTS, title, section.text, _WEIGHT)


def _written(repo: Repo, offered: Sequence[Offered]) -> list[_Kept]:
    """The blobs of documents that no tree holds yet."""
    contents = [data for one in offered for data in (one.original, one.text.encode())]
    blobs = [Entry(FILE, blob) for blob in repo.write_blobs(contents)]
    return [_Kept(*pair) for pair in zip(blobs[::2], blobs[1::2], strict=True)]


def _put(kept: dict[str, _Kept], name: str, entry: _Kept) -> Change:
    old = kept.get(name)
    if old == entry:
        return Change(name, "unchanged", name)
    if old is None:
        same = [other for other, there in kept.items() if there.original == entry.original]
        if same:
            return Change(name, "unchanged", min(same))
    kept[name] = entry
    return Change(name, "added" if old is None else "replaced")


def _check(repo: Repo, kept: Mapping[str, _Kept]) -> None:
    if len(kept) > MOST:
        raise BadInput(f"that would be {len(kept)} documents; {MOST} are allowed")
    size = sum(map(len, repo.read_blobs([entry.text.blob for entry in kept.values()])))
    if size > MOST_TEXT:
        raise BadInput(f"that would be {size:,} bytes of text; {MOST_TEXT:,} are allowed")


def _change(repo: Repo, change: Callable[[dict[str, _Kept]], str]) -> None:
    """Let `change` edit what there is; its answer is the commit's subject, "" for no commit."""
    with notes_lock(repo.path):
        old = head(repo)
        kept = _kept(repo, old) if old else {}
        subject = change(kept)
        if not subject:
            return
        entries = {
            f"{_folder(name)}/{part}": entry
            for name, document in kept.items()
            for part, entry in (("original", document.original), ("text", document.text))
        }
        tree = repo.write_tree(entries) if entries else EMPTY_TREE
        message = trailers.compose(subject, "", {"Documents": str(len(kept))})
        commit = repo.commit(tree, [old] if old else [], message, int(time.time()))
        repo.update_refs([RefUpdate(REF, commit, old or ABSENT)], "knowledge")


def _kept(repo: Repo, commit: str) -> dict[str, _Kept]:
    """The documents of a commit; what someone else put into its tree is passed over."""
    entries = repo.read_tree(commit)
    found = {}
    for path, original in entries.items():
        folder, _, part = path.partition("/")
        text = entries.get(f"{folder}/text")
        if part == "original" and text is not None:
            found[unquote(folder)] = _Kept(original, text)
    return found


def _folder(name: str) -> str:
    quoted = quote(name, safe=" ()[]+,=@")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
