"""An ELF file's sections, symbols and relocations: pyelftools behind checks of our own.

After `parse` everything lies inside the file and every index points somewhere; bytes that break
this raise `Malformed` and nothing else.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.construct.core import ConstructError
from elftools.elf.elffile import ELFFile

NOBITS, SYMTAB, RELA = 8, 2, 4  # sh_type: without bytes in the file; symbols; relocations
UNDEFINED = 0  # section of a symbol that must come from elsewhere
_COMPRESSED = 0x800  # sh_flags
_SPECIAL = {"SHN_UNDEF": UNDEFINED, "SHN_ABS": 0xFFF1, "SHN_COMMON": 0xFFF2}


class Malformed(ValueError):
    """The bytes are not what they should be; the message says in which way."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section header and its bytes; `kind` is sh_type as a number, `data` empty for NOBITS."""

    name: str
    kind: int
    flags: int
    align: int
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    """`section` is an index into the sections, 0 for an undefined symbol, ≥ 0xff00 for none."""

    name: str
    value: int
    size: int
    section: int
    kind: str  # "FUNC", "OBJECT", "SECTION", "FILE", "NOTYPE"
    local: bool


@dataclass(frozen=True, slots=True)
class Relocation:
    """One entry of a .rela section: applies to `section` at `offset`, `kind` is the type's code."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True, slots=True)
class Elf:
    """A parsed file. `end` is the first byte after everything that the headers describe."""

    machine: int
    kind: int  # e_type
    flags: int
    end: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]

    def data(self, name: str) -> bytes:
        """The bytes of the first section of that name, empty where there is none."""
        return next((s.data for s in self.sections if s.name == name), b"")


def parse(data: bytes) -> Elf:
    """Parse a little-endian ELF64 file. Raises `Malformed`, whatever the bytes are."""
    if data[:7] != b"\x7fELF\x02\x01\x01":
        raise Malformed("not a little-endian 64-bit ELF file")
    try:
        return _parse(data)
    except Malformed:
        raise
    except _PARSER_ERRORS as error:
        raise Malformed(f"malformed ELF file ({type(error).__name__})") from None


# A parser that follows wrong numbers ends in any of these; pyelftools' own errors come first.
_PARSER_ERRORS = (
    ELFError,
    ConstructError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
    AssertionError,
    RecursionError,
    struct.error,
)


def _parse(data: bytes) -> Elf:
    head = struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
    kind, machine, _, _, phoff, shoff, flags, ehsize, phentsize, phnum, shentsize, shnum, _ = head
    if ehsize != 64 or shentsize != 64 or (phnum and phentsize != 56) or not 0 < shnum < 0xFF00:
        raise Malformed("ELF headers of a strange size")
    ends = [shoff + 64 * shnum, phoff + 56 * phnum]
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + 64 * i) for i in range(shnum)]
    for _, sh_type, sh_flags, _, offset, size, _, _, _, entry in headers:
        ends.append(offset + (0 if sh_type == NOBITS else size))
        if sh_flags & _COMPRESSED or (sh_type in (SYMTAB, RELA) and entry != 24):
            raise Malformed("a section is compressed or has entries of a strange size")
    if max(ends) > len(data):
        raise Malformed(f"the headers describe {max(ends)} bytes, the file has {len(data)}")
    elf: Any = ELFFile(io.BytesIO(data))
    sections = tuple(
        Section(
            section.name,
            h[1],
            h[2],
            h[8],
            h[5],
            data[h[4] : h[4] + h[5]] if h[1] != NOBITS else b"",
        )
        for section, h in zip(elf.iter_sections(), headers, strict=True)
    )
    tables = [i for i, h in enumerate(headers) if h[1] == SYMTAB]
    if len(tables) != 1:
        raise Malformed(f"{len(tables)} symbol tables, expected one")
    symbols = tuple(_symbol(s, shnum) for s in elf.get_section(tables[0]).iter_symbols())
    relocations = tuple(
        Relocation(h[7], *_relocation(sections[h[7]], len(symbols), entry))
        for h, section in zip(headers, sections, strict=True)
        if h[1] == RELA
        for entry in struct.iter_unpack("<QQq", section.data)
    )
    return Elf(machine, kind, flags, max(ends), sections, symbols, relocations)


def _symbol(symbol: Any, sections: int) -> Symbol:
    place = symbol["st_shndx"]
    index = place if isinstance(place, int) else _SPECIAL[place]
    if not (index < sections or index >= 0xFF00):
        raise Malformed(f"symbol {symbol.name!r} lies in no section")
    kind = str(symbol["st_info"]["type"]).removeprefix("STT_")
    local = symbol["st_info"]["bind"] == "STB_LOCAL"
    return Symbol(symbol.name, symbol["st_value"], symbol["st_size"], index, kind, local)


def _relocation(
    target: Section, symbols: int, entry: tuple[int, int, int]
) -> tuple[int, int, int, int]:
    offset, info, addend = entry
    if info >> 32 >= symbols or offset >= max(target.size, 1):
        raise Malformed(f"a relocation of {target.name} points nowhere")
    return offset, info & 0xFFFFFFFF, info >> 32, addend
