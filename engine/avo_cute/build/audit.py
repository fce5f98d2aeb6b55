"""The audit: may this object be linked, launched and timed? Judged from bytes, without a GPU.

`audit` returns every rule that is broken with the line that says why; no violation means that
the object is built like one whose source was not meant to deceive. `signals` and
`unchecked_descriptors` are worth a look and decide nothing. That a symbol or a section is absent
proves little about what code does; that a new one is present is always refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod

from ..records import Facts, Launch, Target
from ..task import AuditLimits
from .budgets import WARP, registers_asked
from .elf import CubinFile, ObjectFile
from .launch import DESTRUCTOR, ENTRY
from .matrix import constant
from .sass import Instruction, Kernel
from .sections import UNDEFINED, Section

MAX_THREADS = 1024
REGISTERS = 65_536  # of an SM, and so of a block
# CTAs in the largest cluster: 16 where a kernel allows more than the portable 8 (CUDA C++
# programming guide, thread block clusters; H100 and Blackwell tuning guides).
MAX_CLUSTER = {"sm90": 16, "sm100": 16, "sm120": 8}
_CLUSTER, _PDL = 4, (6, 7)  # cudaLaunchAttributeID
_FORMATS = {7: 1, 10: 1, 4: 1}  # first bit -> value: A and B bf16, D fp32 (PTX ISA, kind::f16)
_CLOCKS = re.compile(r"\bSR_(?:\w*CLOCK|\w*TIMER|PM\d)\w*")
_INTERNAL = "__cute_internal_kernel_"

# Every function that an unmodified build imports, and no other.
KNOWN_IMPORTS = frozenset(
    {
        "_GLOBAL_OFFSET_TABLE_",  # not a function: the linker's own
        "_cudaLibraryLoadData",  # loading the cubin, once
        "_cudaLibraryGetKernel",
        "_cuKernelGetAttribute",  # its static shared memory …
        "_cudaGetDevice",
        "_cudaSetDevice",
        "_cudaDeviceGetAttribute",  # … and the device's limit decide the dynamic maximum
        "_cudaFuncSetAttribute",
        "_cudaKernelSetAttributeForDevice",
        "_cudaLaunchKernelEx",  # the launch
        "cuda_dialect_init_library_once",  # the DSL's load and unload
        "cuda_dialect_unload_library_once",
        "TVMFFIEnvGetStream",  # the caller's stream
        "TVMFFIErrorSetRaisedFromCStr",  # refusing wrong arguments
        "TVMFFIErrorSetRaisedFromCStrParts",
        "CuteDSLRT_TVMFFISetRaisedCudaError",
    }
)

# name -> (sh_type, sh_flags, size where it is always the same); the large code model's names.
_SECTIONS: dict[str, tuple[int, int, int | None]] = {
    "": (0, 0, 0),
    ".strtab": (3, 0, None),
    ".symtab": (2, 0, None),
    ".text": (1, 0x6, 0),
    ".ltext": (1, 0x1000_0006, None),
    ".rela.ltext": (4, 0x40, None),
    ".lrodata": (1, 0x1000_0002, None),
    ".lbss": (8, 0x1000_0003, None),  # the handles of library and kernels
    ".fini_array": (15, 0x3, 8),  # unloads the library
    ".rela.fini_array": (4, 0x40, 24),
    ".note.GNU-stack": (1, 0, 0),
    ".eh_frame": (0x7000_0001, 0x2, None),
    ".rela.eh_frame": (4, 0x40, None),
}
_CONSTANTS = {f".rodata.cst{n}": (1, 0x12, None) for n in (4, 8, 16)}  # as the code needs them
_AVX_CONSTANTS = {".rodata.cst32", ".rodata.cst64"}


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, and the line that says how."""

    rule: str
    line: str


def audit(
    obj: ObjectFile,
    cubin: CubinFile,
    kernels: Sequence[Kernel],
    launches: Sequence[Launch],
    limits: AuditLimits,
    target: Target,
) -> tuple[Violation, ...]:
    """Every rule that the object breaks; empty for one that may be measured.

    `cubin` and `kernels` are `obj.cubin` read and disassembled, `launches` those of one workload.
    """
    return (
        *_sections(obj, 8 + 8 * limits.kernels),
        *_symbols(obj),
        *_device(cubin, limits, target),
        *_instructions(kernels, limits, target),
        *_launches(cubin, launches, limits, target),
        *_registers(cubin, kernels, launches),
    )


