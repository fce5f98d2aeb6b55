"""One writer at a time: the lock that a run holds on its lineage, and a short one for notes."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import BadInput, Busy, MachineFailed

NAME = "run-lock"
_PATIENCE = 1.0  # seconds that a git process may hold one of git's own locks before it is stale


@contextmanager
def run_lock(lineage: Path) -> Iterator[None]:
    """Hold the lineage; `Busy` names the process that holds it already.

    The kernel lets go of the lock when its holder ends, however it ends. What a killed holder's
    git left behind (`*.lock`) is taken away here, by the next holder and by nobody else.
    """
    path = lineage / NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise BadInput(f"{lineage} cannot be written: {error.strerror}") from None
    try:
        _take(handle, lineage)
        _sign(handle, path)
        _remove_stale(lineage)
        yield
    finally:
        os.close(handle)


@contextmanager
def notes_lock(lineage: Path) -> Iterator[None]:
    """Wait for whoever writes a note now: git itself would let the later one win."""
    try:
        handle = os.open(lineage / "notes-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise BadInput(f"{lineage} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _take(handle: int, lineage: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise MachineFailed(f"cannot lock {lineage}: {error.strerror}") from None
        holder = os.pread(handle, 100, 0).decode("utf-8", "replace").strip() or "unknown"
        raise Busy(
            f"{lineage} is in use by process {holder}: wait for it or stop it, "
            "or use another --lineage PATH"
        ) from None


def _sign(handle: int, path: Path) -> None:
    """Leave our process id for whoever is turned away."""
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)
    except OSError as error:
        raise MachineFailed(f"cannot write {path}: {error.strerror}") from None


def _remove_stale(lineage: Path) -> None:
    """Remove git's locks that outlast `_PATIENCE`; no clock is trusted, only that they stay."""
    before = _locks(lineage)
    if not before:
        return
    time.sleep(_PATIENCE)
    for path, identity in _locks(lineage).items():
        if before.get(path) == identity:
            path.unlink(missing_ok=True)


def _locks(lineage: Path) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in (*lineage.glob("*.lock"), *lineage.glob("refs/**/*.lock")):
        try:
            facts = path.lstat()
        except FileNotFoundError:
            continue
        found[path] = (facts.st_ino, facts.st_mtime_ns)
    return found
