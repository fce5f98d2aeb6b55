"""How long one stream takes for a piece of code when it has the SM to itself.

In-order issue, one instruction a cycle, waiting for busy pipes, for registers that are not ready,
for barriers, and for asynchronous matrix groups where the code waits for them. All terms are sums
and maxima of start times, so more code never takes less time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .sass import Instruction
from .units import Rates, pipe_cycles, tmem_columns, unit_of

# Latencies in cycles from issue to use. Published microbenchmarks of Volta to Hopper agree on
# about 4 for the arithmetic pipes, 20 to 25 for MUFU and shuffles, 30 for shared memory; a passed
# mbarrier test or a named barrier is taken as one trip to shared memory. Tensor memory and the
# drain of a warpgroup's matrix group: estimated from the same trip.
LATENCY = {"fma": 4, "alu": 5, "mufu": 20, "shared": 30, "tmem": 30, "uniform": 6, "global": 500}
SYNC_CYCLES = 30.0
DRAIN_CYCLES = 60.0
REPEATS = 4  # iterations timed; enough for the first one's ramp to fade


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction, and for an asynchronous matrix instruction its time on the tensor core."""

    instruction: Instruction
    tensor: float = 0.0


def stream_cycles(steps: Sequence[Step], rates: Rates, repeats: int = REPEATS) -> float:
    """Cycles per repetition of `steps` for one stream alone on an SM."""
    clock = _Clock(rates)
    for _ in range(repeats):
        for step in steps:
            clock.issue(step)
    return max(clock.now, clock.tensor) / repeats if steps else 0.0


def section_cycles(steps: Sequence[Step], rates: Rates) -> float:
    """Cycles between a stream's wait for its turn and its signal that the next may go.

    Warpgroups that order themselves with named barriers (`BAR.SYNC` … `BAR.ARV`) pass this section
    one at a time. 0 where the loop has no such pair.
    """
    turns = [n for n, s in enumerate(steps) if s.instruction.opcode.startswith("BAR.SYNC")]
    if not turns or not any(s.instruction.opcode.startswith("BAR.ARV") for s in steps):
        return 0.0
    clock = _Clock(rates)
    for step in (*steps[turns[0] :], *steps[: turns[0]]):
        if step.instruction.opcode.startswith("BAR.ARV"):
            break
        clock.issue(step)
    return clock.now


class _Clock:
    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.now = 0.0
        self.tensor = 0.0  # when the last matrix instruction so far ends
        self.free: dict[str, float] = {}  # unit -> when its pipe is free
        self.ready: dict[str, float] = {}  # register -> when it can be read
        self.groups: list[float] = []  # ends of committed matrix groups

    def issue(self, step: Step) -> None:
        i, unit = step.instruction, unit_of(step.instruction)
        reads, writes = _registers(i)
        start = max(
            [self.now + 1, self.free.get(unit, 0.0), *(self.ready.get(r, 0) for r in reads)]
        )
        if unit == "tensor":
            self._matrix(i, step.tensor, start)
        else:
            cycles = pipe_cycles(i, self.rates)
            self.free[unit] = start + cycles
            done = start + max(cycles, LATENCY.get(unit, 4))
            for r in writes:
                self.ready[r] = max(self.ready.get(r, 0.0), done)
        self.now = self._wait(i, start)

    def _matrix(self, i: Instruction, cycles: float, start: float) -> None:
        self.tensor = max(self.tensor, start) + cycles
        if "gsb" in i.operands:
            self.groups.append(self.tensor + DRAIN_CYCLES)

    def _wait(self, i: Instruction, start: float) -> float:
        if i.opcode.startswith("WARPGROUP.DEPBAR"):
            pending = int(i.operands.rpartition("0x")[2] or "0", 16)
            done = len(self.groups) - pending
            if done > 0:
                start = max([start, *self.groups[:done]])
                self.groups = self.groups[done:]
        elif waits(i):
            start += SYNC_CYCLES
        return start


def waits(i: Instruction) -> bool:
    """Whether a warp stops here until other warps, a barrier or the memory system answer."""
    if i.name == "SYNCS":
        return "TRYWAIT" in i.opcode
    if i.name == "BAR":
        return "ARV" not in i.opcode
    return i.name in ("FENCE", "MEMBAR", "WARPSYNC", "DEPBAR", "LDGDEPBAR")


_NO_RESULT = ("ST", "SYNCS", "BAR", "BRA", "RED", "UTM", "UTC", "WARPGROUP")
_REGISTER = re.compile(r"\bU?R(\d+)\b")


def _registers(i: Instruction) -> tuple[list[str], list[str]]:
    """(read, written): written registers are the first operand's, as many as the opcode moves."""
    if unit_of(i) == "tensor":
        return [], []
    names = [m.group() for m in _REGISTER.finditer(i.operands)]
    if not names or i.name.startswith(_NO_RESULT):
        return names, []
    first = names[0]
    if first.startswith("U"):
        return names[1:], [first]
    base = int(first[1:])
    return names[1:], [f"R{base + n}" for n in range(_written(i))]


def _written(i: Instruction) -> int:
    if i.name == "LDTM":
        return tmem_columns(i)
    if i.name == "LDSM" and i.opcode[-1].isdigit():
        return int(i.opcode[-1])
    if i.opcode.endswith(".128"):
        return 4
    packed = i.name in ("FFMA2", "FMUL2", "FADD2")
    return 2 if packed or i.opcode.endswith((".64", ".WIDE")) else 1
