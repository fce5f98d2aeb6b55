"""Which warps run which loop of a kernel, and what one iteration of it holds.

A warp-specialised kernel is several programs in one: each role sets its register budget
(`setmaxnreg`) and enters its own loop. The roles' loops run side by side on the SM.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from ..records import Launch
from .flow import Loop
from .matrix import Matrix, constant, matrix_of
from .sass import Instruction, Kernel
from .units import tmem_columns, unit_of

STREAM_WARPS = 4
REGISTER_POOL = 512  # 65,536 registers / 128 threads: what the budgets of all warpgroups share
ONE_WARP = 1 / STREAM_WARPS  # streams of a role that one elected thread performs
RARE = 0.5  # weight of code that not every iteration passes: nothing is known, so half


@dataclass(frozen=True, slots=True)
class Code:
    """Instructions of one role with their weights (1 where every iteration passes).

    `matrix` runs parallel to `instructions`; `streams` is the number of warps / 4 that run it.
    """

    instructions: tuple[Instruction, ...]
    weights: tuple[float, ...]
    matrix: tuple[Matrix | None, ...]
    streams: float
    tma_bytes: float  # bytes that TMA loads announce per iteration

    @property
    def fma(self) -> float:
        """Multiply-adds per iteration of all warps that run it."""
        return sum(
            m.fma * w * (self.streams * STREAM_WARPS / m.warps if m.warps else 1)
            for m, w in zip(self.matrix, self.weights, strict=True)
            if m
        )

    def columns(self, name: str) -> float:
        """Columns of tensor memory that one stream loads ("LDTM") or stores ("STTM")."""
        pairs = zip(self.instructions, self.weights, strict=True)
        return sum(tmem_columns(i) for i, _ in pairs if i.name == name)

    @property
    def tcgen05(self) -> bool:
        return any(m is not None and m.warps == 0 for m in self.matrix)

    def has(self, unit: str) -> bool:
        return any(unit_of(i) == unit for i in self.instructions)


def hot_loops(kernel: Kernel, launch: Launch) -> dict[int | None, tuple[Code, ...]]:
    """Innermost loops that do work, by the register budget of the role that runs them."""
    warps = role_streams(kernel, launch)
    found: dict[int | None, tuple[Code, ...]] = {}
    parents = {loop.parent for loop in kernel.loops if _works(kernel, loop)}
    for n, loop in enumerate(kernel.loops):
        if n in parents or not _works(kernel, loop):
            continue
        role = role_of(kernel, loop.header)
        code = loop_code(kernel, loop, warps.get(role, warps[None]))
        found[role] = (*found.get(role, ()), code)
    return found


def loop_code(kernel: Kernel, loop: Loop, streams: float) -> Code:
    """One iteration of a loop."""
    return code_of(kernel, sorted(loop.blocks), loop.always, streams)


def code_of(kernel: Kernel, blocks: Sequence[int], always: frozenset[int], streams: float) -> Code:
    """Blocks in address order; those outside `always` weigh `RARE`."""
    instructions, weights, matrix = [], [], []
    tma = 0.0
    for b in blocks:
        weight = 1.0 if b in always else RARE
        for n in range(kernel.blocks[b].start, kernel.blocks[b].stop):
            i = kernel.instructions[n]
            instructions.append(i)
            weights.append(weight)
            matrix.append(matrix_of(kernel, b, n))
            tma += _announced(kernel, b, n)
    elected = any(unit_of(i) == "tma" for i in instructions) or any(
        m is not None and m.warps == 0 for m in matrix
    )
    if elected and not any(i.name == "LDTM" or unit_of(i) == "mufu" for i in instructions):
        streams = min(streams, ONE_WARP)
    if any(".2CTA" in i.opcode for i in instructions if unit_of(i) == "tma"):
        tma /= 2  # one CTA's barrier counts the bytes of both
    return Code(tuple(instructions), tuple(weights), tuple(matrix), streams, tma)


def role_of(kernel: Kernel, block: int) -> int | None:
    """The register budget in force in `block`, None before any `setmaxnreg`."""
    while block >= 0:
        for i in reversed(kernel.body(block)):
            if i.name == "USETMAXREG":
                return budget(i)
        block = kernel.blocks[block].dominator
    return None


def budget(i: Instruction) -> int:
    """Registers per thread that a USETMAXREG asks for, 0 if they are not an immediate."""
    try:
        return int(i.operands.split(",")[-1].strip(), 0)
    except ValueError:
        return 0


def role_streams(kernel: Kernel, launch: Launch) -> dict[int | None, float]:
    """Warps / 4 of each role; key None is for kernels or code without roles.

    The budgets of all warpgroups must fit the register file, and a kernel that sets them wants to
    use it: of all ways to share the block's warpgroups among the budgets, the one that uses most.
    """
    x, y, z = launch.block
    streams = x * y * z / (32 * STREAM_WARPS)
    budgets = tuple(dict.fromkeys(budget(i) for i in kernel.instructions if i.name == "USETMAXREG"))
    if not budgets:
        return {None: streams}
    shared = max(_shares(budgets, max(1, int(streams))), key=lambda s: s[0], default=None)
    counts = shared[1] if shared else (1,) * len(budgets)
    return {None: streams, **{b: float(c) for b, c in zip(budgets, counts, strict=True)}}


def _shares(budgets: Sequence[int], groups: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    most = max(1, groups - len(budgets) + 1)
    if len(budgets) > groups or most ** len(budgets) > 1_000_000:
        return
    for counts in product(range(1, most + 1), repeat=len(budgets)):
        used = sum(b * c for b, c in zip(budgets, counts, strict=True))
        if sum(counts) == groups and used <= REGISTER_POOL:
            yield used, counts


_WORK_UNITS = frozenset({"tensor", "tmem", "mufu", "global", "tma"})


def _works(kernel: Kernel, loop: Loop) -> bool:
    return any(unit_of(i) in _WORK_UNITS for b in loop.blocks for i in kernel.body(b))


def _announced(kernel: Kernel, block: int, index: int) -> int:
    """Bytes that `SYNCS.ARRIVE.TRANS64 RZ, [barrier], bytes` tells a barrier to expect."""
    i = kernel.instructions[index]
    if i.opcode != "SYNCS.ARRIVE.TRANS64":
        return 0
    register = i.operands.split(",")[-1].strip()
    return constant(kernel, block, index, register) or 0
