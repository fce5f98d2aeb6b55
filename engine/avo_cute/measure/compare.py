"""How wrong an output may be: errors of the candidate against errors of the seed.

Both are measured against the same expected values, in fp64 or fp32, on the same inputs. Factors
come from measurements on an H200 over 15 input families: honest changes of FlashAttention-4 (other
tiles, lazy rescaling, a degree-3 exponential) stay below 1.25 times the seed's relative error and
1.1e-4 of log-sum-exp; the mildest dishonest ones start at 1.49 times and 4e-4.

Every comparison asks whether an error is within its bound, so a NaN is never within it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .oracle import Output

Tensor = Any

FACTOR = 1.4  # on the seed's relative error of a whole output
TILE_FACTOR, TILE_ROWS = 3.0, 128
ABSOLUTE_FACTOR, ABSOLUTE_FLOOR = 3.0, 3e-4

# Where the seed happens to be exact (one key decides, all keys are equal), a single result rounded
# the other way must not fail: bf16 rounding alone costs 1.3e-3.
FLOOR, TILE_FLOOR, BIAS_FLOOR = 2e-4, 1.5e-3, 1e-4
BIAS_DEVIATIONS = 4.0

# Beyond these the seed is not merely rounding; its errors are no yardstick.
SANE, SANE_TILE, SANE_ABSOLUTE = 1e-2, 5e-2, 1e-2


@dataclass(frozen=True, slots=True)
class Measure:
    """One comparison: `error` of the candidate, `seed_error`, and the largest error allowed."""

    what: str
    error: float
    seed_error: float
    bound: float

    @property
    def quotient(self) -> float:
        """Error over bound: above 1, or infinite, where the candidate fails."""
        if self.error <= self.bound:
            return self.error / self.bound if self.bound > 0 else 0.0
        return self.error / self.bound if self.bound > 0 and self.error < math.inf else math.inf


def measures(
    output: Output, candidate: Tensor, seed: Tensor, expected: Tensor, *, whole: bool = True
) -> list[Measure]:
    """All comparisons of one output. `whole` is false for sampled rows, which have no tiles."""
    if output.metric == "absolute":
        return [_absolute(output.name, candidate, seed, expected)]
    mine, theirs = Rows.of(candidate, expected), Rows.of(seed, expected)
    found = [_relative(output.name, mine, theirs), _bias(output.name, mine, theirs)]
    return [*found, _worst_tile(output, mine, theirs)] if whole else found


def insane(output: Output, seed: Tensor, expected: Tensor, *, whole: bool = True) -> str:
    """Why the seed's own result is no yardstick, in a few words; "" where it is one."""
    if output.metric == "absolute":
        error, bound, what = largest_difference(seed, expected), SANE_ABSOLUTE, "error"
    else:
        rows = Rows.of(seed, expected)
        error, bound, what = rows.relative, SANE, "relative error"
        if whole and error <= bound:
            tiles = rows.tiles(output.rows)
            ratio = _quotient(tiles.error_sq.sqrt(), tiles.size_sq.sqrt())
            error, bound, what = float(ratio.max()), SANE_TILE, "relative error of a tile"
    return "" if error <= bound else f"{what} of {output.name} is {error:.3g}"


@dataclass(frozen=True, slots=True)
class Rows:
    """Errors and expected values summed over each row, in fp64; one shape, that of the rows."""

    error_sq: Tensor
    error_sum: Tensor
    size_sq: Tensor
    size_sum: Tensor  # of absolute values
    count: Tensor  # 1 for a row with anything but zeros expected

    @classmethod
    def of(cls, got: Tensor, expected: Tensor) -> Rows:
        """Of an output; its last dimension is summed over."""
        error = got.to(expected.dtype) - expected
        size_sq = _total(expected * expected)
        return cls(
            _total(error * error),
            _total(error),
            size_sq,
            _total(expected.abs()),
            (size_sq > 0).double(),
        )

    @property
    def relative(self) -> float:
        """L2 error over L2 size. 0 where both are 0."""
        return float(_quotient(self.error_sq.sum().sqrt(), self.size_sq.sum().sqrt()))

    @property
    def bias(self) -> float:
        """Sum of the errors over the sum of absolute values: 0 for rounding to nearest."""
        return float(_quotient(self.error_sum.sum(), self.size_sum.sum()))

    @property
    def bias_deviation(self) -> float:
        """Standard deviation of `bias` if the errors of different rows are independent."""
        deviation = (self.error_sum**2).sum().sqrt()
        return float(_quotient(deviation, self.size_sum.sum()))

    def tiles(self, dim: int) -> Rows:
        """The same, summed over tiles of 128 rows along `dim`, which becomes the last."""
        return Rows(*(_tile_sums(x, dim) for x in self._fields()))

    def _fields(self) -> tuple[Tensor, ...]:
        return self.error_sq, self.error_sum, self.size_sq, self.size_sum, self.count


