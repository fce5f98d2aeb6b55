"""R35: device code beside, behind or instead of the one cubin that was audited."""

import shutil
import struct
import subprocess

import pytest

from avo_cute.build.elf import read_object


def patched(data, at, new):
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.skipif(not shutil.which("objcopy"), reason="objcopy is not installed")
def test_a_second_cubin_in_a_section_of_its_own(honest, judge_object, tmp_path):
    (tmp_path / "a.o").write_bytes(honest)
    (tmp_path / "other.cubin").write_bytes(read_object(honest).cubin)
    more = f".lrodata.more={tmp_path / 'other.cubin'}"
    command = ["objcopy", "--add-section", more, str(tmp_path / "a.o"), str(tmp_path / "b.o")]
    subprocess.run(command, check=True)
    assert "2 cubins" in judge_object((tmp_path / "b.o").read_bytes())["failure"]


def test_a_second_entry_in_the_fatbin(honest, judge_object):
    at = honest.index(b"\x50\xed\x55\xba")
    size = struct.unpack_from("<Q", honest, at + 8)[0]
    grown = patched(honest, at + 8, struct.pack("<Q", size + 64))
    assert "exactly one cubin" in judge_object(grown)["failure"]


@pytest.mark.parametrize("offset", [16, 32, 56, 72], ids=["PTX", "packed", "flags", "unpacked"])
def test_device_code_that_only_the_driver_would_unpack(honest, judge_object, offset):
    """An entry of PTX, or one that says it is compressed, is not what was disassembled."""
    at = honest.index(b"\x50\xed\x55\xba") + offset
    value = {16: b"\x01", 32: b"\x01", 56: b"\x11\x20", 72: b"\x01"}[offset]
    assert "cubin" in judge_object(patched(honest, at, value))["failure"]


def test_a_symbol_that_points_past_the_fatbin(honest, judge_object):
    """The audit reads at kernels_binary; host code that loads another place is refused."""
    obj = read_object(honest)
    other = next(
        n
        for n, r in enumerate(obj.relocations)
        if obj.sections[r.section].name == ".ltext"
        and r.kind == 25
        and obj.symbols[r.symbol].section == obj.symbols[obj.binary].section
        and r.addend == obj.symbols[obj.binary].value
    )
    r = obj.relocations[other]
    entry = struct.pack("<QQq", r.offset, r.symbol << 32 | r.kind, r.addend)
    moved = struct.pack("<QQq", r.offset, r.symbol << 32 | r.kind, r.addend + 8)
    assert honest.count(entry) == 1
    assert "other device code" in judge_object(honest.replace(entry, moved))["failure"]


def test_a_kernel_that_the_cubin_lacks(honest, judge_object):
    """The name that host code asks for lies in the object's constants and code."""
    name = b"kernel_cutlass_k"
    places = [i for i in range(len(honest)) if honest.startswith(name, i)]
    cubin = honest.index(b"\x7fELF", 1)
    data = honest
    for at in places:
        if at < cubin:
            data = patched(data, at, b"k")
            data = patched(data, at + 1, b"X")
    assert "which the cubin lacks" in judge_object(data)["failure"]
