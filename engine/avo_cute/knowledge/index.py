"""The index on disk: one SQLite file with FTS5, named by what is in it and by its own digest.

    <cache>/knowledge/<key>.<digest>.sqlite

It appears by rename and is never written again. Whoever opens it checks the digest, so a torn or
altered file is as good as none. Several processes may build the same one; the last rename stays.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from ..errors import MachineFailed
from .piece import Piece, names, plain, unique

KEEP = 6  # indexes that stay in the folder, the last used ones


def find(folder: Path, key: str) -> sqlite3.Connection | None:
    """The index `key`, or None where there is none that is whole."""
    for path in sorted(folder.glob(f"{key}.*.sqlite")):
        try:
            if sha256(path.read_bytes()).hexdigest()[:32] == path.name.split(".")[1]:
                os.utime(path)
                return _open(path)
            path.unlink()
        except (OSError, sqlite3.Error):
            continue
    return None


def build(folder: Path, key: str, pieces: Iterable[Piece]) -> sqlite3.Connection:
    """Make the index `key` and open it. `MachineFailed` where this machine cannot keep it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="new-", suffix=".sqlite", dir=folder)
        os.close(handle)
        scratch = Path(name)
        try:
            _fill(scratch, pieces)
            digest = sha256(scratch.read_bytes()).hexdigest()[:32]
            path = folder / f"{key}.{digest}.sqlite"
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
        _prune(folder, path)
        return _open(path)
    except (OSError, sqlite3.Error) as error:
        raise MachineFailed(
            f"the index of the knowledge base cannot be kept in {folder}: {error}; "
            "AVO_CUTE_CACHE names another folder"
        ) from None


def _fill(path: Path, pieces: Iterable[Piece]) -> None:
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA journal_mode=OFF")
        base.execute("PRAGMA synchronous=OFF")
        base.executescript(_SCHEMA)
        rows = (
            (p.id, p.source, plain(p.title), names(p.title, p.text), plain(p.text), p.weight)
            for p in unique(pieces)
        )
        base.executemany("INSERT INTO passages VALUES (NULL, ?, ?, ?, ?, ?, ?)", rows)
        base.execute("INSERT INTO words (words) VALUES ('rebuild')")
        base.execute("INSERT INTO words (words) VALUES ('optimize')")
        base.commit()


def _open(path: Path) -> sqlite3.Connection:
    """Reading only; the file is never written, so SQLite needs no locks. Any thread may use it."""
    where = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(where, uri=True, check_same_thread=False)


def _prune(folder: Path, ours: Path) -> None:
    """Take away the indexes that were used least lately, and what killed builds left."""
    found = {}
    for path in folder.glob("*.sqlite"):
        try:
            found[path] = path.stat().st_mtime
        except FileNotFoundError:
            continue
    kept = sorted((p for p in found if p != ours), key=lambda p: found[p], reverse=True)
    done = [p for p in kept if not p.name.startswith("new-")]
    half = [p for p in kept if p.name.startswith("new-") and found[p] < found[ours] - 600]
    for path in [*done[KEEP - 1 :], *half]:
        path.unlink(missing_ok=True)


_SCHEMA = """
CREATE TABLE passages (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
    title TEXT NOT NULL, names TEXT NOT NULL, text TEXT NOT NULL, weight REAL NOT NULL
);
CREATE VIRTUAL TABLE words USING fts5 (
    title, names, text, content = 'passages', content_rowid = 'number',
    tokenize = 'porter unicode61'
);
"""
