"""What a GPU says about a red-team candidate: full correctness, then a few timed rounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from avo_cute.measure.request import Effort, MeasureRequest, Point, Result
from avo_cute.measure.rig import Rig, fresh_seed
from avo_cute.records import Failure, Workload

from .edits import Case
from .objects import SEED, TARGET, TASK, Builder

EFFORT = Effort(warm_s=0.1, rounds=4, families="all", large=True)


def workloads_of(class_name: str) -> tuple[list[Workload], list[Workload]]:
    """(public, correctness-only) of one class: its shortest and longest, and all its checks."""
    public = [
        w for w in TASK.workloads if w.class_name == class_name and w.name.endswith(("-4k", "-32k"))
    ]
    drawn = TASK.reference.checks([w.params for w in public])
    checks = [Workload(name, of, (), params) for name, of, params in drawn if of == class_name]
    return public, checks


def measure_case(
    case: Case, class_name: str, builder: Builder, rig: Rig, effort: Effort = EFFORT
) -> Result:
    """One measuring process for one workload class of a case; the seed is incumbent and yardstick.

    Raises `LookupError` where the case or the seed does not build.
    """
    public, checks = workloads_of(class_name)
    wanted = [*public, *checks]
    points = tuple(
        Point(w.name, dict(w.params), "public" if w in public else "correctness-only")
        for w in wanted
    )
    kernels: dict[str, Mapping[str, str]] = {}
    for arm, of in (("candidate", case), ("incumbent", SEED), ("seed", SEED)):
        kernels[arm] = rig.link(_built(builder, of, wanted))
    request = MeasureRequest(
        task=str(TASK.directory),
        target=TARGET.name,
        seed=fresh_seed(),
        points=points,
        kernels=kernels,
        effort=effort,
    )
    return rig.measure(request)


def _built(builder: Builder, case: Case, wanted: list[Workload]) -> dict[str, Path]:
    built = builder.build(case, wanted)
    if isinstance(built, Failure):
        raise LookupError(f"{case.name} does not build: {built.reason}")
    return built
