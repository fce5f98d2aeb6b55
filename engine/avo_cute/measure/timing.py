"""Paired samples: in every round each arm is visited once, in random order.

Sustained rounds run under load, at the clock that has settled; isolated ("cold") ones find the
device at rest. On the first visit of every arm, and on random visits of the candidate, what the
last launch left is checked: visits have random lengths, so no launch can know that it is the last.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median

from ..records import Samples
from .device import Arm, Device
from .job import BelowFloor, Check, Job, Tally, WrongResult
from .request import Point
from .stage import Stage
from .voids import Visit, void_reason

__all__ = ["BelowFloor", "Check", "Job", "Tally", "WrongResult", "cold", "sustained", "timed"]

CHECKED = "candidate"  # the arm whose timed launches are checked all along
CHECK_EVERY = 10  # rounds: in each stretch of so many, one by chance; also the first and the last
RELOAD_FACTOR, RELOAD_S = 2.0, 0.1  # load after a check, which cools the device: at most 0.1 s
SPARE = 0.5  # further rounds, as a share, to replace void ones


def timed(device: Device, arms: Sequence[Arm], point: Point, job: Job) -> tuple[Samples, ...]:
    """Sustained rounds, then isolated launches, as many as the effort says of each.

    Raises `WrongResult`, `BelowFloor` and `DeviceFault`. Arms that cannot run the workload are
    left out, and named in the job's tally.
    """
    with _counted(device, job.tally):
        stage = Stage(device, arms, job)
        samples = []
        if job.effort.rounds:
            stage.load(job.effort.warm_s)
            samples.append(_sustained(stage, point))
        if job.effort.cold:
            samples.append(_isolated(stage, point))
    return tuple(samples)


def sustained(device: Device, arms: Sequence[Arm], point: Point, job: Job) -> Samples:
    """Rounds under load until `effort.rounds` of them count, at most half as many more."""
    with _counted(device, job.tally):
        stage = Stage(device, arms, job)
        stage.load(job.effort.warm_s)
        return _sustained(stage, point)


def cold(device: Device, arms: Sequence[Arm], point: Point, job: Job) -> Samples:
    """`effort.cold` rounds of one launch each: caches flushed, the device idle before."""
    with _counted(device, job.tally):
        return _isolated(Stage(device, arms, job), point)


def typical(samples: Samples, arm: str) -> float:
    """The arm's time per launch: the median of the rounds that count; NaN for none."""
    counted = [t for t, v in zip(samples.times[arm], samples.void, strict=True) if not v]
    return median(counted) if counted else math.nan


def _sustained(stage: Stage, point: Point) -> Samples:
    wanted = stage.job.effort.rounds
    limit = wanted + math.ceil(SPARE * wanted)
    reload_s = min(RELOAD_S, stage.job.effort.warm_s)
    chosen = _chosen(limit, stage.job.rng)
    rounds: list[Mapping[str, Visit]] = []
    void: list[str] = []
    while void.count("") < wanted and len(rounds) < limit:
        last = void.count("") + 1 == wanted or len(rounds) + 1 == limit
        checked = _checked(stage, len(rounds), last or len(rounds) in chosen)
        rounds.append(_round(stage, stage.visit, checked, reload_s))
        void.append(void_reason(rounds[-1]))
    return _samples(stage, point, "sustained", rounds, void)


def _isolated(stage: Stage, point: Point) -> Samples:
    wanted = stage.job.effort.cold
    chosen = _chosen(wanted, stage.job.rng) | {wanted - 1}
    rounds = [
        _round(stage, stage.isolated, _checked(stage, n, n in chosen), 0.0) for n in range(wanted)
    ]
    void = [void_reason(visits, isolated=True) for visits in rounds]
    return _samples(stage, point, "cold", rounds, void)


def _round(
    stage: Stage, visit: Callable[[str], Visit], checked: Collection[str], reload_s: float
) -> dict[str, Visit]:
    visits = {}
    for name in stage.order():
        visits[name] = visit(name)
        if name in checked:
            took = stage.check(name)
            stage.load(min(reload_s, RELOAD_FACTOR * took))
    return visits


def _chosen(rounds: int, rng: random.Random) -> set[int]:
    """The rounds in which the candidate is checked by chance."""
    return {start + rng.randrange(CHECK_EVERY) for start in range(0, rounds, CHECK_EVERY)}


def _checked(stage: Stage, number: int, chosen: bool) -> set[str]:
    """Arms whose visit in this round is checked."""
    if number == 0:
        return set(stage.arms)
    return {CHECKED} if chosen else set()


def _samples(
    stage: Stage, point: Point, mode: str, rounds: Sequence[Mapping[str, Visit]], void: list[str]
) -> Samples:
    times = {arm: tuple(visits[arm].seconds for visits in rounds) for arm in stage.arms}
    clocks = {arm: tuple(visits[arm].mhz for visits in rounds) for arm in stage.arms}
    process = stage.job.process
    return Samples(point.name, point.role, mode, process, times, clocks, tuple(void))


@contextmanager
def _counted(device: Device, tally: Tally) -> Iterator[None]:
    began = device.clock()
    try:
        yield
    finally:
        tally.timed_s += device.clock() - began
