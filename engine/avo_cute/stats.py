"""The few statistics that scores are made of; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence


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
