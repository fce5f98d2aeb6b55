"""The statistics that scores are made of; pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .records import Interval, Samples

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray


def geomean(values: Sequence[float]) -> float:
    """The geometric mean of positive numbers; `ValueError` for none or for any that is not."""
    if not values or not all(v > 0 for v in values):
        raise ValueError("geometric mean of nothing, or of a number that is not positive")
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation, ties sharing their mean rank.

    `ValueError` for fewer than two pairs, unequal lengths, or a side that is constant.
    """
    if len(x) != len(y) or len(x) < 2:
        raise ValueError("rank correlation needs two or more pairs")
    rx, ry = ranks(x), ranks(y)
    mean = (len(x) + 1) / 2
    xx = math.fsum((a - mean) ** 2 for a in rx)
    yy = math.fsum((b - mean) ** 2 for b in ry)
    if not xx or not yy:
        raise ValueError("rank correlation with a constant")
    xy = math.fsum((a - mean) * (b - mean) for a, b in zip(rx, ry, strict=True))
    return max(-1.0, min(1.0, xy / math.sqrt(xx * yy)))


def ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing the mean of theirs; `ValueError` for NaN."""
    if any(v != v for v in values):
        raise ValueError("NaN has no rank")
    order = sorted(range(len(values)), key=values.__getitem__)
    result = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for n in order[first : last + 1]:
            result[n] = (first + last) / 2 + 1
        first = last + 1
    return result


RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Cell:
    """The log-ratios that one process took of one workload, one per valid round."""

    workload: str
    process: int
    ratios: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm against another: the geomean over workloads, and its parts."""

    gain: Interval
    workloads: Mapping[str, Interval]
    processes: tuple[Interval, ...]  # the geomean in each process alone


def stratified(
    cells: Sequence[Cell], confidence: float, seed: int, resamples: int = RESAMPLES
) -> Comparison:
    """Medians of cells, averaged over processes, then over workloads; with percentile bounds.

    The bootstrap resamples rounds within each workload and process, never across them: it knows
    the spread within a process only. `ValueError` for no cells and as in `bootstrap_medians`.
    """
    import numpy as np  # here, because the command line imports this module at its start

    names = list(dict.fromkeys(c.workload for c in cells))
    by_name = [[n for n, c in enumerate(cells) if c.workload == name] for name in names]
    by_process = [
        [[n] for n, c in enumerate(cells) if c.process == process]
        for process in dict.fromkeys(c.process for c in cells)
    ]
    means = [by_name, *([group] for group in by_name), *by_process]  # of means of cells
    weights = np.zeros((len(cells), len(means)))
    for column, groups in enumerate(means):
        for group in groups:
            weights[group, column] = 1 / len(groups) / len(group)
    draws = bootstrap_medians([c.ratios for c in cells], seed, resamples) @ weights
    values = np.array([median(c.ratios) for c in cells]) @ weights
    low, high = bounds(draws, confidence)
    ends = np.exp([values, np.minimum(low, values), np.maximum(high, values)]).T.tolist()
    gain, *rest = (Interval(*end) for end in ends)
    workloads = dict(zip(names, rest, strict=False))
    return Comparison(gain, workloads, tuple(rest[len(names) :]))


def log_ratios(sample: Samples, arm: str, against: str) -> list[float]:
    """log(t_against / t_arm) of every valid round: positive where `arm` is faster.

    `ValueError` for a time that is missing, not finite or not above zero.
    """
    if not is_sound(sample, (arm, against)):
        raise ValueError(f"{sample.workload}: a time is missing, not finite or not above zero")
    pairs = zip(sample.times[against], sample.times[arm], sample.void, strict=True)
    return [math.log(theirs / ours) for theirs, ours, void in pairs if not void]


