"""Whether this machine can be trusted with a comparison: asked once, before a session's first.

An empty launch and a copy of known size say whether the clock counts seconds; the seed against
itself whether equal kernels look equal; a known delay whether a difference is seen as what it is;
a wrong kernel whether wrong results are noticed. A failure is the machine's, never a candidate's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ..records import Param, Samples
from .contents import poison
from .device import Arm, Device, Mark, Tensor
from .job import BelowFloor, Job, WrongResult
from .request import Point
from .timing import sustained, typical

ROUNDS = 24
DELAY, DELAY_TOLERANCE = 0.02, 0.005
EMPTY_LAUNCHES, EMPTY_S = 64, (1e-6, 10e-6)
COPIES, COPY_BYTES = 8, 256 * 1024 * 1024
COPY_SHARE = (0.3, 1.1)  # of the target's bandwidth
LEAD_S = 2e-3  # for the host to run ahead
DOUBT = 0.001  # how often an interval for a median misses it, at most


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What was found: seconds, bytes a second, relative times. NaN where it did not come to it."""

    empty_s: float
    copy_bytes_s: float
    same: float  # log-ratio of the seed against itself, median of the rounds
    same_low: float
    same_high: float
    delay: float  # seen, relative; DELAY was asked for
    void: int  # rounds that did not count
    failed: tuple[str, ...]  # one line each; empty for a machine in order


