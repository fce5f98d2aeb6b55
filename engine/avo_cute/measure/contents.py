"""What timed launches read and write: never the same contents twice, never a result left over.

Several sets of input and output allocations are used in turn, together larger than the L2 cache.
Before every launch a sparse part of the set's inputs is written anew and its outputs are poisoned.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..records import Param
from .device import Tensor

STRIDE = 1021  # elements between two that are rewritten; prime, so that all columns are hit
SLACK = 4096  # further normal values to start from
LEAST, MOST = 2, 256  # sets

MakeInputs = Callable[[int], tuple[Mapping[str, Param], Sequence[Tensor]]]
MakeOutputs = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Set:
    """Allocations that one launch uses."""

    params: Mapping[str, Param]
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]


class Contents:
    """Sets of inputs from `make_inputs(seed)` and of outputs, at least two and together (the
    inputs alone) at least `rotate_bytes`; `ValueError` for inputs that are not dense."""

    def __init__(
        self,
        make_inputs: MakeInputs,
        make_outputs: MakeOutputs,
        rotate_bytes: int,
        rng: random.Random,
    ) -> None:
        self._rng = rng
        self.sets = [self._make(make_inputs, make_outputs)]
        size = sum(x.nbytes for x in self.sets[0].inputs)
        for _ in range(1, min(MOST, max(LEAST, math.ceil(rotate_bytes / max(1, size))))):
            self.sets.append(self._make(make_inputs, make_outputs))
        self._pools: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._flat = [
            [dense(x) for x in s.inputs if x.is_floating_point() and x.numel()] for s in self.sets
        ]
        for flat in self._flat[0]:
            self._grow_pool(flat)
        self._poison = [[(x, poison(x.dtype)) for x in s.outputs] for s in self.sets]

    def refresh(self, index: int) -> None:
        """Launch the rewriting and the poisoning of one set.

        One element in 1021 of every floating-point input becomes another N(0, 1) value, from a
        random place on; for attention this moves the output by some percent, far more than any
        bound on errors.
        """
        for flat in self._flat[index]:
            count = max(1, flat.numel() // STRIDE)
            first = self._rng.randrange(min(STRIDE, flat.numel()))
            pool = self._pools[flat.dtype, flat.device]
            start = self._rng.randrange(SLACK)
            target = flat.as_strided((count,), (STRIDE,), flat.storage_offset() + first)
            target.copy_(pool[start : start + count])
        for output, value in self._poison[index]:
            output.fill_(value)

    def _make(self, make_inputs: MakeInputs, make_outputs: MakeOutputs) -> Set:
        params, inputs = make_inputs(self._rng.getrandbits(63))
        return Set(params, tuple(inputs), tuple(make_outputs()))

    def _grow_pool(self, flat: Tensor) -> None:
        """Enough normal values for a rewriting of `flat`, of its type and where it lies."""
        key, size = (flat.dtype, flat.device), flat.numel() // STRIDE + 1 + SLACK
        if key not in self._pools or self._pools[key].numel() < size:
            generator = torch.Generator(flat.device).manual_seed(self._rng.getrandbits(63))
            values = torch.randn(size, generator=generator, device=flat.device)
            self._pools[key] = values.to(flat.dtype)


def dense(x: Tensor) -> Tensor:
    """All elements of `x` as one dimension that shares its memory, in whatever order."""
    order = sorted(range(x.dim()), key=lambda d: x.stride(d), reverse=True)
    ordered = x.permute(order)
    if not ordered.is_contiguous():
        raise ValueError(f"a timed input of strides {tuple(x.stride())} has gaps")
    return ordered.view(-1)


def poison(dtype: torch.dtype) -> float | int | bool:
    """NaN, or for integers the least value there is."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return False if dtype is torch.bool else int(torch.iinfo(dtype).min)
