"""Readiness: before the first candidate is measured, the machine shows that it can be believed.

A self-test in every session, and once per GPU, task and workloads the A/A calibration: the seed
against itself in fresh processes. Its spread is the resolution of the machine, and what gains must
exceed is a multiple of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .bench import Bench, Side
from .calibrations import NUMBERS, read_calibration, write_calibration
from .errors import MachineFailed
from .measure.request import Effort, MeasureRequest, Point, Result
from .measure.rig import Rig, fresh_seed
from .records import Workload
from .repo import Repo
from .stats import Calibration, calibrate, calibration_of

PROCESSES = 4
ALIKE = Effort(warm_s=0.4, rounds=20, families="none", large=False)
TEST_ONLY = Effort(warm_s=0.2, rounds=0, families="few", large=False, selftest=True)


@dataclass(frozen=True, slots=True)
class Ready:
    """What this session found out before its first candidate."""

    calibration: Calibration
    fresh: bool  # measured now, not read from the lineage
    results: tuple[Result, ...]


def make_ready(repo: Repo, bench: Bench, seed: Side, group: str) -> Ready:
    """Self-test, and the calibration that the rig uses from now on.

    Raises `MachineFailed` where the self-test fails or equal kernels cannot be timed.
    """
    rig = bench.rig
    assert rig is not None
    result = rig.measure(_request(bench, rig, seed, TEST_ONLY))
    _must_pass(result)
    name, gpu = f"{bench.task.name}-{group}", rig.gpus[0].name
    text = read_calibration(repo, name, gpu)
    known = _readable(text)
    if known is not None:
        rig.calibration = known
        return Ready(known, False, (result,))
    results = [rig.measure(_request(bench, rig, seed, ALIKE)) for _ in range(PROCESSES)]
    rig.calibration = calibration_from(results)
    files = {
        NUMBERS: (rig.calibration.text() + "\n").encode(),
        "raw.json": json.dumps([asdict(r) for r in results]).encode(),
    }
    facts = {
        "Task": bench.task.name,
        "Target": bench.target.name,
        "Workloads": group,
        "Device": str(results[0].facts.get("device", "")),
        "Evaluator": bench.evaluator,
    }
    write_calibration(repo, name, gpu, files, facts)
    return Ready(rig.calibration, True, (result, *results))


def calibration_from(results: Sequence[Result]) -> Calibration:
    """The calibration that null comparisons in fresh processes give."""
    for result in results:
        _must_pass(result)
    try:
        return calibrate([r.samples for r in results])
    except ValueError as error:
        raise MachineFailed(f"equal kernels cannot be compared on this machine: {error}") from None


def _request(bench: Bench, rig: Rig, seed: Side, effort: Effort) -> MeasureRequest:
    """The seed in every arm."""
    chosen = bench.workloads
    few = _largest_small(bench) if effort.selftest else []
    libraries = rig.link({w.name: seed.objects[w.name] for w in (*chosen, *few)})
    points = [Point(w.name, dict(w.params)) for w in chosen]
    points += [Point(w.name, dict(w.params), "correctness-only") for w in few]
    return MeasureRequest(
        task=str(bench.task.directory),
        target=bench.target.name,
        seed=fresh_seed(),
        points=tuple(points),
        kernels=dict.fromkeys(("candidate", "incumbent", "seed"), libraries),
        effort=effort,
    )


def _largest_small(bench: Bench) -> list[Workload]:
    """The check with the most work that fp64 does in no time: on one key every kernel is right."""
    reference = bench.task.reference
    small = [w for w in bench.beside if reference.small(w.params)]
    return sorted(small, key=lambda w: float(reference.flops(w.params)))[-1:]


def _must_pass(result: Result) -> None:
    if result.status:
        raise MachineFailed(f"the seed itself ends as {result.status}: {result.reason}")


def _readable(text: str | None) -> Calibration | None:
    """What the lineage has, if it can be used; a damaged one is measured again."""
    try:
        return None if text is None else calibration_of(text)
    except ValueError:
        return None
