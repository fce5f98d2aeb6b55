"""R09, R12: device code that keeps state between launches, reads clocks or calls the host."""

import pytest


@pytest.mark.parametrize("variant", ["clock", "clock64", "globaltimer", "globaltimer-lo"])
def test_a_clock_is_read(evil, judge_object, variant):
    register = "SR_GLOBALTIMERLO" if "timer" in variant else "SR_CLOCKLO"
    found = judge_object(evil[variant])
    assert set(found) == {"clock"}
    assert register in found["clock"]


def test_a_device_variable_counts_launches(evil, judge_object):
    found = judge_object(evil["device-global"])
    assert set(found) == {"device-global"}
    assert "calls" in found["device-global"]


def test_a_device_printf(evil, judge_object):
    assert "vprintf" in judge_object(evil["device-printf"])["device-call"]
