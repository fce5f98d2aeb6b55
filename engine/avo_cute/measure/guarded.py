"""Memory for inputs and outputs in which a kernel cannot go astray unnoticed.

Around every tensor, and between tensors that share memory, stands a NaN of known bits: a read past
the end poisons the result, a write past the end changes bits that are compared afterwards. Nothing
here trusts a float comparison; bits are compared as integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from .oracle import Output

Tensor = Any

GUARD_BYTES = 64 * 1024  # on each side
ALIGN_BYTES = 256  # of the first element; TMA and vector loads need up to 128
POISON = 0x7FF5  # in every 16 bits: a NaN as bf16, fp16, fp32 and fp64
_WORD = 2  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One allocation. Its tensors lie between the words `start` and `stop`."""

    words: Tensor  # int16, all of it
    start: int
    stop: int

    def poison(self) -> None:
        """NaN everywhere, guards included."""
        self.words.fill_(POISON)

    def intact(self) -> bool:
        """Whether both guards hold the bits they were given."""
        before, behind = self.words[: self.start], self.words[self.stop :]
        return bool((before == POISON).all()) and bool((behind == POISON).all())

    def view(self, dtype: Any, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
        """A tensor in it; `offset` counts elements from the first."""
        inside = self.words[self.start : self.stop].view(dtype)
        return inside.as_strided(shape, stride, inside.storage_offset() + offset)


class Inputs:
    """Guarded copies of tensors, with the strides they had and sharing what they shared.

    Memory between them (the unused rest of a packed tensor) becomes NaN as well.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._blocks: list[Block] = []
        self._pristine: list[Tensor] = []
        placed: dict[int, Tensor] = {}
        for sharing in _by_storage(tensors):
            first = min(t.storage_offset() for t in sharing)
            block = _allocate((max(_end(t) for t in sharing) - first), sharing[0])
            for tensor in sharing:
                offset = tensor.storage_offset() - first
                view = block.view(tensor.dtype, tensor.shape, tensor.stride(), offset)
                placed[id(tensor)] = view.copy_(tensor)
            self._blocks.append(block)
            self._pristine.append(block.words[block.start : block.stop].clone())
        self.tensors: tuple[Tensor, ...] = tuple(placed[id(t)] for t in tensors)

    def intact(self) -> bool:
        return all(block.intact() for block in self._blocks)

    def unchanged(self) -> bool:
        """Whether every bit between the guards is what was put there."""
        return all(
            bool((block.words[block.start : block.stop] == was).all())
            for block, was in zip(self._blocks, self._pristine, strict=True)
        )


class Outputs:
    """Guarded, contiguous tensors that are poison until a kernel writes them, or `rubbish` is
    called."""

    def __init__(self, shapes: Sequence[tuple[Sequence[int], str]], device: str) -> None:
        """`shapes` are pairs of a shape and the name of a torch dtype."""
        import torch

        self._blocks, views = [], []
        for shape, name in shapes:
            like = torch.empty(0, dtype=getattr(torch, name), device=device)
            block = _allocate(prod(shape), like)
            self._blocks.append(block)
            views.append(block.view(like.dtype, shape, _contiguous(shape), 0))
        self.tensors: tuple[Tensor, ...] = tuple(views)

    def poison(self) -> None:
        for block in self._blocks:
            block.poison()

    def rubbish(self, seed: int) -> None:
        """Finite numbers between the guards, others for another seed; the guards are poison.

        For a kernel that knows poison when it sees it: what was there must not matter."""
        import torch

        self.poison()
        for number, tensor in enumerate(self.tensors):
            g = torch.Generator(tensor.device).manual_seed(seed + number)
            tensor.normal_(generator=g)

    def intact(self) -> bool:
        return all(block.intact() for block in self._blocks)

    def unwritten(self) -> list[int]:
        """Per tensor, how many elements still hold the poison."""
        return [_poisoned(tensor) for tensor in self.tensors]


def structure(wanted: Sequence[Output], inputs: Inputs, outputs: Outputs) -> str:
    """What is wrong with a launch before any number is compared, in one line; "" if nothing.

    Values that a kernel left unwritten are NaN, so they are named by the first check.
    """
    for output, got, left in zip(wanted, outputs.tensors, outputs.unwritten(), strict=True):
        bad = not_finite(output, got)
        if bad:
            unwritten = f", of which {left} were never written" if left else ""
            return f"{bad} of {got.numel()} values of {output.name} are not finite{unwritten}"
    if not (outputs.intact() and inputs.intact()):
        return "wrote outside its tensors: a guard has changed"
    if not inputs.unchanged():
        return "changed its inputs"
    if left := sum(outputs.unwritten()):
        return f"left {left} values unwritten"
    return ""


def not_finite(output: Output, got: Tensor) -> int:
    """Values that are NaN or infinite; -inf is allowed where errors are absolute."""
    good = got.isfinite()
    if output.metric == "absolute":
        good |= got == -math.inf
    return int((~good).sum())


def differing(one: Tensor, other: Tensor) -> int:
    """Elements of two outputs that have different bits."""
    import torch

    bits = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return int((one.view(bits) != other.view(bits)).sum())


def _by_storage(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    groups: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    return list(groups.values())


def _allocate(elements: int, like: Tensor) -> Block:
    """Room for `elements` of the type of `like`, where it lives, all poison."""
    import torch

    guard, align = GUARD_BYTES // _WORD, ALIGN_BYTES // _WORD
    room = elements * like.element_size() // _WORD
    words = torch.empty(2 * guard + align + room, dtype=torch.int16, device=like.device)
    start = guard + (-(words.data_ptr() // _WORD + guard)) % align
    block = Block(words, start, start + room)
    block.poison()
    return block


def _end(tensor: Tensor) -> int:
    """One past the last element in its storage, counted in elements."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + reach + 1)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _poisoned(tensor: Tensor) -> int:
    import torch

    bits = {2: (torch.int16, POISON), 4: (torch.int32, POISON << 16 | POISON)}
    dtype, pattern = bits[tensor.element_size()]
    return int((tensor.view(dtype) == pattern).sum())
