"""Registers that the warps of a block ask for together (`setmaxnreg`), as far as it is certain.

A block gets its registers when it is launched; a warpgroup that asks for more waits until others
have given some back (PTX ISA, "setmaxnreg"), for ever if there never are enough. Which role a warp
takes depends on its number, so the code before the first USETMAXREG is followed once for each warp,
with the index of its first thread known. Whatever else decides a branch is unknown: both ways count
and the smaller budget is taken, so that the sum is never too large.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from math import prod

from ..records import Launch
from .roles import budget
from .sass import Instruction, Kernel

WARP = 32
State = dict[str, int]  # registers and predicates with a known value

_COMPARE = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "GT": operator.gt,
    "GE": operator.ge,
    "LT": operator.lt,
    "LE": operator.le,
}
_REGISTER = re.compile(r"(U?R)(\d+)")
_PREDICATE = re.compile(r"\bU?P\d\b")
# These write one register, or two or four as "64", "128" and "WIDE" say, and predicates.
_NARROW = frozenset(
    "S2R S2UR CS2R MOV UMOV R2UR IMAD UIMAD IADD3 UIADD3 VIADD LEA ULEA SHF USHF LOP3 ULOP3 SEL "
    "USEL PRMT UPRMT LDC ULDC LDCU ISETP UISETP PLOP3 UPLOP3 SHFL SYNCS ELECT VOTE VOTEU "
    "VIADDMNMX VIMNMX I2FP I2F F2I FMUL FADD FFMA MUFU".split()
)
_PREDICATES_ONLY = frozenset("ISETP UISETP PLOP3 UPLOP3".split())
_SILENT = frozenset(  # write none
    "NOP BAR FENCE MEMBAR UTMACCTL BRA BRX BRXU EXIT BSSY BSYNC WARPSYNC DEPBAR NANOSLEEP STS "
    "UCGABAR_ARV UCGABAR_WAIT ERRBAR CCTL USETMAXREG ACQBULK PREEXIT".split()
)


def registers_asked(kernel: Kernel, launch: Launch) -> int:
    """Registers that the block holds at least, once each warp has set its budget; a warp that may
    end without setting one counts as none."""
    warps = -(-prod(launch.block) // WARP)
    if not any(i.name == "USETMAXREG" for i in kernel.instructions):
        return 0
    return sum(WARP * _least(kernel, launch, w) for w in range(warps))


def _least(kernel: Kernel, launch: Launch, warp: int) -> int:
    """The smallest budget that the warp may be the first to set; 0 if it may set none."""
    x, y, _ = launch.block
    first = warp * WARP
    thread = {"SR_TID.X": first % x, "SR_TID.Y": first // x % y, "SR_TID.Z": first // (x * y)}
    before: dict[int, State] = {0: {}}
    waiting, found = [0], set()
    while waiting:
        block = waiting.pop()
        state = dict(before[block])
        ends, following = _follow(kernel, block, state, thread)
        found |= ends
        for n in following:
            old = before.get(n)
            known = state if old is None else {k: v for k, v in old.items() if state.get(k) == v}
            if old is None or known != old:
                before[n] = dict(known)
                waiting.append(n)
    return min(found, default=0)


def _follow(
    kernel: Kernel, block: int, state: State, thread: dict[str, int]
) -> tuple[set[int], Iterable[int]]:
    """(budgets at which the warp may stop in this block, blocks that it may go on to)."""
    ends: set[int] = set()
    successors = kernel.blocks[block].successors
    for i in kernel.body(block):
        taken = _guard(i, state)
        if i.name == "USETMAXREG" and taken is not False:
            return ends | {budget(i)}, ()
        if i.name in ("EXIT", "RET", "KILL") and taken is not False:
            ends.add(0)
            if taken:
                return ends, ()
        if i.name == "BRA" and taken is not None and len(successors) == 2:
            return ends, successors[int(taken) : int(taken) + 1]
        _step(i, state, thread, taken)
    return ends, successors


def _guard(i: Instruction, state: State) -> bool | None:
    """Whether the instruction happens; None where that is unknown."""
    guards = [i.predicate.lstrip("@")] if i.predicate else []
    if i.name == "BRA":
        guards += [w for w in _operands(i) if re.fullmatch(r"!?U?P[\dT]", w)]
    values = [_value(g, state) for g in guards]
    if 0 in values:
        return False
    return None if None in values else True


def _step(i: Instruction, state: State, thread: dict[str, int], taken: bool | None) -> None:
    """What is known after the instruction."""
    if taken is False or i.name in _SILENT:
        return
    result = _result(i, state, thread) if taken else None
    _forget(i, state)
    if result is not None:
        state[result[0]] = result[1]


def _result(i: Instruction, state: State, thread: dict[str, int]) -> tuple[str, int] | None:
    """The register or predicate that is written and its value, where we can tell."""
    match i.name, _operands(i):
        case (("S2R" | "S2UR"), [to, source]) if source in thread:
            return to, thread[source]
        case (("MOV" | "UMOV" | "R2UR"), [to, source]):
            value = _value(source, state)
        case "IMAD", [to, "RZ", "RZ", source] if ".MOV" in i.opcode:
            value = _value(source, state)
        case "SHFL", ["PT", to, source, "RZ" | "0x0", "0x1f"] if ".IDX" in i.opcode:
            value = _value(source, state)  # of lane 0, whose values these are
        case (("SHF" | "USHF"), [to, "RZ" | "URZ", by, source]) if ".R.U32.HI" in i.opcode:
            value, amount = _value(source, state), _value(by, state)
            value = None if value is None or amount is None else value >> amount
        case (("LOP3" | "ULOP3"), [to, one, mask, "RZ" | "URZ", "0xc0", "!PT" | "!UPT"]):
            value, immediate = _value(one, state), re.fullmatch(r"0x[0-9a-f]+", mask)
            value = None if value is None or immediate is None else value & int(mask, 16)
        case (("ISETP" | "UISETP"), [to, _, *rest]):
            value = _compared(i, [_value(w, state) for w in rest])
        case (("PLOP3" | "UPLOP3"), [to, _, a, b, c, table, _]):
            bits = [_value(w, state) for w in (a, b, c)]
            index = None if None in bits else int("".join(map(str, bits)), 2)
            value = None if index is None else int(table, 16) >> index & 1
        case _:
            return None
    return None if value is None else (to, value)


def _compared(i: Instruction, values: list[int | None]) -> int | None:
    """One comparison of numbers that are small, joined with a predicate by AND."""
    parts = i.opcode.split(".")
    if len(values) != 3 or parts[1] not in _COMPARE or parts[-1] != "AND":
        return None
    one, other, also = values
    if one is None or other is None or also is None:
        return None
    return int(_COMPARE[parts[1]](one, other) and bool(also))


def _value(word: str, state: State) -> int | None:
    if word.startswith("!"):
        value = _value(word[1:], state)
        return None if value is None else 1 - value
    if word in ("RZ", "URZ"):
        return 0
    if word in ("PT", "UPT"):
        return 1
    if re.fullmatch(r"0x[0-9a-f]{1,7}", word):
        return int(word, 16)
    return state.get(word)


def _forget(i: Instruction, state: State) -> None:
    """Drop everything that the instruction may write: all that is known, if it is a strange one."""
    if i.name not in _NARROW:
        state.clear()
        return
    wide = 4 if "128" in i.opcode else 2 if "64" in i.opcode or "WIDE" in i.opcode else 1
    named = (w for w in _operands(i) if not re.fullmatch(r"U?P[\dT]", w))
    found = _REGISTER.fullmatch(next(named, ""))
    if found and i.name not in _PREDICATES_ONLY:
        for n in range(wide):
            state.pop(f"{found[1]}{int(found[2]) + n}", None)
    for name in _PREDICATE.findall(i.operands):
        state.pop(name, None)


def _operands(i: Instruction) -> list[str]:
    return [w.strip() for w in i.operands.split(",")]
