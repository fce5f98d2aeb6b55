"""Inert rebuilds: both sides of a comparison with edits that compute nothing else.

A change of 0.5 % may be the compiler's luck with the order of instructions. The task knows edits
that are inert (`inert.py` in its directory, optional); a gain that is real mostly survives them.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .beyond import build
from .build import Source
from .decision import compare
from .errors import MachineFailed, Stopped
from .measure.request import Effort
from .records import Failure, Status

if TYPE_CHECKING:
    from .measured import Trial

# What a task's `inert.py` may raise for a candidate's files: they need not be Python.
_UNREADABLE = (ValueError, SyntaxError, RecursionError, MemoryError)

EFFORT = Effort(warm_s=0.2, rounds=10, families="none", large=False)


def inert_gains(trial: Trial) -> list[float]:
    """The candidate's gain (a ratio) in each pair of inert rebuilds that both build."""
    bench = trial.bench
    with tempfile.TemporaryDirectory(prefix="avo-cute-inert-") as folder:
        trial.export(trial.standing.incumbent.tree, Path(folder))
        theirs = _variants(trial, Path(folder))
    mine = _variants(trial, trial.source.directory)
    gains = []
    for candidate, incumbent in zip(mine, theirs, strict=False):
        kernels = {"candidate": candidate, "incumbent": incumbent, "seed": incumbent}
        if not all(len(k) == len(bench.workloads) for k in kernels.values()):
            continue
        try:
            result = trial.run(trial.points([], []), kernels, EFFORT)
        except Stopped:
            raise
        except MachineFailed:  # one pair less: they gate nothing
            continue
        trial.results.remove(result)  # no evidence about the candidate itself
        found = compare([result.samples], [w.name for w in bench.workloads])
        if not result.status and found is not None:
            gains.append(found.gain.value)
    return gains


def _variants(trial: Trial, directory: Path) -> list[Mapping[str, Path]]:
    """Objects of each inert version of the tree in `directory`; empty where one does not build."""
    module = trial.bench.task.inert
    if module is None:
        return []
    files = {
        str(p.relative_to(directory)): p.read_bytes()
        for p in sorted(directory.rglob("*.py"))
        if p.is_file()
    }
    built: list[Mapping[str, Path]] = []
    try:
        variants = list(module.variants(files, trial.bench.target.family))
    except _UNREADABLE:
        return []
    for changed in variants:
        try:
            objects = _build(trial, {**files, **changed})
        except Stopped:
            raise
        except MachineFailed:
            objects = Failure(Status.INFRA_ERROR, "not built")
        built.append({} if isinstance(objects, Failure) else objects)
    return built


def _build(trial: Trial, files: Mapping[str, bytes]) -> dict[str, Path] | Failure:
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(prefix="avo-cute-inert-") as folder:
        for name, data in sorted(files.items()):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        source = Source(f"inert {digest.hexdigest()}", Path(folder))
        return build(source, trial.bench, trial.bench.workloads)
