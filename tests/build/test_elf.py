"""Reading objects and cubins: what is in a real one, and that no bytes make it raise."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avo_cute.build.elf import CubinFile, ObjectFile, read_cubin, read_object
from avo_cute.records import Failure, Status


def test_an_object_shows_its_imports_and_its_entry(honest):
    obj = read_object(honest)
    assert isinstance(obj, ObjectFile)
    assert "_cudaLaunchKernelEx" in obj.imports
    assert len(obj.imports) == 16
    assert len(obj.defined("__tvm_ffi_kernel")) == 1
    assert obj.defined("_cudaLaunchKernelEx") == ()


def test_the_cubin_is_cut_exactly(honest):
    obj = read_object(honest)
    at = honest.index(b"\x7fELF", 1)
    assert honest[at : at + len(obj.cubin)] == obj.cubin
    # The program headers come last in a cubin.
    phoff, phnum = struct.unpack_from("<Q", obj.cubin, 32)[0], 5
    assert len(obj.cubin) == phoff + 56 * phnum


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_cubin_describes_its_kernel(tiny, arch):
    cubin = read_cubin(read_object(tiny[f"{arch}:honest"]).cubin)
    assert isinstance(cubin, CubinFile)
    (kernel,) = cubin.kernels
    assert cubin.arch == arch
    assert kernel.name.startswith("kernel_cutlass_kernel_")
    assert kernel.parameters == (16, 16, 4)  # two tensors of (pointer, length), one float
    assert kernel.block == (128, 1, 1)
    assert 8 <= kernel.registers <= 32
    assert (kernel.static_smem, kernel.local_bytes) == (0, 0)
    assert (cubin.imports, cubin.variables) == ((), ())


def test_two_kernels_are_two(tiny):
    assert len(read_cubin(read_object(tiny["sm_100a:two-kernels"]).cubin).kernels) == 2


@pytest.mark.parametrize(
    "data",
    [b"", b"\x7fELF", b"!<arch>\n" + bytes(100), b"INPUT(a.o)\n", b"\x7fELF\x02\x01\x01" * 50],
    ids=["empty", "magic", "archive", "linker script", "repeated"],
)
def test_other_files_are_refused(data):
    for found in (read_object(data), read_cubin(data)):
        assert isinstance(found, Failure)
        assert found.status is Status.AUDIT_FAILED
        assert "\n" not in found.reason


def test_a_cubin_is_no_object_and_an_object_no_cubin(honest):
    assert isinstance(read_object(read_object(honest).cubin), Failure)
    assert isinstance(read_cubin(honest), Failure)


def test_every_truncation_is_refused(honest):
    for end in range(0, len(honest), 97):
        assert isinstance(read_object(honest[:end]), Failure), end
    assert isinstance(read_object(honest[:-1]), Failure)


def test_flipped_bits_never_raise(honest):
    chance = random.Random(1)
    shoff = struct.unpack_from("<Q", honest, 40)[0]
    headers = [*range(64), *range(shoff, len(honest))]  # where a flip hurts most
    symbols = range(shoff - 2500, shoff)
    for pool in (headers, symbols, range(len(honest))):
        for _ in range(150):
            data = bytearray(honest)
            for _ in range(chance.choice((1, 1, 4))):
                data[chance.choice(pool)] ^= 1 << chance.randrange(8)
            obj = read_object(bytes(data))
            if isinstance(obj, ObjectFile):
                assert isinstance(read_cubin(obj.cubin), CubinFile | Failure)


def test_flipped_bits_in_a_cubin_never_raise(honest):
    chance = random.Random(2)
    cubin = read_object(honest).cubin
    for _ in range(400):
        data = bytearray(cubin)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        assert isinstance(read_cubin(bytes(data)), CubinFile | Failure)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_after_a_good_start_never_raise(data):
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    assert isinstance(read_object(head + data), Failure)
    assert isinstance(read_cubin(head + data), Failure)
