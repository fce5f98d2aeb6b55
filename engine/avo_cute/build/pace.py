"""The pace of a kernel's steady state: cycles of one step of one CTA, and the units behind it.

A step is one iteration of the loop that holds the matrix instructions, together with what the
other roles do for it. Roles that tensor memory decouples are counted per step by the columns they
move: an accumulator that is written afresh each step is read once each step, and code that loads
and stores the same number of columns rescales the accumulator that lives across steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..records import Launch
from .matrix import Matrix
from .roles import STREAM_WARPS, Code, code_of, hot_loops, role_streams
from .sass import Kernel
from .timeline import Step, section_cycles, stream_cycles
from .units import SHARED_BYTES, Rates, global_bytes, pipe_cycles, unit_of

TCGEN05_LANES = 128  # tcgen05 takes as long for M = 64 as for M = 128


@dataclass(frozen=True, slots=True)
class Pace:
    """One step of one CTA: `streams` share it, one of them needs `alone` cycles without the others.

    `busy` maps a unit to its cycles per step; `fma` and `moved` are the multiply-adds and the bytes
    of device memory of a step.
    """

    streams: float
    alone: float
    busy: Mapping[str, float]
    fma: float = 0.0
    moved: float = 0.0

    def period(self, resident: int = 1) -> float:
        """Cycles in which each of `resident` CTAs of an SM makes one step (balanced job bound)."""
        n = max(1.0, self.streams * resident)
        busiest = max(self.busy.values(), default=0.0) * resident / n
        return max(self.alone, busiest) + (n - 1) * busiest


def matrix_pace(kernel: Kernel, launch: Launch, rates: Rates) -> Pace | None:
    """The pace of a kernel that multiplies matrices in a loop, None for any other."""
    roles = hot_loops(kernel, launch)
    loops = [c for codes in roles.values() for c in codes if c.fma]
    if not loops:
        return None
    return _pace(min(loops, key=lambda c: sum(c.weights) / c.fma), roles, rates)


def plain_pace(kernel: Kernel, launch: Launch, rates: Rates, total_bytes: float) -> Pace:
    """The pace of a kernel without a matrix loop.

    A step is one iteration of the loop that moves most bytes, or all of a CTA where no loop does.
    """
    streams = role_streams(kernel, launch)[None]
    loops = [c for codes in hot_loops(kernel, launch).values() for c in codes]
    code = max(loops, key=_moved, default=None)
    ctas = max(1, math.prod(launch.grid))
    moved = _moved(code) if code else 0.0
    if code is None or not moved:
        code = _everything(kernel, streams)
        moved = total_bytes / ctas
    busy = _busy(code, rates)
    busy["global"] = max(busy["global"], moved / rates.dram)
    return Pace(streams, _alone(code, rates), busy, moved=moved)


def _pace(code: Code, roles: Mapping[int | None, Sequence[Code]], rates: Rates) -> Pace:
    busy = _busy(code, rates)
    producer = _leanest((c for codes in roles.values() for c in codes), "tma")
    partners = [(c, _scale(c, code)) for codes in roles.values() for c in [_reader(codes)] if c]
    in_chain = [(c, s) for c, s in partners if s and not _rescales(c)] if code.tcgen05 else []
    streams = max(1.0, sum(c.streams for c, _ in in_chain))
    if producer is not None:
        # tcgen05 instructions are issued once for all streams, a warpgroup's by each of them
        times = _refills(producer, code, streams if code.tcgen05 else 1.0)
        _add(busy, _busy(producer, rates), times)
        busy["shared"] += times * producer.tma_bytes / SHARED_BYTES
    if not code.tcgen05:
        busy["order"] = code.streams * section_cycles(_steps(code, rates), rates)
        return Pace(code.streams, _alone(code, rates), busy, code.fma)
    for partner, scale in partners:
        _add(busy, _busy(partner, rates), scale)
    waits = max((_alone(c, rates) * scale for c, scale in in_chain), default=0.0)
    return Pace(streams, busy["tensor"] / streams + waits, busy, code.fma)


def _refills(producer: Code, matrix: Code, streams: float) -> float:
    """Iterations of the loading loop per step: what the step reads as B, over what one brings.

    Every stream multiplies by the same B tiles.
    """
    pairs = zip(matrix.matrix, matrix.weights, strict=True)
    read = sum(m.b_bytes * w for m, w in pairs if m)
    return read / streams / producer.tma_bytes


def _scale(partner: Code, matrix: Code) -> float:
    """Iterations of a partner's loop per step of the matrix loop."""
    fresh, carried = _columns_written(matrix)
    columns = carried if _rescales(partner) else fresh
    return columns / (partner.columns("LDTM") * partner.streams)


