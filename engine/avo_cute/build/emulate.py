"""Runs an object's host code on an emulated CPU, so that nothing of it runs on this one.

The object's sections are mapped and relocated as a linker and loader would do it. Each imported
function is an address on which the emulation stops; Python does what the function would do. What
the code must not touch (device memory, the arguments' storage, the rest of the address space) is
not mapped or not writable, so touching it is a fault.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from .elf import ObjectFile
from .sections import NOBITS, UNDEFINED, Relocation

_IMAGE, _TRAPS, _STACK, _DATA = 0x1000_0000, 0x3000_0000, 0x4000_0000, 0x5000_0000
_STACK_BYTES, _DATA_BYTES, _PAGE = 1 << 20, 1 << 16, 1 << 12
_MAX_IMAGE = 64 << 20
_MAX_INSTRUCTIONS = 300_000  # of one emulation; FA4's launch code takes a few thousand
_MAX_CALLS = 1_000  # calls of imported functions
_TIMEOUT_S = 120.0  # of wall time, for an emulation that stops again and again: the count decides
_ALLOC, _WRITE, _EXEC = 2, 1, 4  # sh_flags
_UNWIND = 0x70000001  # sh_type of .eh_frame: the unwinder's, host code does not read it
_CR4_SSE = 0x600  # OSFXSR and OSXMMEXCPT: the system says that it saves SSE registers
_MAX_CSTRING = 4096
_ARGUMENTS = ("RDI", "RSI", "RDX", "RCX", "R8", "R9")
_PREFIXES = b"\x66\xf2\xf3" + bytes(range(0x40, 0x50))  # operand size, repeat, REX
_VECTOR = (b"\xc4", b"\xc5", b"\x62")  # VEX and EVEX: AVX and BMI, part of which Unicorn runs
_OUTSIDE = (b"\x0f\x05", b"\x0f\x34", b"\xcd", b"\x0f\xa2", b"\x0f\x31", b"\x0f\x01", b"\x0f\x33")

Import = Callable[["Machine", tuple[int, ...]], int]


class HostFault(Exception):
    """Host code did what an honest launch has no reason to do; one line says what."""


class Machine:
    """One emulated process with one object in it. Memory is what state there is."""

    def __init__(self, obj: ObjectFile, imports: Mapping[str, Import]) -> None:
        self._unicorn: Any = import_module("unicorn")  # untyped
        self._x86: Any = import_module("unicorn.x86_const")
        self._uc: Any = self._unicorn.Uc(self._unicorn.UC_ARCH_X86, self._unicorn.UC_MODE_64)
        self._uc.ctl_set_cpu_model(self._x86.UC_CPU_X86_NEHALEM)  # x86-64-v2, nothing after it
        self._set("CR4", self._get("CR4") | _CR4_SSE)
        self._obj, self._imports = obj, imports
        self._names = obj.imports
        self._return = _TRAPS + 16 * len(self._names)
        self._executed = self._calls = 0
        self._wrong = ""
        self._addresses = self._map_image()
        self._map(_TRAPS, -(-(self._return + 16 - _TRAPS) // _PAGE) * _PAGE, "r-x")
        self._map(_STACK, _STACK_BYTES, "rw-")
        self._map(_DATA, _DATA_BYTES, "r--")
        self._data = _DATA
        self._relocate()
        self._watch()

    def call(self, address: int, *arguments: int) -> int:
        """Call a function with up to six integer arguments; its 32-bit result, signed.

        May be called from within an import. Raises `HostFault`.
        """
        for name, value in zip(_ARGUMENTS, arguments, strict=False):
            self._set(name, value)
        before = self._get("RSP")
        top = (before - 256 if before else _STACK + _STACK_BYTES - _PAGE) & ~15
        self._set("RSP", top - 8)
        self.write(top - 8, self._return.to_bytes(8, "little"))
        self._run(address)
        self._set("RSP", before)
        low = self._get("RAX") & 0xFFFF_FFFF
        return low - (1 << 32) if low >> 31 else low

    def address(self, name: str) -> int:
        """Where the one defined symbol of that name lies."""
        found = self._obj.defined(name)
        if len(found) != 1:
            raise HostFault(f"{len(found)} definitions of {name}, expected one")
        return self._addresses[found[0].section] + found[0].value

    def place(self, data: bytes) -> int:
        """Put bytes where host code can read but not write them; returns their address."""
        address, self._data = self._data, self._data + -(-len(data) // 64) * 64
        if self._data > _DATA + _DATA_BYTES:
            raise HostFault("the arguments take too much memory")
        self._uc.mem_write(address, data)
        return address

    def read(self, address: int, size: int) -> bytes:
        try:
            return bytes(self._uc.mem_read(address, size))
        except (self._unicorn.UcError, ValueError, OverflowError):
            raise HostFault(f"a pointer into nowhere ({address:#x}) is given away") from None

    def write(self, address: int, data: bytes) -> None:
        """Write where host code could write itself."""
        inside = (_STACK, _STACK_BYTES), *self._writable
        if not any(at <= address and address + len(data) <= at + size for at, size in inside):
            raise HostFault(f"a result is asked for at {address:#x}, which is not writable")
        self._uc.mem_write(address, data)

    def cstring(self, address: int) -> str:
        text = b""
        while len(text) < _MAX_CSTRING:
            piece = self.read(address + len(text), 1)
            if piece == b"\0":
                return text.decode("utf-8", "replace")
            text += piece
        raise HostFault("a text without an end is given away")

    @property
    def scratch(self) -> int:
        """A few writable bytes at the far end of the stack, for an import's own use."""
        return _STACK

    def state(self) -> bytes:
        """Everything writable except the stack: what host code can remember between calls."""
        return b"".join(self.read(at, size) for at, size in self._writable)

    def _run(self, address: int) -> None:
        """Run until the function returns. A stop that nobody here asked for is gone on from: it
        says nothing about the code."""
        until = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                self._uc.emu_start(address, 0)
            except self._unicorn.UcError as error:
                if error.errno == self._unicorn.UC_ERR_INSN_INVALID:
                    raise HostFault("host code is not built for x86-64-v2") from None
                raise HostFault(f"host code faults: {error}") from None
            address = self._get("RIP")
            if self._wrong:
                raise HostFault(self._wrong)
            if address == self._return:
                return
            if _TRAPS <= address < self._return:
                address = self._serve(self._names[(address - _TRAPS) // 16])
            elif time.monotonic() > until:
                raise HostFault(f"host code does not come to an end in {_TIMEOUT_S:g} s")

    def _serve(self, name: str) -> int:
        """Do what the imported function does; returns the address to go on from."""
        self._calls += 1
        if name in ("printf", "puts"):
            text = self.cstring(self._get("RDI")).strip()
            raise HostFault(f"host code prints {text[:200]!r}")
        if self._calls > _MAX_CALLS or name not in self._imports:
            raise HostFault(f"host code calls {name}")
        stack = self._get("RSP")
        result = self._imports[name](self, tuple(self._get(a) for a in _ARGUMENTS))
        self._set("RAX", result & (1 << 64) - 1)
        self._set("RSP", stack + 8)
        return int.from_bytes(self.read(stack, 8), "little")

    def _watch(self) -> None:
        """Look at every instruction before it runs; stop at traps and at what may not run."""

        def instruction(uc: Any, address: int, size: int, data: object) -> None:
            self._executed += 1
            if _TRAPS <= address <= self._return:
                uc.emu_stop()
            elif self._executed > _MAX_INSTRUCTIONS:
                self._stop(f"host code does not come to an end in {self._executed:,} instructions")
            # The size of what Unicorn cannot decode is a very large number.
            elif (code := bytes(uc.mem_read(address, min(size, 15)))).startswith(_VECTOR):
                self._stop("host code is not built for x86-64-v2")
            elif code.lstrip(_PREFIXES).startswith(_OUTSIDE):
                self._stop("host code asks the CPU or the system (rdtsc, cpuid, syscall, …)")

        self._uc.hook_add(self._unicorn.UC_HOOK_CODE, instruction)

    def _stop(self, why: str) -> None:
        self._wrong = why
        self._uc.emu_stop()

    def _map(self, address: int, size: int, rights: str) -> None:
        flags = {"r": 1, "w": 2, "x": 4, "-": 0}  # UC_PROT_…
        self._uc.mem_map(address, size, sum(flags[r] for r in rights))

    def _map_image(self) -> dict[int, int]:
        """Map what a loader would map; returns section index -> address."""
        at, addresses = _IMAGE, {}
        writable: list[tuple[int, int]] = []
        for index, section in enumerate(self._obj.sections):
            if not section.flags & _ALLOC or section.kind == _UNWIND:
                continue
            if at + section.size - _IMAGE > _MAX_IMAGE:
                raise HostFault("the host part is too large")
            size = max(1, -(-section.size // _PAGE)) * _PAGE
            writes = bool(section.flags & _WRITE)
            self._map(at, size, f"r{'w' if writes else '-'}{'x' if section.flags & _EXEC else '-'}")
            if section.kind != NOBITS:
                self._uc.mem_write(at, section.data)
            if writes:
                writable.append((at, section.size))
            addresses[index] = at
            at += size
        self._got, self._writable = at, tuple(writable)
        slots = -(-8 * len(self._obj.symbols) // _PAGE) * _PAGE
        self._map(at, slots, "r--")
        return addresses

    def _relocate(self) -> None:
        for index, symbol in enumerate(self._obj.symbols):
            value = self._value(index) if symbol.section != UNDEFINED or symbol.name else 0
            self._uc.mem_write(self._got + 8 * index, struct.pack("<Q", value & (1 << 64) - 1))
        for entry in self._obj.relocations:
            if entry.section in self._addresses:
                self._apply(entry)

    def _apply(self, r: Relocation) -> None:
        """The x86-64 psABI's formulas, for the relocations of the large code model."""
        place, got = self._addresses[r.section] + r.offset, self._got
        slot = 8 * r.symbol  # every symbol has a slot in our global offset table
        formulas: dict[int, tuple[int, Callable[[], int]]] = {
            1: (8, lambda: self._value(r.symbol) + r.addend),  # R_X86_64_64
            2: (4, lambda: self._value(r.symbol) + r.addend - place),  # R_X86_64_PC32
            4: (4, lambda: self._value(r.symbol) + r.addend - place),  # R_X86_64_PLT32
            24: (8, lambda: self._value(r.symbol) + r.addend - place),  # R_X86_64_PC64
            25: (8, lambda: self._value(r.symbol) + r.addend - got),  # R_X86_64_GOTOFF64
            27: (8, lambda: slot + r.addend),  # R_X86_64_GOT64
            29: (8, lambda: got - place + r.addend),  # R_X86_64_GOTPC64
        }
        if r.kind not in formulas:
            raise HostFault(f"a relocation of type {r.kind}")
        size, formula = formulas[r.kind]
        if r.offset + size > self._obj.sections[r.section].size:
            raise HostFault("a relocation past the end of its section")
        value = formula() & (1 << 8 * size) - 1
        self._uc.mem_write(place, value.to_bytes(size, "little"))

    def _value(self, index: int) -> int:
        symbol = self._obj.symbols[index]
        if symbol.section == UNDEFINED:
            if symbol.name == "_GLOBAL_OFFSET_TABLE_":
                return self._got
            return _TRAPS + 16 * self._names.index(symbol.name)
        return self._addresses.get(symbol.section, 0) + symbol.value

    def _get(self, register: str) -> int:
        return int(self._uc.reg_read(getattr(self._x86, f"UC_X86_REG_{register}")))

    def _set(self, register: str, value: int) -> None:
        self._uc.reg_write(getattr(self._x86, f"UC_X86_REG_{register}"), value)
