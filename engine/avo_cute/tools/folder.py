"""A workspace on disk, in which nothing is trusted: a shell may have left links or pipes there.

A path is taken as it is and never followed through a link. `BadInput` says what the agent may do
about it; `MachineFailed` is raised where the disk itself fails.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .. import sandbox
from ..errors import BadInput, MachineFailed

MOST = 20_000  # things below a workspace that are looked at
_DEEPEST = 33  # folders inside folders
_NAME_BYTES, _PATH_BYTES = 240, 1000
_CACHES = "__pycache__"
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE)


class Folder:
    """The files below one folder, by path with `/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def files(self) -> list[tuple[str, int]]:
        """Path and size of the plain files, in order."""
        return [(path, about.st_size) for path, about in self._all() if stat.S_ISREG(about.st_mode)]

    def names(self) -> set[str]:
        """The files, and whatever else has no business here: links, pipes, git's folders."""
        return {path for path, _ in self._all()}

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._place(path))

    def read(self, path: str, limit: int) -> bytes:
        """A file's bytes; `BadInput` where it is none, or has more than `limit`."""
        place = self._place(path)
        data = sandbox.read_regular(place, limit)
        if data is not None:
            return data
        about = _look(place)
        if about is not None and stat.S_ISREG(about.st_mode) and about.st_size > limit:
            raise BadInput(f"{path} has {about.st_size} bytes, more than the {limit} it may have")
        raise BadInput(f"{path[:100]!a} is not a file of the workspace (list_files shows them)")

    def write(self, path: str, data: bytes) -> None:
        """Make a file hold this. It is a new one each time: nothing is written through a link."""
        place = self._place(path)
        with _explained(f"cannot write {path}"):
            place.parent.mkdir(parents=True, exist_ok=True)
            _overwrite(place, data)

    def put_back(self, path: str, data: bytes) -> bool:
        """Make a file hold this, whatever is in its way; False if it did."""
        place = self.root / path
        with _explained(f"cannot restore {path}"):
            for folder in reversed(place.relative_to(self.root).parents[:-1]):
                _clear(self.root / folder, stat.S_ISDIR)
            _clear(place, stat.S_ISREG)
            if sandbox.read_regular(place, len(data)) == data:
                return False
            place.parent.mkdir(parents=True, exist_ok=True)
            _overwrite(place, data)
        return True

    def remove(self, path: str) -> None:
        """Remove something that `names` gave."""
        with _explained(f"cannot remove {path[:100]!a}"):
            _clear(self.root / path, lambda mode: False)

    def _place(self, path: str) -> Path:
        """Where a path is on disk; refuses what leaves the folder or goes through a link."""
        parts = path.split("/")
        odd = {"", ".", "..", ".git"} & {part.lower() for part in parts}
        long = len(path.encode()) > _PATH_BYTES or any(len(p.encode()) > _NAME_BYTES for p in parts)
        if odd or long or len(parts) > _DEEPEST:
            raise BadInput(f"{path[:100]!a} is not a path below the workspace")
        place = self.root
        for part in parts[:-1]:
            place = place / part
            about = _look(place)
            if about is not None and not stat.S_ISDIR(about.st_mode):
                raise BadInput(f"{part!a} in {path!a} is not a folder")
        return place / parts[-1]

    def _all(self) -> Iterator[tuple[str, os.stat_result]]:
        """Path and facts of everything in order, at most `MOST`; of folders only of those that no
        candidate may have."""
        todo, seen = [""], 0
        while todo:
            path = todo.pop()
            about = _look(self.root / path)
            name = path.rpartition("/")[2]
            if about is None or name == _CACHES:
                continue
            plain = path.count("/") < _DEEPEST and name.lower() != ".git"
            if stat.S_ISDIR(about.st_mode) and plain:
                names = _names(self.root / path, MOST - seen)
                seen += len(names)
                todo += [f"{path}/{name}" if path else name for name in names]
            else:
                yield path, about


def _names(folder: Path, most: int) -> list[str]:
    """What is in a folder, the last first; nothing where it may not be read."""
    found = list[str]()
    try:
        with os.scandir(folder) as scan:
            for item in scan:
                if len(found) >= most:
                    break
                found.append(item.name)
    except OSError:
        return []
    return sorted(found, reverse=True)


def _look(place: Path) -> os.stat_result | None:
    try:
        return place.lstat()
    except OSError:
        return None


def _clear(place: Path, wanted: Callable[[int], bool]) -> None:
    """Remove what is at `place` unless it is of the wanted kind."""
    about = _look(place)
    if about is None or wanted(about.st_mode):
        return
    if stat.S_ISDIR(about.st_mode):
        sandbox.remove(place)
    else:
        place.unlink()


def _overwrite(place: Path, data: bytes) -> None:
    handle, fresh = tempfile.mkstemp(prefix=".new-", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(fresh).chmod(0o644)
        Path(fresh).replace(place)
    except OSError:
        Path(fresh).unlink(missing_ok=True)
        raise


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """An error of the disk is the machine's; any other comes of what the agent left there."""
    try:
        yield
    except OSError as error:
        said = f"{what}: {error.strerror}"
        raise (MachineFailed if error.errno in _DISK else BadInput)(said) from None
