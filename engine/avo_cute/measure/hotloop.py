"""The loops in which a kernel spends its time, as text for an operator; from SASS alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from ..build.roles import Code, hot_loops
from ..build.sass import Instruction, Kernel
from ..build.units import UNITS, unit_of
from ..records import Launch

_LOOPS = 5  # listed at most


def describe_loops(kernels: Sequence[Kernel], launch: Launch, room: int) -> str:
    """The hot loops of the launched kernel in at most `room` bytes.

    A line per loop with its instructions by unit, then the order of events in the one with most
    matrix instructions (most instructions, where none has any).
    """
    kernel = next((k for k in kernels if k.name == launch.kernel), None)
    if kernel is None:
        return _cut([f"SASS: no kernel {launch.kernel} in the object"], room)
    roles = hot_loops(kernel, launch)
    loops = sorted(
        ((role, code) for role, codes in roles.items() for code in codes),
        key=lambda entry: _weight(entry[1].instructions),
        reverse=True,
    )
    lines = [f"SASS of {kernel.name[:80]}: {len(kernel.instructions)} instructions"]
    lines += [_summary(role, code) for role, code in loops[:_LOOPS]]
    chosen = loops[0][1].instructions if loops else kernel.instructions
    what = "the first of these loops" if loops else "it has no loop; all of it"
    lines.append(f"{what}, in order:")
    return _cut([*lines, *_runs(chosen)], room)


def _weight(instructions: Sequence[Instruction]) -> tuple[int, int]:
    matrix = sum(unit_of(i) == "tensor" for i in instructions)
    return matrix, len(instructions)


def _summary(role: int | None, code: Code) -> str:
    mix = Counter(unit_of(i) for i in code.instructions)
    parts = ", ".join(f"{unit} {mix[unit]}" for unit in UNITS if mix[unit])
    who = f" ({role} registers, {4 * code.streams:g} warps)" if role else ""
    where = code.instructions[0].address
    return f"loop at {where:#x}{who}: {len(code.instructions)} instructions: {parts}"


# What an order of events is made of; arithmetic between them is counted, bookkeeping left out.
_SHOWN_UNITS = frozenset({"tensor", "tma", "tmem", "local", "global"})
_SHOWN_NAMES = frozenset({"BAR", "SYNCS", "WARPGROUP", "FENCE", "MEMBAR", "DEPBAR", "USETMAXREG"})
_BOOKKEEPING = frozenset({"uniform", "branch", "other"})


def _runs(instructions: Iterable[Instruction]) -> Iterator[str]:
    """A line for each run of the same event, and for each stretch of arithmetic between two."""
    listed = (i for i in instructions if _event(i) or unit_of(i) not in _BOOKKEEPING)
    for event, group in groupby(listed, key=_event):
        run = list(group)
        if event:
            said = event if len(run) == 1 else f"{event} x {len(run)}"
        else:
            mix = Counter(unit_of(i) for i in run)
            said = "  " + ", ".join(f"{unit} {mix[unit]}" for unit in UNITS if mix[unit])
        yield f"  {run[0].address:#06x} {said}"


def _event(i: Instruction) -> str:
    """The opcode of what is shown by name, else an empty string."""
    shown = unit_of(i) in _SHOWN_UNITS or i.name in _SHOWN_NAMES or i.name.startswith("UTC")
    return f"{i.predicate} {i.opcode}".lstrip() if shown else ""


def _cut(lines: Sequence[str], room: int) -> str:
    """As many lines as fit; the last one says how many did not."""
    kept: list[str] = []
    used = 0
    for n, line in enumerate(lines):
        left = f"  … {len(lines) - n} more lines"
        size = len(line.encode()) + 1
        last = n + 1 == len(lines)
        if used + size + (0 if last else len(left.encode()) + 8) > room:
            kept.append(left)
            break
        kept.append(line)
        used += size
    return "\n".join(kept)