@dataclass(frozen=True, slots=True)
class Delayed:
    """`arm` under another name, followed by a kernel that waits `seconds` (nothing if None).

    0 launches the waiting kernel all the same: the side that a delayed one is compared with. It
    counts cycles, and the clock under load is known roughly, so what it really took is kept.
    """

    arm: Arm
    device: Device
    seconds: float | None
    name: str
    waits: list[tuple[Mark, Mark]] = field(default_factory=list)

    def bind(
        self, params: Mapping[str, Param], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        launch, device, seconds = self.arm.bind(params, inputs, outputs), self.device, self.seconds
        if seconds is None:
            return launch

        def delayed() -> None:
            launch()
            start = device.mark()
            device.spin(seconds)
            self.waits.append((start, device.mark()))

        return delayed

    def waited(self) -> float:
        """Seconds of the waiting kernel, by events: the median over its launches."""
        times = [self.device.seconds(start, end) for start, end in self.waits]
        return median(times) if times else math.nan


def selftest(
    device: Device,
    arm: Arm,
    point: Point,
    job: Job,
    peak_bytes_s: float,
    wrong: Callable[[], str] | None = None,
) -> SelfTest:
    """All five questions, with `arm` (the seed) on one workload; takes some seconds.

    `wrong` judges a kernel that is wrong on purpose and says what is found, or "" if nothing is;
    by default `job.check` gets untouched and zeroed outputs. Raises `DeviceFault`.
    """
    job = replace(job, effort=replace(job.effort, rounds=ROUNDS, cold=0))
    failed: list[str] = []
    empty_s, copy = _empty(device, failed), _copy(device, peak_bytes_s, failed)
    device.condition()
    same = _pair(device, (arm, None, None), point, job, failed)
    low, high = median_interval(same.ratios)
    if not low <= 0 <= high:
        failed.append(f"the seed differs from itself: log-ratio in {low:+.5f} … {high:+.5f}")
    slow = _NONE
    if same.ratios:
        slow = _pair(device, (arm, DELAY * same.seconds, 0.0), point, job, failed)
    seen, true = math.expm1(-slow.middle), slow.waited / slow.seconds
    if not (abs(seen - true) <= DELAY_TOLERANCE and abs(true - DELAY) <= DELAY / 2):
        failed.append(f"a delay of {DELAY:.1%} took {true:.2%} and is seen as {seen:.2%}")
    if not (wrong() if wrong else _wrong(job)):
        failed.append("a wrong kernel passes")
    void = same.void + slow.void
    return SelfTest(empty_s, copy, same.middle, low, high, seen, void, tuple(failed))


def delayed(device: Device, arms: Sequence[Arm], name: str, seconds: float) -> list[Arm]:
    """The arms with a waiting kernel behind each: of `seconds` for the one called `name`, an empty
    one for the others, so that the further launch cancels in every ratio."""
    return [Delayed(a, device, seconds if a.name == name else 0.0, a.name) for a in arms]


def median_interval(values: Sequence[float], doubt: float = DOUBT) -> tuple[float, float]:
    """Two of the values between which the median of their distribution lies, but for a chance of
    `doubt`; the whole range where there are too few.

    Distribution-free: the number of values below the median is binomial with p = 1/2 (David and
    Nagaraja, Order Statistics, 7.1).
    """
    if not values:
        return math.nan, math.nan
    ordered, n = sorted(values), len(values)
    skip, tail = 0, 0.5**n
    while (skip + 1) * 2 < n and 2 * (tail + math.comb(n, skip + 1) * 0.5**n) <= doubt:
        skip += 1
        tail += math.comb(n, skip) * 0.5**n
    return ordered[skip], ordered[n - 1 - skip]


@dataclass(frozen=True, slots=True)
class _Pair:
    ratios: tuple[float, ...]  # log(incumbent / candidate) of the rounds that count
    seconds: float  # the incumbent's, per launch
    void: int
    waited: float = math.nan  # of the delay, seconds: what the candidate had more of

    @property
    def middle(self) -> float:
        return median(self.ratios) if self.ratios else math.nan


_NONE = _Pair((), math.nan, 0)


def _pair(
    device: Device,
    what: tuple[Arm, float | None, float | None],
    point: Point,
    job: Job,
    failed: list[str],
) -> _Pair:
    """One arm as candidate and as incumbent, each with its delay."""
    arm, mine, theirs = what
    arms = [
        Delayed(arm, device, mine, "candidate"),
        Delayed(arm, device, theirs, "incumbent"),
    ]
    try:
        samples = sustained(device, arms, point, job)
    except (WrongResult, BelowFloor) as error:
        failed.append(f"the seed: {error}")
        return _NONE
    void = [v for v in samples.void if v]
    if len(void) * 2 > len(samples.void):
        failed.append(f"{len(void)} of {len(samples.void)} rounds void, the last: {void[-1]}")
    waited = waited_more(arms)
    return _Pair(_log_ratios(samples), typical(samples, "incumbent"), len(void), waited)


def waited_more(arms: Sequence[Arm]) -> float:
    """Seconds by which the first arm's waiting kernel took longer than the second's."""
    mine, theirs = (a for a in arms[:2] if isinstance(a, Delayed))
    return mine.waited() - theirs.waited()


def _log_ratios(samples: Samples) -> tuple[float, ...]:
    pairs = zip(samples.times["incumbent"], samples.times["candidate"], samples.void, strict=True)
    return tuple(math.log(theirs / mine) for theirs, mine, void in pairs if not void)


def _empty(device: Device, failed: list[str]) -> float:
    seconds = _median_time(device, lambda: device.spin(0.0), EMPTY_LAUNCHES)
    low, high = EMPTY_S
    if not low <= seconds <= high:
        failed.append(f"an empty launch takes {seconds * 1e6:.2f} us, not 1 to 10")
    return seconds


def _copy(device: Device, peak_bytes_s: float, failed: list[str]) -> float:
    """Bytes read and written a second by a plain copy."""
    speed = 2 * COPY_BYTES / _median_time(device, device.copier(COPY_BYTES), COPIES)
    low, high = COPY_SHARE
    if not low * peak_bytes_s <= speed <= high * peak_bytes_s:
        failed.append(
            f"a copy moves {speed / 1e12:.2f} TB/s, the target's memory {peak_bytes_s / 1e12:.2f}"
        )
    return speed


def _median_time(device: Device, launch: Callable[[], None], count: int) -> float:
    launch()
    device.synchronize()
    device.spin(LEAD_S)
    marks = []
    for _ in range(count):
        start = device.mark()
        launch()
        marks.append((start, device.mark()))
    device.synchronize()
    return median(device.seconds(start, end) for start, end in marks)


def _wrong(job: Job) -> str:
    """What the check says of outputs that nobody wrote and of zeros; "" if either passes."""
    params, inputs = job.make_inputs(job.rng.getrandbits(63))
    outputs = job.make_outputs()
    said = []
    for value in (None, 0):
        for output in outputs:
            output.fill_(poison(output.dtype) if value is None else value)
        said.append(job.check("candidate", params, inputs, outputs))
    return "; ".join(said) if all(said) else ""
