"""R04, R08, R09: the cubin is kept, only the host part is another one."""

import struct
import threading

import pytest

from avo_cute.build.elf import read_object
from avo_cute.build.emulate import Machine


def with_entry(data, code):
    """`data` with the first bytes of __tvm_ffi_kernel replaced; `code` must not be relocated."""
    obj = read_object(data)
    (entry,) = obj.defined("__tvm_ffi_kernel")
    at = data.index(obj.sections[entry.section].data) + entry.value
    inside = [
        r
        for r in obj.relocations
        if r.section == entry.section and 0 <= r.offset - entry.value < len(code)
    ]
    for r in inside:  # the code that these belong to is gone
        old = struct.pack("<QQq", r.offset, r.symbol << 32 | r.kind, r.addend)
        data = data.replace(
            old, struct.pack("<QQq", entry.value + 200, *struct.unpack("<Qq", old[8:]))
        )
    return data[:at] + code + data[at + len(code) :]


RETURN_0 = b"\x31\xc0\xc3"  # xor eax, eax; ret


def test_nothing_is_launched(honest, judge_object):
    assert "0 launches" in judge_object(with_entry(honest, RETURN_0))["launches"]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (b"\xeb\xfe", "come to an end"),  # jmp .
        (b"\x0f\x05" + RETURN_0, "asks the CPU or the system"),  # syscall
        (b"\x0f\x31" + RETURN_0, "asks the CPU or the system"),  # rdtsc
        (b"\x0f\xa2" + RETURN_0, "asks the CPU or the system"),  # cpuid
        (b"\xcd\x80" + RETURN_0, "asks the CPU or the system"),  # int 0x80
        (b"\xc6\x06\x01" + RETURN_0, "faults"),  # mov byte [rsi], 1: changes its arguments
        (b"\x48\x8b\x46\x08\x48\x8b\x00\x8a\x00" + RETURN_0, "faults"),  # looks into a tensor
        (b"\x64\x48\x8b\x04\x25\x00\x00\x00\x00" + RETURN_0, "faults"),  # mov rax, fs:0
        (b"\xc5\xf8\x77" + RETURN_0, "x86-64-v2"),  # vzeroupper
        (b"\xb8\x01\x00\x00\x00\xc3", "returned 1 without a message"),
        (b"\x50\xeb\xfd", "faults"),  # push for ever
        (b"\x0f\x0b", "x86-64-v2"),  # ud2
    ],
)
def test_host_code_that_does_what_a_launch_does_not_need(honest, judge_object, code, says):
    assert says in judge_object(with_entry(honest, code))["failure"]


def test_host_code_that_counts_its_calls(honest, judge_object):
    """add qword [.lbss], 1; return 0: the second call finds another state than the first."""
    obj = read_object(honest)
    (entry,) = obj.defined("__tvm_ffi_kernel")
    code = bytearray.fromhex("488d05f9ffffff 48b90000000000000000 4801c1 48b80000000000000000")
    code += bytes.fromhex("4883040101") + RETURN_0
    data = with_entry(honest, bytes(code))
    of = obj.relocations
    got = next(r for r in of if r.kind == 29 and r.section == entry.section)
    state = next(
        r
        for r in of
        if r.kind == 25 and obj.sections[obj.symbols[r.symbol].section].name == ".lbss"
    )
    for r, offset, addend in ((got, 9, 9), (state, 22, 8)):
        old = struct.pack("<QQq", r.offset, r.symbol << 32 | r.kind, r.addend)
        moved = struct.pack("<QQq", entry.value + offset, r.symbol << 32 | r.kind, addend)
        if old not in data:  # with_entry moved it away
            old = struct.pack("<QQq", entry.value + 200, r.symbol << 32 | r.kind, r.addend)
        data = data.replace(old, moved)
    assert "called again" in judge_object(data)["failure"]


def test_an_emulation_that_is_stopped_from_outside_goes_on_to_the_same_end(honest):
    """A busy machine stops emulations that nobody asked to stop; that is no fault of the code."""
    count = 20_000
    # mov ecx, count; dec ecx; jnz; mov eax, 7; ret
    code = b"\xb9" + struct.pack("<I", count) + b"\xff\xc9\x75\xfc\xb8\x07\x00\x00\x00\xc3"
    machine = Machine(read_object(with_entry(honest, code)), {})
    stops, ended = 0, threading.Event()

    def stop():
        nonlocal stops
        while not ended.wait(0.001):
            machine._uc.emu_stop()
            stops += 1

    other = threading.Thread(target=stop)
    other.start()
    try:
        assert machine.call(machine.address("__tvm_ffi_kernel")) == 7
    finally:
        ended.set()
        other.join()
    assert machine._executed >= 2 * count
    assert stops > 10
