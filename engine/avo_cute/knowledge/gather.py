"""Files and folders that a user names, as documents to be added."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .documents import MOST, Offered
from .extract import KNOWN, text_of
from .piece import plain

MOST_BYTES = 20_000_000  # of a file
_NAME = 200  # characters of a document's name


@dataclass(frozen=True, slots=True)
class Gathered:
    """What can be added, and a line for everything that was passed over."""

    offered: tuple[Offered, ...]
    skipped: tuple[str, ...]


def gather(paths: Sequence[Path]) -> Gathered:
    """Read the files; `BadInput` for one that was named and cannot be added.

    A folder is walked: hidden files, links and other kinds of files are left out, and files in it
    that cannot be read as text are skipped. A file is called by its name, one in a folder by its
    path from that folder's parent on.
    """
    offered: dict[str, Offered] = {}
    skipped: list[str] = []
    for path in paths:
        if path.is_dir():
            found = list(_walk(path, skipped))
        else:
            found = [_offer(path, path.name)]
        for one in found:
            if one.name in offered and offered[one.name].original != one.original:
                raise BadInput(f"two different files are called {one.name}: name their folder")
            offered[one.name] = one
        if len(offered) > MOST:
            raise BadInput(f"more than {MOST} documents: add a part of them")
    if not offered:
        why = f" ({skipped[0]})" if skipped else ""
        raise BadInput(f"nothing to add in {', '.join(map(_told, paths))}{why}")
    return Gathered(tuple(offered.values()), tuple(skipped))


def _walk(top: Path, skipped: list[str]) -> Iterator[Offered]:
    root = top.resolve()
    other = hidden = 0
    for folder, folders, files in os.walk(root):
        hidden += sum(name.startswith(".") for name in (*folders, *files))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            path = Path(folder, name)
            if path.suffix.lower() not in KNOWN:
                other += 1
                continue
            if path.is_symlink():
                skipped.append(f"{_told(path.relative_to(root))} is a link")
                continue
            try:
                yield _offer(path, str(path.relative_to(root.parent)))
            except BadInput as error:
                skipped.append(str(error))
        skipped += [f"{_told(d)} is a link" for d in folders if Path(folder, d).is_symlink()]
    if other:
        skipped.append(f"{other} of other kinds than {', '.join(KNOWN)}")
    if hidden:
        skipped.append(f"{hidden} hidden")


def _offer(path: Path, name: str) -> Offered:
    name = plain(os.fsencode(name).decode("utf-8", "replace"))
    if len(name) > _NAME:
        raise BadInput(f"{name[:60]}… is too long a name; {_NAME} characters are allowed")
    data = _read(path, name)
    return Offered(name, data, text_of(name, data))


def _read(path: Path, name: str) -> bytes:
    """A regular file's bytes; a pipe or a device is not waited for."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput(f"{name} is no regular file")
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise BadInput(f"{name} is larger than {MOST_BYTES // 1_000_000} MB")
    return data


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _told(path: Path | str) -> str:
    return plain(os.fsencode(path).decode("utf-8", "replace"))
