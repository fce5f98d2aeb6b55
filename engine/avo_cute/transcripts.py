"""Transcripts: what a session said and noted, kept in git as it goes.

    refs/sessions/<run>/<nnnn>   a commit for every time something was kept; its tree is all of it

The commit's trailers say what the session has spent so far, so that no token is forgotten with a
killed process. Files are only added or replaced; a session's number is never used again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from . import trailers
from .repo import ABSENT, EMPTY_TREE, FILE, Entry, RefUpdate, Repo

NOTES = "notes.md"


@dataclass(frozen=True, slots=True)
class Kept:
    """A session as its commit tells it."""

    number: int
    commit: str
    trailers: Mapping[str, str]


def keep(
    repo: Repo, run: str, session: int, files: Mapping[str, bytes], facts: Mapping[str, str]
) -> str:
    """Add files to a session's transcript; `facts` become trailers. The new commit."""
    ref = f"{_refs(run)}/{session:04d}"
    old = repo.rev_parse(ref)
    blobs = repo.write_blobs(list(files.values()))
    changes = {path: Entry(FILE, blob) for path, blob in zip(files, blobs, strict=True)}
    tree = repo.write_tree(changes, old or EMPTY_TREE)
    told = {"Run": run, "Session": str(session), **facts}
    message = trailers.compose(f"Transcript of session {session}", "", told)
    commit = repo.commit(tree, [old] if old else [], message, int(time.time()))
    repo.update_refs([RefUpdate(ref, commit, old or ABSENT)], "transcript")
    return commit


def sessions(repo: Repo, run: str) -> list[Kept]:
    """Every session of a run that kept anything, oldest first."""
    found = []
    by_commit = {commit: ref for ref, commit in repo.refs(_refs(run)).items()}
    if not by_commit:
        return []
    for commit, message in repo.log("%H%x00%B", "--no-walk", f"--glob={_refs(run)}/*"):
        number = by_commit[commit].rpartition("/")[2]
        if number.isascii() and number.isdigit() and len(number) < 10:
            found.append(Kept(int(number), commit, trailers.parse(message)[2]))
    return sorted(found, key=lambda kept: kept.number)


def last_session(repo: Repo, run: str) -> int:
    """The highest number that a session's ref has; 0 where there is none."""
    numbers = [ref.rpartition("/")[2] for ref in repo.refs(_refs(run))]
    return max((int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) < 10), default=0)


def read(repo: Repo, kept: Kept, path: str) -> str:
    """A file of a transcript as text; "" where it has none of that name."""
    entry = repo.read_tree(kept.commit).get(path)
    if entry is None:
        return ""
    return repo.read_blobs([entry.blob])[0].decode("utf-8", "replace")


def _refs(run: str) -> str:
    return f"refs/sessions/{run}"
