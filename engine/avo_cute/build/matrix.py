"""Matrix instructions: their shapes, and the constants that shapes are encoded in.

Warp- and warpgroup-level instructions name their shape (`HMMA.16816`, `HGMMA.64x128x16`); tcgen05
takes it from an instruction descriptor in a register, whose value is followed back to the
immediate it was built from (PTX ISA, "tcgen05 instruction descriptor", `.kind::f16`: bits 17-22
are N >> 3, bits 24-28 are M >> 4).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from .sass import Instruction, Kernel

K_BYTES = 32  # every kind takes 32 bytes of K a step: 16 x bf16, 32 x fp8, 8 x tf32
_HOPS = 8  # moves between registers that a constant is followed through
_REACH = 20_000  # instructions looked at for each


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix instruction: M x N x K per group of `ctas` CTAs (2 for `.2CTA`).

    `warps` issue it together: 1, 4 (warpgroup), 0 for tcgen05 (one thread on behalf of the CTA).
    `fresh`: it overwrites its accumulator; `carried`: whether it does is decided at run time.
    """

    m: int
    n: int
    k: int
    ctas: int
    warps: int
    a_in_shared: bool
    fresh: bool
    carried: bool

    @property
    def fma(self) -> float:
        """Multiply-adds in one CTA."""
        return self.m * self.n * self.k / self.ctas

    @property
    def fma16(self) -> float:
        """Multiply-adds of the 16-bit instruction that keeps the tensor core as long."""
        return self.m * self.n * (K_BYTES / 2) / self.ctas

    @property
    def b_bytes(self) -> float:
        """Bytes of B that one CTA's tensor core reads from shared memory."""
        return 0.0 if self.warps == 1 else self.n * K_BYTES / self.ctas

    @property
    def a_bytes(self) -> float:
        """Likewise of A."""
        return self.m * K_BYTES / self.ctas if self.a_in_shared else 0.0


def matrix_of(kernel: Kernel, block: int, index: int) -> Matrix | None:
    """The matrix instruction at `kernel.instructions[index]` of `block`; None if it is none.

    A tcgen05 instruction whose descriptor is no constant counts as 128 x 128, the common tile.
    """
    i = kernel.instructions[index]
    if i.name.endswith("GMMA"):
        return _warpgroup(i)
    if re.fullmatch(r"UTC\w*MMA", i.name):
        return _tcgen05(kernel, block, index)
    if i.name in ("HMMA", "QMMA", "IMMA", "OMMA"):
        return _warp(i)
    return None


def constant(kernel: Kernel, block: int, index: int, register: str) -> int | None:
    """The 32-bit value `register` holds at an instruction, where it comes from an immediate.

    Follows the dominating blocks only: a value that another path may replace is taken as it is
    there, which is right for descriptors and sizes, set up once.
    """
    for _ in range(_HOPS):
        found = _definition(kernel, block, index, register)
        if found is None:
            return None
        block, index = found
        value = _value(kernel.instructions[index])
        if isinstance(value, int):
            return value
        if value is None:
            return None
        register = value
    return None


def descriptor_shape(idesc: int) -> tuple[int, int]:
    """(M, N) of a tcgen05 instruction descriptor."""
    return (idesc >> 24 & 0x1F) << 4, (idesc >> 17 & 0x3F) << 3


def _warpgroup(i: Instruction) -> Matrix | None:
    shape = re.search(r"(\d+)x(\d+)x(\d+)", i.opcode)
    if shape is None:
        return None
    m, n, k = (int(s) for s in shape.groups())
    words = [w.strip() for w in i.operands.split(",")]
    in_shared = len(words) > 1 and words[1].startswith("gdesc")
    return Matrix(m, n, k, 1, 4, in_shared, "RZ" in words[2:3], words[-1].startswith("UP"))


def _tcgen05(kernel: Kernel, block: int, index: int) -> Matrix:
    i = kernel.instructions[index]
    found = re.search(r"idesc\[(\w+)\]", i.operands)
    idesc = constant(kernel, block, index, found.group(1)) if found else None
    m, n = descriptor_shape(idesc) if idesc is not None else (0, 0)
    ctas = 2 if ".2CTA" in i.opcode else 1
    words = [w.strip() for w in i.operands.split(",")]
    flag = next((w for w in reversed(words) if re.fullmatch(r"!?UP[T\d]", w)), "UPT")
    fresh = flag == "!UPT"
    carried = not fresh and flag != "UPT"
    in_shared = words[0].startswith("gdesc")
    k = {"UTCQMMA": 32, "UTCOMMA": 64}.get(i.name, 16)
    return Matrix(m or 128 * ctas, n or 128, k, ctas, 0, in_shared, fresh, carried)


def _warp(i: Instruction) -> Matrix | None:
    shape = re.search(r"\.(\d{3,6})(?=\.|$)", i.opcode)
    if shape is None:
        return None
    digits = shape.group(1)
    m, n, k = int(digits[:2]), int(digits[2]), int(digits[3:] or "8")
    return Matrix(m, n, k, 1, 1, False, i.operands.rstrip().endswith("RZ"), False)


def _definition(kernel: Kernel, block: int, index: int, register: str) -> tuple[int, int] | None:
    for b, n in islice(_backwards(kernel, block, index), _REACH):
        written = kernel.instructions[n].operands.partition(",")[0].strip()
        if written == register and not kernel.instructions[n].name.startswith("ST"):
            return b, n
    return None


def _backwards(kernel: Kernel, block: int, index: int) -> Iterator[tuple[int, int]]:
    while block >= 0:
        b = kernel.blocks[block]
        yield from ((block, n) for n in range(min(index, b.stop) - 1, b.start - 1, -1))
        block, index = b.dominator, len(kernel.instructions)


def _value(i: Instruction) -> int | str | None:
    """An immediate, the register a plain move copies, or None."""
    words = [w.strip().removesuffix(".reuse") for w in i.operands.split(",")]
    if i.name == "HFMA2" and words[1:3] in (["-RZ", "RZ"], ["RZ", "RZ"]):
        return _halves(words[3:5])
    moves = ("MOV", "UMOV", "R2UR", "IMAD", "CS2R")
    if i.name not in moves or (i.name == "IMAD" and words[1:3] != ["RZ", "RZ"]):
        return None
    source = words[-1]
    if re.fullmatch(r"0x[0-9a-f]+|\d+", source):
        return int(source, 0)
    if re.fullmatch(r"U?R\d+", source):
        return source
    return 0 if source in ("RZ", "URZ", "SRZ") else None


def _halves(words: list[str]) -> int | None:
    """`HFMA2 R, -RZ, RZ, high, low` is a move whose immediate is printed as two half floats."""
    try:
        high, low = (struct.unpack("<H", struct.pack("<e", float(w)))[0] for w in words)
    except (ValueError, OverflowError, struct.error):
        return None
    return int(high) << 16 | int(low)
