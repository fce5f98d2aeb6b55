"""R02, R03: code that runs when the object is loaded, before anything is called."""

import shutil
import struct
import subprocess

import pytest

from avo_cute.build.elf import read_object

needs_objcopy = pytest.mark.skipif(not shutil.which("objcopy"), reason="objcopy is not installed")


def add_section(data, name, flags, tmp_path):
    (tmp_path / "a.o").write_bytes(data)
    (tmp_path / "more").write_bytes(bytes(8))
    command = ["objcopy", "--add-section", f"{name}={tmp_path / 'more'}"]
    command += ["--set-section-flags", f"{name}={flags}"]
    subprocess.run([*command, str(tmp_path / "a.o"), str(tmp_path / "b.o")], check=True)
    return (tmp_path / "b.o").read_bytes()


@needs_objcopy
@pytest.mark.parametrize("name", [".init_array", ".init", ".ctors", ".preinit_array", ".data"])
def test_a_new_section(honest, judge_object, tmp_path, name):
    data = add_section(honest, name, "alloc,contents,data", tmp_path)
    assert repr(name) in judge_object(data)["sections"]


@needs_objcopy
def test_a_second_section_of_a_known_name(honest, judge_object, tmp_path):
    data = add_section(honest, ".fini_array2", "alloc,contents,data", tmp_path)
    data = data.replace(b".fini_array2\0", b".fini_array\0\0")
    assert ".fini_array" in judge_object(data)["sections"]


def test_a_destructor_of_its_own(honest, judge_object):
    """The one .fini_array entry points into the middle of another function."""
    obj = read_object(honest)
    (r,) = [r for r in obj.relocations if obj.sections[r.section].name == ".fini_array"]
    entry = struct.pack("<QQq", r.offset, r.symbol << 32 | r.kind, r.addend)
    moved = struct.pack("<QQq", r.offset, r.symbol << 32 | r.kind, r.addend + 16)
    assert "destructor" in judge_object(honest.replace(entry, moved))


def test_a_destructor_that_does_something_else(honest, judge_object):
    obj = read_object(honest)
    (symbol,) = obj.defined("__cute_internal_kernel___dtor_cuda_dialect_unload_library_once")
    text = honest.index(obj.sections[symbol.section].data)
    data = bytearray(honest)
    data[text + symbol.value] = 0xC3  # ret
    assert "destructor" in judge_object(bytes(data))["failure"]


def test_a_symbol_that_stands_in_for_anothers(honest, judge_object):
    """Whatever is loaded later would be bound to a cudaEventElapsedTime defined here."""
    name = b"__cute_internal_kernel_cuda_num_binaries\0"
    data = honest.replace(name, b"cudaEventElapsedTime".ljust(len(name), b"\0"))
    assert "cudaEventElapsedTime" in judge_object(data)["symbols"]
