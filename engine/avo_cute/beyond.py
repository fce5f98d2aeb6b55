"""Beyond the public workloads: what the commit level judges a candidate on besides.

Hidden workloads are drawn when the candidate is frozen; the task's checks of other kernels are
always the same. Both are built for every side. What the seed itself refuses is no measure of
anybody; where the incumbent lacks an object, the seed stands in its place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .bench import Bench, Side
from .build import Source
from .build.analyse import judge_class
from .errors import MachineFailed
from .records import Failure, Status, Workload
from .sandbox import Pool

if TYPE_CHECKING:
    from .measured import Trial

Export = Callable[[str, Path], None]
Objects = dict[str, Path]  # by workload
Kernels = Mapping[str, Mapping[str, Path]]  # arm -> workload -> object

HIDDEN_COUNT = 4


@dataclass(frozen=True, slots=True)
class More:
    """What was built, besides the public workloads; `told` is for the verdict's signals."""

    hidden: tuple[Workload, ...]
    checks: tuple[Workload, ...]
    kernels: Kernels
    told: tuple[str, ...]


def build_more(trial: Trial, seed: int) -> More | Failure:
    """Hidden workloads drawn by `seed`, and checks of other kernels, for all arms.

    A `Failure` is the candidate's, or `INFRA_ERROR` where no hidden workload is left to judge by.
    Raises `MachineFailed` where the seed does not come to the end of a build.
    """
    bench, standing = trial.bench, trial.standing
    drawn = bench.task.reference.hidden(seed, [w.params for w in bench.workloads], HIDDEN_COUNT)
    hidden = [Workload(name, of, (), params) for name, of, params in drawn]
    wanted = [*hidden, *(c for c in bench.checks if c not in bench.beside)]
    sides = {s.tree: s for s in (standing.seed, standing.incumbent)}
    with Pool(3, "side") as pool:
        theirs = {t: pool.submit(_side, trial, s, wanted) for t, s in sides.items()}
        mine = pool.submit(build, trial.source, bench, wanted)
    seeds, refused = theirs[standing.seed.tree].result()
    if broken := next((f for f in refused if f.status is not Status.BUILD_FAILED), None):
        raise MachineFailed(f"the seed did not build for further shapes: {broken.reason}")
    incumbents, _ = theirs[standing.incumbent.tree].result()
    left = [w for w in wanted if w.name in seeds]
    if hidden and not any(w in left for w in hidden):
        return Failure(Status.INFRA_ERROR, "the seed refuses every hidden workload that was drawn")
    objects = build(trial.source, bench, left) if len(left) < len(wanted) else mine.result()
    if isinstance(objects, Failure):
        return objects
    kernels = {
        "candidate": {**trial.verdict.objects, **objects},
        "incumbent": {**standing.incumbent.objects, **seeds, **incumbents},
        "seed": {**standing.seed.objects, **seeds},
    }
    names = {w.name for w in hidden}
    checks = tuple(w for w in left if w.name not in names)
    told = [f"unsupported by the seed: {w.name}" for w in wanted if w.name not in seeds]
    lacking = [w.name for w in left if w.name in names and w.name not in incumbents]
    told += [f"compared with the seed, for want of the incumbent: {name}" for name in lacking]
    return More(tuple(w for w in left if w.name in names), checks, kernels, tuple(told))


def build(source: Source, bench: Bench, workloads: Sequence[Workload]) -> Objects | Failure:
    """The candidate's objects, or why there is one missing."""
    built: Objects = {}
    for r in bench.spread(judge_class, bench.requests(source, workloads)):
        if isinstance(r, Failure):
            return r
        built |= {a.workload.name: a.object_path for a in r.artifacts}
    return built


def _side(
    trial: Trial, side: Side, workloads: Sequence[Workload]
) -> tuple[Objects, tuple[Failure, ...]]:
    """The objects of an arm that is no candidate, and why some are missing."""
    with tempfile.TemporaryDirectory(prefix="avo-cute-side-") as folder:
        trial.export(side.tree, Path(folder))
        requests = trial.bench.requests(Source(side.tree, Path(folder)), workloads)
        results = list(trial.bench.spread(judge_class, requests))
    built = [r for r in results if not isinstance(r, Failure)]
    objects = {a.workload.name: a.object_path for r in built for a in r.artifacts}
    return objects, tuple(r for r in results if isinstance(r, Failure))
