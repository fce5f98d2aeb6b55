"""R01, R39: launches that are more, other or larger than declared."""

import struct

from avo_cute.build.elf import read_object


def test_two_launches(evil, judge_object):
    found = judge_object(evil["two-launches"])
    assert "2 launches" in found["launches"]
    assert "2 kernels" in found["kernels"]


def test_a_launch_that_overlaps_the_one_before(evil, judge_object):
    assert set(judge_object(evil["pdl"])) == {"pdl"}


def test_too_much_shared_memory(evil, judge_object):
    """The DSL builds and exports it without a word; only the launch says so, on the host."""
    assert "shared memory exceeds" in judge_object(evil["much-smem"])["failure"]


def test_a_block_that_no_gpu_launches(evil, judge_object):
    assert "(2048, 1, 1)" in judge_object(evil["big-block"])["block"]


def test_a_launch_on_another_stream(honest, judge_object):
    """The caller's stream is asked for and then not used: its call is bound to another import."""
    obj = read_object(honest)
    names = {s.name: n for n, s in enumerate(obj.symbols)}
    (r,) = [r for r in obj.relocations if r.symbol == names["TVMFFIEnvGetStream"]]
    entry = struct.pack("<QQq", r.offset, r.symbol << 32 | r.kind, r.addend)
    other = struct.pack("<QQq", r.offset, names["_cudaSetDevice"] << 32 | r.kind, r.addend)
    assert "another stream" in judge_object(honest.replace(entry, other))["failure"]