def signals(candidate: Facts, incumbent: Facts) -> tuple[str, ...]:
    """What a reviewer should look at in a candidate that passed: synchronisation gone, spills."""
    found = []
    for name, before, after in (
        ("barrier waits", incumbent.barrier_waits, candidate.barrier_waits),
        ("fences", incumbent.fences, candidate.fences),
    ):
        if after < before:
            found.append(f"fewer {name} than the incumbent: {after} instead of {before}")
    if spills := candidate.spills:
        before = incumbent.spills
        found.append(f"spills: {spills} local-memory instructions (incumbent: {before})")
    return tuple(found)


def unchecked_descriptors(kernels: Sequence[Kernel]) -> tuple[str, ...]:
    """Signals for tcgen05 16-bit instructions whose descriptor is no constant we can recover."""
    return tuple(
        f"{kernel.name[:60]}: the formats of {i.opcode} at {i.address:#x} could not be recovered"
        for kernel in kernels
        for i, value in _descriptors(kernel)
        if value is None
    )


def _sections(obj: ObjectFile, handles: int) -> Iterator[Violation]:
    """`handles` is the size of .lbss: one word for the library and one for each kernel."""
    counts = Counter(section.name for section in obj.sections)
    for name in sorted(_SECTIONS.keys() - counts.keys()):
        yield Violation("sections", f"the section {name} of an unmodified build is missing")
    for section in obj.sections:
        if section.name in _AVX_CONSTANTS:
            yield Violation("host-cpu", "host code is not built for x86-64-v2 (it has AVX data)")
        elif counts[section.name] > 1 or not _known(section, handles):
            yield Violation(
                "sections",
                f"section {section.name[:60]!r} (type {section.kind:#x}, flags {section.flags:#x}, "
                f"{section.size} bytes) is not in an unmodified build",
            )
    yield from _destructor(obj)


def _known(section: Section, handles: int) -> bool:
    expected = {**_SECTIONS, **_CONSTANTS}.get(section.name)
    if expected is None:
        return False
    kind, flags, size = expected
    if section.name == ".lbss":
        size = handles
    return (section.kind, section.flags) == (kind, flags) and size in (None, section.size)


def _destructor(obj: ObjectFile) -> Iterator[Violation]:
    """The one .fini_array entry must point at the DSL's own unload function."""
    known = [(s.section, s.value) for s in obj.defined(DESTRUCTOR)]
    entries = [r for r in obj.relocations if obj.sections[r.section].name == ".fini_array"]
    for r in entries:
        symbol = obj.symbols[r.symbol]
        if [(symbol.section, symbol.value + r.addend)] != known or r.offset or r.kind != 1:
            yield Violation("destructor", f"a .fini_array entry is not {DESTRUCTOR}")
    if len(entries) != 1:
        yield Violation("destructor", f"{len(entries)} .fini_array entries, expected one")


def _symbols(obj: ObjectFile) -> Iterator[Violation]:
    for name in sorted(set(obj.imports) - KNOWN_IMPORTS):
        yield Violation("imports", f"undefined symbol {name[:80]!r} is not in an unmodified build")
    if (count := len(obj.defined(ENTRY))) != 1:
        yield Violation("symbols", f"{count} definitions of {ENTRY}, expected one")
    for symbol in obj.symbols:
        own = symbol.local or symbol.name == ENTRY or symbol.name.startswith(_INTERNAL)
        if symbol.section != UNDEFINED and not own:
            yield Violation("symbols", f"the object defines {symbol.name[:80]!r} for others")


def _device(cubin: CubinFile, limits: AuditLimits, target: Target) -> Iterator[Violation]:
    if cubin.arch != target.arch:
        yield Violation("arch", f"the cubin is for {cubin.arch}, expected {target.arch}")
    if (count := len(cubin.kernels)) != limits.kernels:
        yield Violation("kernels", f"{count} kernels in the cubin, expected {limits.kernels}")
    if cubin.variables:
        names = ", ".join(cubin.variables)[:120]
        yield Violation("device-global", f"device variables keep state between launches: {names}")
    for name in cubin.imports:
        yield Violation("device-call", f"device code calls {name[:80]!r}, which is not its own")


