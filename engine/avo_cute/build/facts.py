"""Facts: what one object's cubin says about itself, for the audit, operators and trailers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256

from ..records import Facts, Failure
from .elf import CubinFile, read_cubin
from .matrix import constant
from .roles import budget
from .sass import Instruction, Kernel
from .timeline import waits
from .units import UNITS, unit_of

TMEM_ALLOCATION = 32  # columns per unit that tcgen05.alloc counts in (PTX ISA: at least 32)


def facts(cubin: bytes, kernels: Sequence[Kernel]) -> Facts:
    """The facts of a cubin whose kernels `disassemble` returned.

    Counts are over all kernels, sizes are those of the kernel that needs most.
    """
    file = _read(cubin)
    listed = [i for k in kernels for i in k.instructions]
    names = Counter(i.name for i in listed)
    mix = Counter(unit_of(i) for i in listed)
    return Facts(
        arch=file.arch,
        cubin_sha256=sha256(cubin).hexdigest(),
        kernels=tuple(k.name for k in kernels),
        registers=max((k.registers for k in file.kernels), default=0),
        register_roles=register_roles(listed),
        spill_loads=names["LDL"],
        spill_stores=names["STL"],
        local_bytes=max((k.local_bytes for k in file.kernels), default=0),
        static_smem=max((k.static_smem for k in file.kernels), default=0),
        tmem_columns=max((tmem_columns_of(k) for k in kernels), default=0),
        barrier_waits=sum(waits(i) and i.name in ("SYNCS", "BAR") for i in listed),
        fences=names["FENCE"] + names["MEMBAR"],
        instructions=len(listed),
        mix={unit: mix[unit] for unit in UNITS if mix[unit]},
    )


def register_roles(instructions: Sequence[Instruction]) -> tuple[int, ...]:
    """Distinct `setmaxnreg` values in order of appearance."""
    return tuple(dict.fromkeys(budget(i) for i in instructions if i.name == "USETMAXREG"))


def tmem_columns_of(kernel: Kernel) -> int:
    """Columns of tensor memory the kernel allocates, 0 where the count is no constant.

    tcgen05.alloc becomes a search for free units of 32 columns; how many is its last operand.
    """
    found = (constant(kernel, b, n, register) for b, n, register in _allocations(kernel))
    return TMEM_ALLOCATION * max((units or 0 for units in found), default=0)


def _allocations(kernel: Kernel) -> Iterator[tuple[int, int, str]]:
    for b, block in enumerate(kernel.blocks):
        for n in range(block.start, block.stop):
            i = kernel.instructions[n]
            if i.opcode.startswith("UTCATOMSWS") and "FIND_AND_SET" in i.opcode:
                yield b, n, i.operands.split(",")[-1].strip()


def _read(cubin: bytes) -> CubinFile:
    file = read_cubin(cubin)
    if isinstance(file, Failure):
        raise ValueError(f"facts of a cubin that cannot be read: {file.reason}")
    return file
