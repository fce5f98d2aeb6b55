"""The static score: cycles of a launch on the target, estimated from SASS alone.

1. Find the steady loops: those that hold the matrix instructions and, where tensor memory
   decouples them, those of the other roles that run beside them (`build.roles`).
2. Per step of these loops count the cycles each unit of the SM is busy, over all roles
   (`build.units`), and how long one stream needs for a step when it is alone (`build.timeline`).
3. N streams share the SM. The time of a step is `alone + (N - 1) x busiest unit per stream`, the
   upper bound of balanced job bounds for closed queueing networks (Zahorjan, Sevcik, Eager,
   Galler, CACM 25(2), 1982): each of the others delays a stream by at most its stay at the
   busiest unit.
4. Steps per CTA come from the workload's floating-point operations and the matrix shapes, CTAs
   and waves from the launch.

It ranks variants of one kernel. It is not a time and is never compared with one.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from .build.pace import matrix_pace, plain_pace
from .build.roles import role_streams
from .build.sass import Kernel
from .build.units import rates_of
from .records import Estimate, Launch, Target, Workload


@dataclass(frozen=True, slots=True)
class Work:
    """What a workload asks for.

    `flops` of its matrix products: useful ones only, two per multiply-add, 0 where it has none.
    `bytes` that must at least move between the SMs and device memory.
    """

    flops: float
    bytes: float


def estimate(
    workload: Workload,
    kernels: Sequence[Kernel],
    launches: Sequence[Launch],
    target: Target,
    work: Work,
) -> Estimate:
    """Cycles of all `launches` on `target`, and the cycles each unit of an SM is busy meanwhile.

    Launches share the work equally. `ValueError` for a launch of a kernel that is not there.
    """
    by_name = {k.name: k for k in kernels}
    share = Work(work.flops / max(1, len(launches)), work.bytes / max(1, len(launches)))
    cycles, parts = 0.0, defaultdict[str, float](float)
    for launch in launches:
        if launch.kernel not in by_name:
            raise ValueError(f"launch of unknown kernel {launch.kernel!r}")
        own, busy = _launch(by_name[launch.kernel], launch, target, share)
        cycles += own
        for unit, amount in busy.items():
            parts[unit] += amount
    ordered = dict(sorted(parts.items(), key=lambda p: -p[1]))
    return Estimate(workload.name, cycles, next(iter(ordered), "other"), ordered)


def implausible(
    found: Estimate,
    kernels: Sequence[Kernel],
    launches: Sequence[Launch],
    target: Target,
    work: Work,
    *,
    multiplies: bool,
) -> str:
    """Why no program that does the work can have this estimate, or an empty string.

    A task that `multiplies` must have its matrix instructions in a loop, and its multiply-adds take
    the tensor cores of all SMs some time; bytes take device memory some.
    """
    rates, flops = rates_of(target), work.flops if multiplies else 0.0
    by_name = {k.name: k for k in kernels}
    if multiplies and not any(matrix_pace(by_name[x.kernel], x, rates) for x in launches):
        return "no loop with matrix instructions, which this task cannot do without"
    fma = max(rates.matrix_fma, rates.legacy_fma)
    floor = max(flops / 2 / fma, work.bytes / rates.dram) / target.sms
    if found.cycles < 0.999 * floor:
        return f"{found.cycles:.0f} cycles are below the physical floor of {floor:.0f}"
    return ""


def ctas_per_sm(kernel: Kernel, launch: Launch, target: Target) -> int:
    """CTAs that fit an SM side by side: by shared memory, registers and warps; at least 1."""
    threads = max(1, math.prod(launch.block))
    by_shared = (target.smem_bytes + _RESERVED) // (launch.smem_bytes + _RESERVED)
    by_registers = int(_REGISTERS // (_registers(kernel, launch) * threads))
    return max(1, min(by_shared, by_registers, _THREADS // threads, _CTAS))


def _launch(
    kernel: Kernel, launch: Launch, target: Target, work: Work
) -> tuple[float, dict[str, float]]:
    rates, ctas = rates_of(target), max(1, math.prod(launch.grid))
    pace = matrix_pace(kernel, launch, rates) or plain_pace(kernel, launch, rates, work.bytes)
    done = pace.fma or pace.moved
    steps = (work.flops / 2 if pace.fma else work.bytes) / done / ctas if done else 1.0
    resident = ctas_per_sm(kernel, launch, target)
    waves = math.ceil(ctas / (target.sms * resident))
    memory = work.bytes / target.sms / rates.dram
    cycles = max(memory, waves * steps * pace.period(resident))
    busy = {unit: c * steps * ctas / target.sms for unit, c in pace.busy.items() if c}
    return cycles, {**busy, "global": max(memory, busy.get("global", 0.0))}


_RESERVED = 1024  # shared memory that the system takes of each CTA
_REGISTERS = 65536
_THREADS = 2048
_CTAS = 32


def _registers(kernel: Kernel, launch: Launch) -> float:
    """Registers per thread, mean of the block: the budgets, else the highest the code names."""
    roles = {r: n for r, n in role_streams(kernel, launch).items() if r}
    if roles:
        return sum(r * n for r, n in roles.items()) / sum(roles.values())
    named = (int(m) for i in kernel.instructions for m in _REGISTER.findall(i.operands))
    return 8 * math.ceil((max(named, default=0) + 1) / 8)


_REGISTER = re.compile(r"\bR(\d+)\b")
