"""Readiness: before the first candidate is measured, the machine shows that it can be believed.

A self-test in every session, and once per GPU and number of workloads the A/A calibration: the seed
against itself in fresh processes. Its spread is the resolution of the machine, and what gains must
exceed is a multiple of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from .bench import Bench, Side
from .calibrations import NUMBERS, read_calibration, write_calibration
from .errors import MachineFailed, Stopped
from .measure.request import Effort, MeasureRequest, Point, Result
from .measure.rig import Rig, fresh_seed
from .records import Workload
from .repo import Repo
from .stats import Calibration, calibrate, calibration_of

PROCESSES = 4
ALIKE = Effort(warm_s=0.4, rounds=20, families="none", large=False)
TEST_ONLY = Effort(warm_s=0.2, rounds=0, families="few", large=False, selftest=True)


def make_ready(repo: Repo, bench: Bench, seed: Side) -> float:
    """Self-test of every GPU, and the calibration that the rig uses from now on.

    Returns the largest margin, as a log-ratio. Raises `MachineFailed` where the self-test fails or
    equal kernels cannot be timed.
    """
    rig = bench.rig
    assert rig is not None
    for gpu in rig.gpus:
        with rig.held(gpu):
            _must_pass(_tested(bench, rig, seed))
            known = _known(repo, bench, gpu.name)
            rig.calibrations[gpu.name] = known or _calibrate(repo, bench, seed, gpu.name)
    return max(c.margin() for c in rig.calibrations.values())


def _tested(bench: Bench, rig: Rig, seed: Side) -> Result:
    """The self-test; a machine that fails it gets one more try, as it may have been disturbed."""
    try:
        return rig.measure(_request(bench, rig, seed, TEST_ONLY))
    except Stopped:
        raise
    except MachineFailed:
        return rig.measure(_request(bench, rig, seed, TEST_ONLY))


def _known(repo: Repo, bench: Bench, gpu: str) -> Calibration | None:
    """What the lineage has for a GPU, of as many workloads or of fewer: the spread of their mean
    is not smaller. A damaged one is measured again."""
    for count in range(len(bench.workloads), 0, -1):
        text = read_calibration(repo, f"{bench.task.name}-{count}", gpu)
        if (found := _readable(text)) is not None:
            return found
    return None


def _calibrate(repo: Repo, bench: Bench, seed: Side, gpu: str) -> Calibration:
    """Measure the seed against itself on the GPU that is held, and keep the result."""
    rig = bench.rig
    assert rig is not None
    results = [rig.measure(_request(bench, rig, seed, ALIKE)) for _ in range(PROCESSES)]
    found = calibration_from(results)
    files = {
        NUMBERS: (found.text() + "\n").encode(),
        "raw.json": json.dumps([asdict(r) for r in results]).encode(),
    }
    facts = {
        "Task": bench.task.name,
        "Target": bench.target.name,
        "Workloads": " ".join(w.name for w in bench.workloads),
        "Device": str(results[0].facts.get("device", "")),
        "Evaluator": bench.evaluator,
    }
    write_calibration(repo, f"{bench.task.name}-{len(bench.workloads)}", gpu, files, facts)
    return found


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