def _instructions(
    kernels: Sequence[Kernel], limits: AuditLimits, target: Target
) -> Iterator[Violation]:
    """At most one line for each opcode or register, at its first place."""
    allowed = limits.matrix.get(target.family, ())
    seen: dict[tuple[str, str], str] = {}
    for kernel in kernels:
        for i in kernel.instructions:
            place = f"at {i.address:#x} of {kernel.name[:60]}"
            for clock in _CLOCKS.findall(i.operands):
                seen.setdefault(("clock", clock), f"{i.opcode} reads {clock} {place}")
            matrix = "MMA" in i.opcode.partition(".")[0]
            if matrix and not any(fnmatchcase(i.opcode, f"{a}*") for a in allowed):
                says = ", ".join(allowed) or "none"
                line = f"matrix instruction {i.opcode} {place} (declared: {says})"
                seen.setdefault(("matrix", i.opcode), line)
        for i, value in _descriptors(kernel):
            if value is not None and any(value >> at & 3 != n for at, n in _FORMATS.items()):
                line = f"{i.opcode} at {i.address:#x} is not bf16 in, fp32 out (idesc {value:#x})"
                seen.setdefault(("matrix", hex(value)), line)
    yield from (Violation(rule, line) for (rule, _), line in seen.items())


def _descriptors(kernel: Kernel) -> Iterator[tuple[Instruction, int | None]]:
    """Every tcgen05 16-bit matrix instruction with its instruction descriptor, if constant."""
    for number, block in enumerate(kernel.blocks):
        for index in range(block.start, block.stop):
            i = kernel.instructions[index]
            if i.name == "UTCHMMA":
                found = re.search(r"idesc\[(\w+)\]", i.operands)
                yield i, constant(kernel, number, index, found[1]) if found else None


def _launches(
    cubin: CubinFile, launches: Sequence[Launch], limits: AuditLimits, target: Target
) -> Iterator[Violation]:
    if len(launches) != limits.launches:
        yield Violation("launches", f"{len(launches)} launches a call, expected {limits.launches}")
    known = {kernel.name: kernel for kernel in cubin.kernels}
    for launch in launches:
        kernel = known.get(launch.kernel)
        if kernel is None:
            yield Violation("launch", f"kernel {launch.kernel[:80]!r} is not in the cubin")
            continue
        if launch.pdl and not limits.pdl:
            yield Violation("pdl", "programmatic dependent launch is not allowed by the task")
        extra = set(launch.attributes) - {_CLUSTER, *_PDL}
        if extra:
            yield Violation("launch", f"launch attributes {sorted(extra)} are not allowed")
        threads, smem = prod(launch.block), launch.smem_bytes + kernel.static_smem
        if not 0 < threads <= MAX_THREADS or kernel.block not in ((), launch.block):
            wants = kernel.block or f"≤ {MAX_THREADS} threads"
            yield Violation("block", f"block {launch.block} cannot be launched (kernel: {wants})")
        ctas, most = prod(launch.cluster), MAX_CLUSTER[target.family]
        if ctas > most:
            yield Violation("launch", f"a cluster of {ctas} CTAs, {target.title} allows {most}")
        pairs = zip(launch.grid, launch.cluster, strict=True)
        if not prod(launch.grid) or any(c == 0 or g % c for g, c in pairs):
            yield Violation("grid", f"grid {launch.grid} in clusters of {launch.cluster}")
        if smem > target.smem_bytes:
            line = f"{smem} bytes of shared memory, {target.title} has {target.smem_bytes}"
            yield Violation("shared-memory", line)


def _registers(
    cubin: CubinFile, kernels: Sequence[Kernel], launches: Sequence[Launch]
) -> Iterator[Violation]:
    """A block's registers must fit an SM, and its warps must not wait for more than it has."""
    sizes = {kernel.name: kernel.registers for kernel in cubin.kernels}
    code = {kernel.name: kernel for kernel in kernels}
    for launch in launches:
        if launch.kernel not in sizes:
            continue
        warps = -(-prod(launch.block) // WARP)
        given = warps * WARP * (-(-sizes[launch.kernel] // 8) * 8)  # in units of 8 a thread
        if given > REGISTERS:
            yield Violation("registers", f"a block needs {given} registers, an SM has {REGISTERS}")
        elif launch.kernel in code:
            asked = registers_asked(code[launch.kernel], launch)
            if asked > given:
                line = f"the warps of a block ask for {asked} registers in all and have {given}"
                yield Violation("registers", f"{line}: they would wait for ever")
