"""Opening the knowledge base of a task: its index, built first where there is none yet."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import chain
from pathlib import Path

from ..config import cache_dir
from ..lineage import Lineage
from ..repo import Repo
from ..task import find_task, shipped_tasks
from . import documents, dsl, index, shipped, source
from .base import KnowledgeBase
from .piece import Piece

FOLDER = "knowledge"  # in the cache


@dataclass(frozen=True, slots=True)
class _Sources:
    """Where the passages come from; None and "" for what there is not."""

    family: str
    repo: Repo | None
    seed: str  # tree
    focus: tuple[str, ...]  # files of the seed that matter most
    dsl: dsl.Installed | None
    documents: str  # commit


def open_base(lineage: Lineage | None, task_name: str, family: str) -> KnowledgeBase:
    """The knowledge base for a task on a family of targets ("sm90", "sm100").

    Without a lineage it has no seed and no documents; `missing` of the base says what it lacks.
    Building takes seconds, opening one that is there some milliseconds. Documents that are added
    later are in the next one that is opened.
    """
    missing = []
    repo, seed, added = None, "", ""
    if lineage is None:
        missing.append("no seed and no documents: there is no lineage here, `avo-cute init`")
    else:
        repo, added = lineage.repo, documents.head(lineage.repo)
        seed = repo.rev_parse(f"refs/heads/seed/{task_name}", "tree") or ""
        if not seed:
            missing.append(f"no seed of task {task_name} here: `avo-cute init --task {task_name}`")
    found = dsl.installed()
    if found is None:
        missing.append(f"no documentation of the CuTe DSL: {dsl.PACKAGE} is not installed")
    sources = _Sources(family, repo, seed, _focus(task_name, family), found, added)
    again = partial(_build, sources)
    there = index.find(cache_dir() / FOLDER, _key(sources))
    return KnowledgeBase(there or again(), again, missing)


def _build(sources: _Sources) -> sqlite3.Connection:
    return index.build(cache_dir() / FOLDER, _key(sources), _pieces(sources))


def _key(sources: _Sources) -> str:
    found = sources.dsl
    said = (
        _code(),
        sqlite3.sqlite_version,
        sources.family,
        (sources.seed, sources.focus),
        (found.version, str(found.folder)) if found else None,
        shipped.identity(),
        sources.documents,
    )
    return sha256(repr(said).encode()).hexdigest()[:32]


def _focus(task_name: str, family: str) -> tuple[str, ...]:
    """The files that a shipped task says to read first."""
    if task_name not in shipped_tasks():
        return ()
    return tuple(find_task(task_name).settings.focus.get(family, ()))


@cache
def _code() -> str:
    """Changes with the code that makes an index."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _pieces(sources: _Sources) -> Iterator[Piece]:
    return chain(
        shipped.notes(sources.family),
        shipped.catalogue(sources.family),
        _seed(sources),
        dsl.pieces(sources.dsl) if sources.dsl else (),
        documents.pieces(sources.repo, sources.documents) if sources.repo else (),
    )


def _seed(sources: _Sources) -> Iterator[Piece]:
    """The seed's passages; its blobs are read by one git process."""
    if sources.repo is None or not sources.seed:
        return iter(())
    entries = sources.repo.read_tree(sources.seed)
    paths = [path for path in entries if path.endswith(".py")]
    blobs = sources.repo.read_blobs([entries[path].blob for path in paths])
    return source.pieces(dict(zip(paths, blobs, strict=True)), sources.family, sources.focus)
