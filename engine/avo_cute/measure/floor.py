"""The physical floor: the time below which no program that does the work can be.

A measured time below the floor is a fault of the measurement or of the candidate, never a result.
Every term is therefore a lower bound with nothing left to argue about: the highest clock that the
driver names, every SM busy in every cycle, no launch, no tail.

  tensor        the workload's FLOPs at the tensor cores' dense bf16 rate
  memory        its least traffic at the data sheet's bandwidth
  exponentials  their number at the rate of MUFU and FMA pipe together (see `exp_rate`)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from ..records import Param, Target
from ..target import Peaks, peaks_of

# The least work of an fp32 exponential on the FMA pipe: two operations of range reduction and a
# polynomial of degree 2. FlashAttention-4 uses degree 3, its own form costs more.
FMA_PER_EXP = 4


@dataclass(frozen=True, slots=True)
class Floor:
    """Lower bounds of one launch in seconds, by what limits it.

    `memory` counts all traffic, as a launch among many others must have it. `unflushed` is the part
    of it that one isolated launch may leave in L2 when its clock stops.
    """

    tensor: float
    memory: float
    exponentials: float
    unflushed: float = 0.0

    @property
    def seconds(self) -> float:
        """The roof for steady work: what `share` compares with."""
        return max(self.tensor, self.memory, self.exponentials)

    @property
    def impossible(self) -> float:
        """A time below this is rejected, also that of an isolated launch."""
        return max(self.tensor, self.memory - self.unflushed, self.exponentials)

    @property
    def bound(self) -> str:
        """ "tensor", "memory" or "exponentials": the largest."""
        terms = ("tensor", "memory", "exponentials")
        return max(terms, key=lambda term: getattr(self, term))


def floor(
    reference: ModuleType, params: Mapping[str, Param], target: Target, *, multiplies: bool
) -> Floor:
    """The floor of a workload on a target, from the task's reference.py.

    `reference.flops(params)` has a bound where the task `multiplies` matrices, that is, where its
    audit allows matrix instructions; other arithmetic is left out. `reference.exponentials` may be
    absent.
    """
    peaks = peaks_of(target)
    clocks = peaks.max_mhz * 1e6 * target.sms  # cycles of all SMs in a second
    flops = float(reference.flops(params)) if multiplies else 0.0
    exponentials = getattr(reference, "exponentials", None)
    count = float(exponentials(params)) if exponentials is not None else 0.0
    return Floor(
        flops / (peaks.bf16 * clocks),
        float(reference.bytes(params)) / peaks.bandwidth,
        count / (exp_rate(peaks) * clocks),
        target.l2_bytes / peaks.bandwidth,
    )


def exp_rate(peaks: Peaks) -> float:
    """Exponentials per clock and SM if nothing else runs: MUFU, and polynomials beside it.

    FlashAttention-4 computes a part of its exponentials on the FMA pipe where MUFU is the scarcer
    unit (sm_100). Nothing stops a candidate from doing so on any GPU and to any extent, so the
    floor grants the whole FMA pipe at `FMA_PER_EXP` operations each.
    """
    return peaks.mufu + peaks.fp32 / FMA_PER_EXP


def share(bound: Floor, seconds: float) -> float:
    """Which part of a measured time the floor explains: 0.8 = a fifth is left to win at most."""
    return bound.seconds / seconds
