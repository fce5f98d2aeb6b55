"""One workload set up for timing: memory, arms bound to it, and visits.

A visit launches one arm for `visit_s` of device time without waiting for it once: the host runs
ahead, helped by a short waiting kernel at the front. Marks stand right around each launch; the
rewriting of inputs and the poisoning of outputs lie between them, outside the clock. The device is
waited for at the end of a visit only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from .contents import Contents
from .device import Arm, Condition, Device, Mark, Unavailable, device_faults, running
from .job import BelowFloor, Job, WrongResult
from .voids import Visit

MOST_LAUNCHES = 100  # in a visit: with all that goes with them they fit in the launch queue
LEAST_LAUNCHES = 2  # so that there is something between launches
LEAD_S, FIRST_LEAD_S, MOST_LEAD_S = 50e-6, 1e-3, 20e-3  # how long the host may run ahead
LEAST_CONDITIONS, MOST_CONDITIONS = 2, 8  # samples per visit
LONG_S = 5e-3  # visits from this length on have their conditions read while the device works
GAP_S = 1e-3  # idle before an isolated launch
COLD_LEAD_S = 3e-3  # so that waking the host, some 50 us, is little beside it


class Stage:
    """One workload set up: memory, arms bound to it, and what is known about their pace."""

    def __init__(self, device: Device, arms: Sequence[Arm], job: Job) -> None:
        self.device, self.job = device, job
        self._contents = Contents(job.make_inputs, job.make_outputs, job.rotate_bytes, job.rng)
        self._launches = self._bound(arms)
        self._paces: dict[str, _Pace] = {}
        self._turn = 0  # the set that the last launch used
        for name in self._launches:
            self._run(name, 1)  # loads what is loaded lazily
            del self._paces[name]  # the host's share was the loading
            self._run(name, 3)

    def _bound(self, arms: Sequence[Arm]) -> dict[str, list[Callable[[], None]]]:
        launches = {}
        for arm in arms:
            try:
                with running(self.device, arm.name), device_faults(arm.name):
                    launches[arm.name] = [
                        arm.bind(s.params, s.inputs, s.outputs) for s in self._contents.sets
                    ]
            except Unavailable as error:
                self.job.tally.unavailable[arm.name] = str(error)
        return launches

    def load(self, seconds: float) -> None:
        """Visit all arms, in random order, for so long."""
        began = self.device.clock()
        while self.device.clock() - began < seconds:
            for name in self.order():
                self.visit(name)

    @property
    def arms(self) -> list[str]:
        """Those that could be bound."""
        return list(self._launches)

    def order(self) -> list[str]:
        """All arms, in a random order."""
        return self.job.rng.sample(self.arms, len(self.arms))

    def visit(self, name: str) -> Visit:
        """As many launches as fill `visit_s`, and a random few more."""
        launch = self._paces[name].launch
        fitting = self.job.effort.visit_s / launch if launch > 0 else MOST_LAUNCHES
        least = math.ceil(min(MOST_LAUNCHES, max(LEAST_LAUNCHES, fitting)))
        return self._run(name, least + self.job.rng.randint(0, max(1, least // 8)))

    def isolated(self, name: str) -> Visit:
        """One launch that finds the caches full of something else and the device at rest."""
        with running(self.device, name), device_faults(name):
            self._turn = (self._turn + 1) % len(self._contents.sets)
            self._contents.refresh(self._turn)
            self.device.flush()
            self.device.rest(GAP_S)
            began, first = self.device.clock(), self.device.mark()
            self.device.spin(COLD_LEAD_S)
            marks = self._launch(name)
            self.device.synchronize()
            host = self.device.clock() - began
            return self._visit(name, marks, first, host, [self.device.condition()])

    def check(self, name: str) -> float:
        """Judge what the last launch, one of `name`, left, and say how many seconds that took.

        Raises `WrongResult`. Where an arm keeps its results, its launch can `collect` them.
        """
        began = self.device.clock()
        used = self._contents.sets[self._turn]
        collect = getattr(self._launches[name][self._turn], "collect", None)
        if collect is not None:
            collect()
        text = self.job.check(name, used.params, used.inputs, used.outputs)
        self.device.synchronize()
        took = self.device.clock() - began
        self.job.tally.checks += 1
        self.job.tally.timed_s -= took
        if text:
            raise WrongResult(name, text)
        return took

    def _run(self, name: str, count: int) -> Visit:
        """Launch `count` times, let the queue run empty, and read the marks."""
        device, pace = self.device, self._paces.get(name)
        with running(device, name), device_faults(name):
            began, first = device.clock(), device.mark()
            device.flush()
            device.spin(_lead(pace, count))
            enqueuing, marks = device.clock(), []
            for _ in range(count):
                self._turn = (self._turn + 1) % len(self._contents.sets)
                self._contents.refresh(self._turn)
                marks += self._launch(name)
            enqueued = device.clock()
            length = count * pace.period if pace else 0.0
            conditions = self._conditions(began + length / 2) if length >= LONG_S else []
            device.synchronize()
            host = device.clock() - began
            visit = self._visit(name, marks, first, host, conditions or self._conditions(began))
        self._paces[name] = _pace(visit, (enqueued - enqueuing) / count, pace)
        return visit

    def _launch(self, name: str) -> list[Mark]:
        start = self.device.mark()
        self._launches[name][self._turn]()
        return [start, self.device.mark()]

    def _conditions(self, until: float) -> list[Condition]:
        """Samples up to the host's time `until`, two at least."""
        conditions = [self.device.condition() for _ in range(LEAST_CONDITIONS)]
        while len(conditions) < MOST_CONDITIONS and self.device.clock() < until:
            conditions.append(self.device.condition())
        return conditions

    def _visit(
        self,
        name: str,
        marks: Sequence[Mark],
        first: Mark,
        host: float,
        conditions: Sequence[Condition],
    ) -> Visit:
        between = self.device.seconds
        launches = [between(a, b) for a, b in zip(marks[::2], marks[1::2], strict=True)]
        gaps = [between(a, b) for a, b in zip(marks[1::2], marks[2::2], strict=False)]
        self.job.tally.busy_s += between(marks[0], marks[-1])
        seconds = median(launches)
        if not seconds > self.job.floor_s:  # NaN included
            raise BelowFloor(name, seconds, self.job.floor_s)
        gap = median(gaps) if gaps else math.nan
        span = between(first, marks[-1])
        return Visit(name, seconds, gap, span, host, len(launches), tuple(conditions))


@dataclass(frozen=True, slots=True)
class _Pace:
    """What a launch of one arm costs, from its last visit. Seconds."""

    launch: float  # on the device, between its marks
    period: float  # on the device, with what goes with it
    host: float  # on the host, with what goes with it


def _pace(visit: Visit, host: float, before: _Pace | None) -> _Pace:
    """The least period seen is the true one: where the host came late it is longer."""
    period = visit.seconds + (visit.between if visit.launches > 1 else 0.0)
    return _Pace(visit.seconds, min(period, before.period) if before else period, host)


def _lead(pace: _Pace | None, count: int) -> float:
    """How long the device must be held up so that the host stays ahead to the end, in seconds."""
    if pace is None:
        return FIRST_LEAD_S
    return min(MOST_LEAD_S, LEAD_S + max(0.0, count * (1.2 * pace.host - pace.period)))
