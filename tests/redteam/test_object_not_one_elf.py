"""R34, R35: a file that a linker takes but that is not exactly one relocatable object."""

import pytest


def test_bytes_after_the_end(honest, judge_object):
    assert "1 bytes after the end" in judge_object(honest + b"\0")["failure"]
    assert "after the end" in judge_object(honest + b"INPUT(other.o)\n")["failure"]


def test_two_objects_in_one_file(honest, judge_object):
    assert "after the end" in judge_object(honest + honest)["failure"]


def test_an_archive(honest, judge_object):
    member = f"{'kernel.o/':<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(honest):<10}`\n".encode()
    assert (
        "not a little-endian 64-bit ELF" in judge_object(b"!<arch>\n" + member + honest)["failure"]
    )


@pytest.mark.parametrize("text", [b"INPUT(kernel.o)\n", b"GROUP(-lc)\n" * 100])
def test_a_linker_script(text, judge_object):
    assert "not a little-endian 64-bit ELF" in judge_object(text)["failure"]


@pytest.mark.parametrize("kind", [2, 3], ids=["executable", "shared library"])
def test_another_kind_of_elf(honest, judge_object, kind):
    data = bytearray(honest)
    data[16] = kind
    assert f"e_type {kind}" in judge_object(bytes(data))["failure"]
