"""R01, R11, R28: host code that calls more than a launch needs (sleep, print, files, threads)."""

import pytest


@pytest.mark.parametrize(("variant", "name"), [("host-call", "usleep"), ("host-printf", "printf")])
def test_a_host_call_is_a_new_import(evil, judge_object, variant, name):
    found = judge_object(evil[variant])
    assert name in found["imports"]


def test_a_host_call_ends_the_emulation(evil, judge_object):
    assert judge_object(evil["host-call"])["failure"] == "launch: host code calls usleep"
    assert "called with" in judge_object(evil["host-printf"])["failure"]


def test_a_host_part_for_another_cpu_is_refused(evil, judge_object):
    """Compiled for this machine's own CPU, an object differs from machine to machine."""
    found = judge_object(evil["native-host"])
    if not found:
        pytest.skip("this machine's own CPU is no more than x86-64-v2")
    assert any("x86-64-v2" in line for line in found.values())
