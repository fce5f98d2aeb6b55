"""Objects and cubins as bytes: what they hold, believing nothing they say without a check.

    relocatable object ── .lrodata ── kernels_binary (a fatbin with one entry) ── cubin
                      └─ .ltext, .fini_array, … (host code)

Bytes that do not fit are a `Failure`, whatever they are: truncated, flipped, an archive, a text.
The layout of a fatbin and of .nv.info records has no public specification; the fields read here
were compared with what cuobjdump prints.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..records import Failure, Status
from .sections import UNDEFINED, Elf, Malformed, Relocation, Section, Symbol, parse

_ELF_MAGIC, _FATBIN_MAGIC = b"\x7fELF", b"\x50\xed\x55\xba"
_HOST, _CUBIN = (1, 62), (2, 190)  # e_type and e_machine: relocatable x86-64, executable CUDA
_FATBIN_ELF, _FATBIN_COMPRESSIONS = 2, 0xA000  # entry kind; LZ4 and zstd in its flags
_RESERVED_SMEM = 1024  # from sm_90 on a block's shared memory starts with the system's own part
_REGCOUNT, _FRAME_SIZE, _KPARAM, _REQNTID = 0x2F, 0x11, 0x17, 0x10  # EIATTR_… of .nv.info


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """A relocatable x86-64 ELF object with exactly one cubin in it and nothing after its end.

    `binary` is the index of the symbol of the fatbin around the cubin.
    """

    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]
    binary: int
    cubin: bytes

    @property
    def imports(self) -> tuple[str, ...]:
        """Names of the undefined symbols, sorted."""
        return tuple(sorted({s.name for s in self.symbols if s.section == UNDEFINED and s.name}))

    def defined(self, name: str) -> tuple[Symbol, ...]:
        """Every symbol of that name that has a place in this object."""
        return tuple(s for s in self.symbols if s.name == name and s.section != UNDEFINED)


@dataclass(frozen=True, slots=True)
class CubinKernel:
    """One kernel as its cubin describes it. Sizes in bytes; `block` is () where any will do."""

    name: str
    registers: int
    static_smem: int
    local_bytes: int
    parameters: tuple[int, ...]  # sizes, in order
    block: tuple[int, ...]  # the block size it demands


@dataclass(frozen=True, slots=True)
class CubinFile:
    """A cubin. `arch` is what ptxas was asked for, e.g. "sm_100a", where the header agrees."""

    arch: str
    kernels: tuple[CubinKernel, ...]
    sections: tuple[str, ...]
    imports: tuple[str, ...]  # device functions it needs from elsewhere, e.g. vprintf
    variables: tuple[str, ...]  # objects in .nv.global*, and these sections' own names


def read_object(data: bytes) -> ObjectFile | Failure:
    """Read a host object; never raises on account of the bytes."""
    try:
        elf = _parse(data, _HOST)
        return ObjectFile(elf.sections, elf.symbols, elf.relocations, *_only_cubin(data, elf))
    except (Malformed, struct.error) as error:
        return Failure(Status.AUDIT_FAILED, f"object: {error}")


def read_cubin(data: bytes) -> CubinFile | Failure:
    """Read a cubin; never raises on account of the bytes."""
    try:
        elf = _parse(data, _CUBIN)
        return CubinFile(
            _arch(elf),
            tuple(_kernels(elf)),
            tuple(s.name for s in elf.sections),
            tuple(s.name for s in elf.symbols if s.section == UNDEFINED and s.kind == "FUNC"),
            tuple(_variables(elf)),
        )
    except (Malformed, struct.error) as error:
        return Failure(Status.AUDIT_FAILED, f"cubin: {error}")


def _parse(data: bytes, expected: tuple[int, int]) -> Elf:
    elf = parse(data)
    if (elf.kind, elf.machine) != expected:
        raise Malformed(f"e_type {elf.kind} for machine {elf.machine}, expected {expected}")
    if elf.end != len(data):
        raise Malformed(f"{len(data) - elf.end} bytes after the end of the ELF file")
    return elf


def _only_cubin(data: bytes, elf: Elf) -> tuple[int, bytes]:
    """(index of its symbol, cubin). The whole file may hold one fatbin and one cubin."""
    found = [i for i, s in enumerate(elf.symbols) if s.name == "kernels_binary"]
    if len(found) != 1 or not 0 < elf.symbols[found[0]].section < len(elf.sections):
        raise Malformed(f"{len(found)} symbols kernels_binary, expected one")
    for magic, what, others in ((_FATBIN_MAGIC, "fatbins", 0), (_ELF_MAGIC, "cubins", 1)):
        if (count := data.count(magic) - others) != 1:
            raise Malformed(f"{count} {what}, expected one")
    symbol = elf.symbols[found[0]]
    cubin = _cut(elf.sections[symbol.section].data[symbol.value :])
    _parse(cubin, _CUBIN)
    return found[0], cubin


def _cut(held: bytes) -> bytes:
    """The cubin of a fatbin that has one entry, not compressed, and nothing else."""
    magic, version, header, size = struct.unpack_from("<4sHHQ", held)
    kind, _, entry, payload, packed = struct.unpack_from("<HHIQI", held, 16)
    flags, _, unpacked = struct.unpack_from("<QQQ", held, 16 + 40)
    if (magic, version, header) != (_FATBIN_MAGIC, 1, 16) or 16 + size > len(held):
        raise Malformed("kernels_binary is not a fatbin")
    if kind != _FATBIN_ELF or entry + payload != size:
        raise Malformed("the fatbin does not hold exactly one cubin")
    if packed or unpacked or flags & _FATBIN_COMPRESSIONS:
        raise Malformed("the cubin is compressed")
    return held[16 + entry : 16 + size]


def _kernels(elf: Elf) -> Iterator[CubinKernel]:
    sizes = {s.name: s.size for s in elf.sections}
    common = tuple(_info(elf.data(".nv.info")))
    for index, symbol in enumerate(elf.symbols):
        if symbol.kind != "FUNC" or symbol.section == UNDEFINED or symbol.local:
            continue  # local ones are functions that kernels call
        own = tuple(_info(elf.data(f".nv.info.{symbol.name}")))
        fields = sorted(struct.unpack("<IHHI", v)[1:] for a, v in own if a == _KPARAM)
        yield CubinKernel(
            symbol.name,
            _of_symbol(common, _REGCOUNT, index),
            max(0, sizes.get(f".nv.shared.{symbol.name}", 0) - _RESERVED_SMEM),
            _of_symbol(common, _FRAME_SIZE, index),
            tuple(size_flags >> 18 for _, _, size_flags in fields),
            next((struct.unpack("<3I", v) for a, v in own if a == _REQNTID), ()),
        )


def _variables(elf: Elf) -> Iterator[str]:
    places = [i for i, s in enumerate(elf.sections) if s.name.startswith(".nv.global")]
    yield from (s.name for s in elf.symbols if s.section in places and s.kind == "OBJECT")
    yield from (elf.sections[i].name for i in places)


def _arch(elf: Elf) -> str:
    """From the note in which ptxas repeats its command line; the header must name the same SM."""
    note = elf.data(".note.nv.tkinfo").decode("latin-1")
    found = re.search(r"-arch (sm_(\d+)[af]?)\b", note)
    if not found or int(found[2]) != elf.flags >> 8 & 0xFF:
        raise Malformed(f"header (sm_{elf.flags >> 8 & 0xFF}) and note disagree on the GPU")
    return found[1]


def _info(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(attribute, value) of the records of a .nv.info section that have a value of any size."""
    at = 0
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        if form == 4:
            yield attribute, data[at + 4 : at + 4 + size]
            at += size
        at += 4


def _of_symbol(records: Iterable[tuple[int, bytes]], attribute: int, symbol: int) -> int:
    pairs = (struct.unpack("<II", v) for a, v in records if a == attribute)
    return next((int(value) for index, value in pairs if index == symbol), 0)