def _columns_written(code: Code) -> tuple[float, float]:
    """Accumulator columns per step: of chains that overwrite them, and of those that add to them.

    A chain of instructions ends with a commit (UTCBAR), and where the flag or the kind of the A
    operand says that another accumulator is meant. Counting chains and not flags: in an unrolled
    loop only the first of several additions to an accumulator carries a run-time flag.
    """
    fresh = carried = 0.0
    last: Matrix | None = None
    for i, m, w in zip(code.instructions, code.matrix, code.weights, strict=True):
        if i.name == "UTCBAR":
            last = None
        elif m is not None:
            if last is None or m.fresh or m.carried or m.a_in_shared != last.a_in_shared:
                fresh, carried = (
                    (fresh + m.n * w, carried) if m.fresh else (fresh, carried + m.n * w)
                )
            last = m
    return fresh, carried


def _rescales(code: Code) -> bool:
    return code.columns("STTM") >= code.columns("LDTM")


def _reader(codes: Iterable[Code]) -> Code | None:
    """The loop of a role that does least per column it loads: the steady one, without masks."""
    readers = [c for c in codes if c.columns("LDTM")]
    return min(readers, key=lambda c: sum(c.weights) / c.columns("LDTM"), default=None)


def _leanest(codes: Iterable[Code], unit: str) -> Code | None:
    found = [c for c in codes if c.has(unit) and c.tma_bytes]
    return min(found, key=lambda c: sum(c.weights), default=None)


def _alone(code: Code, rates: Rates) -> float:
    """Cycles of one stream per iteration, over the code that every iteration passes."""
    return stream_cycles(_steps(code, rates), rates)


def _steps(code: Code, rates: Rates) -> list[Step]:
    triples = zip(code.instructions, code.matrix, code.weights, strict=True)
    return [Step(i, _tensor_cycles(m, rates) if m else 0.0) for i, m, w in triples if w == 1]


def _busy(code: Code, rates: Rates) -> defaultdict[str, float]:
    """Cycles per iteration for which all streams together occupy each unit of one SM."""
    busy = defaultdict[str, float](float)
    for i, m, w in zip(code.instructions, code.matrix, code.weights, strict=True):
        busy["issue"] += w * code.streams
        if m is None:
            busy[unit_of(i)] += w * code.streams * pipe_cycles(i, rates)
        else:
            times = w * (code.streams if m.warps else 1.0)
            busy["tensor"] += times * _tensor_cycles(m, rates)
            busy["shared"] += times * (m.a_bytes + m.b_bytes) / SHARED_BYTES
    for unit in ("other", "branch", "uniform", "tma", "global"):
        busy.pop(unit, None)  # these take issue slots; their own queues are never the limit
    return busy


def _add(busy: defaultdict[str, float], more: Mapping[str, float], times: float) -> None:
    for unit, cycles in more.items():
        busy[unit] += cycles * times


def _tensor_cycles(m: Matrix, rates: Rates) -> float:
    """How long one matrix instruction keeps the tensor core, operands included."""
    if m.warps == 1:
        return m.fma16 * STREAM_WARPS / rates.legacy_fma
    lanes = max(1.0, TCGEN05_LANES / m.m) if m.warps == 0 and m.ctas == 1 else 1.0
    return max(m.fma16 * lanes / rates.matrix_fma, (m.a_bytes + m.b_bytes) / SHARED_BYTES)


def _moved(code: Code) -> float:
    lanes = 32 * STREAM_WARPS * code.streams
    pairs = zip(code.instructions, code.weights, strict=True)
    return sum(global_bytes(i) * w for i, w in pairs) * lanes + code.tma_bytes


def _everything(kernel: Kernel, streams: float) -> Code:
    blocks = range(len(kernel.blocks))
    return code_of(kernel, blocks, frozenset(blocks), streams)