def is_sound(sample: Samples, arms: Sequence[str]) -> bool:
    """Whether every arm has a positive, finite time in every valid round."""
    return all(
        len(sample.times.get(arm, ())) == len(sample.void)
        and all(v or 0 < t < math.inf for t, v in zip(sample.times[arm], sample.void, strict=True))
        for arm in arms
    )


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, correctly summed; `ValueError` for none."""
    if not values:
        raise ValueError("mean of nothing")
    return math.fsum(values) / len(values)


def bootstrap_medians(
    groups: Sequence[Sequence[float]], seed: int, resamples: int = RESAMPLES
) -> NDArray[float64]:
    """Medians of every group resampled with replacement: shape (`resamples`, groups).

    The distribution is exactly that of drawing n of n values and taking their median, but only
    the ranks that make the median are drawn: order statistics of n uniform numbers are Beta
    variables (David and Nagaraja, Order Statistics, 2.1 and 2.3). Half the draws mirror the other
    half, so the groups' negatives give exactly the negative draws. The same seed gives the same
    draws. `ValueError` for an empty or non-finite group and for an odd number of resamples.
    """
    import numpy as np

    if resamples % 2:
        raise ValueError("resamples come in mirrored pairs: an even number is needed")
    random = np.random.default_rng(seed)
    draws = np.empty((resamples, len(groups)))
    for n in sorted({len(g) for g in groups}):
        columns = [c for c, g in enumerate(groups) if len(g) == n]
        values = np.sort(np.array([groups[c] for c in columns], dtype=float))
        if not n or not np.isfinite(values).all():
            raise ValueError("a bootstrap of nothing, or of a number that is not finite")
        k, shape = n // 2, (resamples // 2, len(columns))
        upper = random.beta(k + 1, n - k, shape)
        lower = upper if n % 2 else upper * random.random(shape) ** (1 / k)
        low, high = (np.minimum((u * n).astype(int), n - 1) for u in (lower, upper))
        own = np.arange(len(columns))
        draws[::2, columns] = (values[own, low] + values[own, high]) / 2
        draws[1::2, columns] = (values[own, n - 1 - low] + values[own, n - 1 - high]) / 2
    return draws


def bounds(draws: NDArray[float64], confidence: float) -> tuple[NDArray[float64], NDArray[float64]]:
    """Two one-sided percentile bounds of each column: a share of at most 1 - `confidence` of its
    draws lies strictly below the lower one, and as much above the upper one."""
    import numpy as np

    skip = int((1 - confidence) * len(draws) + 1e-9)
    ordered = np.partition(draws, (skip, len(draws) - 1 - skip), axis=0)
    return ordered[skip], ordered[len(draws) - 1 - skip]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The resolution of one machine: what it makes of a kernel compared with itself.

    `gains` has the geomean log-ratio of such a null comparison in each fresh process, `within`
    the standard deviation of one round's log-ratio of one workload (from the median absolute
    deviation, so that stragglers do not count).
    """

    gains: tuple[float, ...]
    within: float

    def __post_init__(self) -> None:
        if len(self.gains) < 3:
            raise ValueError("a calibration needs three processes or more")
        if not all(math.isfinite(g) for g in (*self.gains, self.within)) or self.within < 0:
            raise ValueError("a calibration with a number that is not finite, or a negative spread")

    @property
    def spread(self) -> float:
        """Standard deviation between processes, about the truth: root mean square of `gains`.

        The true log-ratio of a null comparison is 0, so every process is a degree of freedom and
        a lean towards one arm counts as spread.
        """
        return math.sqrt(math.fsum(g * g for g in self.gains) / len(self.gains))

    def margin(self, factor: float = 3.0, least: float = 0.001) -> float:
        """The log-ratio that a gain must exceed: `factor` spreads, at least `least`."""
        return max(least, factor * self.spread)

    def text(self) -> str:
        """As one line of JSON, with the spread for the reader's eye."""
        facts = {"spread": self.spread, "within": self.within, "gains": list(self.gains)}
        return json.dumps(facts, allow_nan=False)


def calibrate(
    processes: Sequence[Sequence[Samples]], arms: tuple[str, str] = ("candidate", "incumbent")
) -> Calibration:
    """The calibration from null comparisons (one kernel in both arms), one per fresh process.

    `ValueError` where a time cannot be used, fewer than three processes are given, one is given
    twice or they timed different workloads.
    """
    timed = {tuple(sorted(s.workload for s in p if s.mode == "sustained")) for p in processes}
    if len(timed) != 1 or len({s.process for p in processes for s in p}) != len(processes):
        raise ValueError("a calibration compares the same workloads in different processes")
    ratios = [[log_ratios(s, *arms) for s in p if s.mode == "sustained"] for p in processes]
    gains = tuple(mean([median(w) for w in workloads]) for workloads in ratios)
    return Calibration(gains, median([robust_sd(w) for workloads in ratios for w in workloads]))


def calibration_of(text: str) -> Calibration:
    """The calibration that `Calibration.text` wrote; `ValueError` for anything else."""
    data = json.loads(text)
    try:
        return Calibration(tuple(map(float, data["gains"])), float(data["within"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a calibration: {error!r}") from error


def median(values: Sequence[float]) -> float:
    """The median; `ValueError` for none or for NaN."""
    if not values or any(v != v for v in values):
        raise ValueError("median of nothing or of NaN")
    return statistics.median(values)


def robust_sd(values: Sequence[float]) -> float:
    """1.4826 x the median absolute deviation: the standard deviation, if stragglers are few."""
    middle = median(values)
    return 1.4826 * median([abs(v - middle) for v in values])


def tflops(flops: float, seconds: float) -> float:
    """Useful work per time in 10^12 operations a second; `ValueError` unless both are positive."""
    if not (flops > 0 and seconds > 0):
        raise ValueError("TFLOPS of no work or no time")
    return flops / seconds / 1e12


def floor_share(floor: float, seconds: float) -> float:
    """How near a time is to the physical floor (both in seconds): 1 at the floor, above it < 1."""
    if not (floor > 0 and seconds > 0):
        raise ValueError("a share of no time")
    return floor / seconds


def inert_note(gain: float, pairs: Sequence[float]) -> str:
    """A sentence for gains under 2 %: in how many pairs of inert rebuilds of both sides the
    candidate stays on its side of the incumbent. Ratios; reported, decides nothing."""
    if not 0.98 < gain < 1.02:
        return ""
    if not pairs:
        return "Not compared with inert rebuilds: a gain under 2 % may be scheduling luck."
    same = sum((p > 1) == (gain > 1) and p != 1 for p in pairs)
    low, high = (f"{p - 1:+.2%}" for p in (min(pairs), max(pairs)))
    return f"{same} of {len(pairs)} pairs of inert rebuilds keep the sign ({low} … {high})."