def largest_difference(got: Tensor, expected: Tensor) -> float:
    """The largest absolute error; infinite where -inf is not met by -inf, or NaN by anything."""
    wanted = expected.double()
    apart = (got.double() - wanted).abs()
    apart = apart.masked_fill((wanted == -math.inf) & (got == -math.inf), 0.0)
    return float(apart.nan_to_num(nan=math.inf).max()) if apart.numel() else 0.0


def few_rows(count: float) -> float:
    """A factor that allows for chance: with n rows a seed may have been lucky by about 1/√n.

    In one row of a peaky softmax a single rounding decides; over thousands chance plays no part.
    """
    return 1 + 1 / math.sqrt(max(count, 1.0))


def _relative(name: str, mine: Rows, theirs: Rows) -> Measure:
    factor = FACTOR * few_rows(float(theirs.count.sum()))
    seed_error = theirs.relative
    bound = max(factor * seed_error, FLOOR) if float(theirs.size_sq.sum()) > 0 else 0.0
    return Measure(f"relative error of {name}", mine.relative, seed_error, bound)


def _bias(name: str, mine: Rows, theirs: Rows) -> Measure:
    seed_error = abs(theirs.bias)
    chance = BIAS_DEVIATIONS * theirs.bias_deviation
    return Measure(
        f"bias of {name}", abs(mine.bias), seed_error, FACTOR * seed_error + chance + BIAS_FLOOR
    )


def _worst_tile(output: Output, mine: Rows, theirs: Rows) -> Measure:
    """Of the tile with the largest quotient. Errors are relative to the tile's expected values."""
    import torch

    mine, theirs = mine.tiles(output.rows), theirs.tiles(output.rows)
    size = theirs.size_sq.sqrt()
    error, seed_error = mine.error_sq.sqrt(), theirs.error_sq.sqrt()
    factor = TILE_FACTOR * (1 + theirs.count.clamp(min=1).rsqrt())
    bound = torch.maximum(factor * seed_error, TILE_FLOOR * size)
    worst = int(_quotient(error, bound).flatten().argmax())
    values = (float(_quotient(x, size).flatten()[worst]) for x in (error, seed_error, bound))
    *place, tile = _unravel(worst, error.shape)
    where = f" at {tuple(place)}" if place else ""
    return Measure(f"error of tile {tile} of {output.name}{where}", *values)


def _unravel(index: int, shape: Sequence[int]) -> list[int]:
    """Coordinates of an element of a flattened tensor. (torch's own imports sympy: 2 s.)"""
    place: list[int] = []
    for n in reversed(shape):
        index, i = divmod(index, n)
        place.insert(0, i)
    return place


def _absolute(name: str, candidate: Tensor, seed: Tensor, expected: Tensor) -> Measure:
    error, seed_error = (largest_difference(x, expected) for x in (candidate, seed))
    bound = ABSOLUTE_FACTOR * seed_error + ABSOLUTE_FLOOR
    return Measure(f"error of {name}", error, seed_error, bound)


def _total(x: Tensor) -> Tensor:
    import torch

    return x.sum(-1, dtype=torch.float64)


def _quotient(over: Tensor, under: Tensor) -> Tensor:
    """over / under; 0 for 0/0, infinity for x/0 and for NaN."""
    return (over / under).masked_fill(over == 0, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)


def _tile_sums(x: Tensor, dim: int) -> Tensor:
    from torch.nn.functional import pad

    x = x.movedim(dim, -1)
    x = pad(x, (0, -x.shape[-1] % TILE_ROWS))
    return x.unflatten(-1, (-1, TILE_ROWS)).sum(-1)


def worst_of(found: Sequence[Measure]) -> Measure:
    """The one nearest to failing, or furthest beyond."""
    return max(found, key=lambda m: m.quotient)
