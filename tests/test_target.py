"""The table of GPU models: complete, consistent with itself and with what is known otherwise."""

import pytest

from avo_cute.build.units import rates_of
from avo_cute.errors import BadInput
from avo_cute.gpu import target_of
from avo_cute.target import PEAKS, TARGETS, find_target, peaks_of


def test_every_target_has_peaks_and_nothing_else_has():
    assert PEAKS.keys() == TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_no_datasheet_promises_more_than_the_highest_clock_gives(name):
    target, peaks = TARGETS[name], PEAKS[name]
    possible = target.sms * peaks.bf16 * peaks.max_mhz * 1e6
    assert 1 <= possible / peaks.datasheet_flops < 1.25


@pytest.mark.parametrize("name", TARGETS)
def test_the_static_model_has_the_same_rates(name):
    rates, peaks = rates_of(TARGETS[name]), peaks_of(TARGETS[name])
    assert 2 * max(rates.matrix_fma, rates.legacy_fma) == peaks.bf16
    assert 128 / rates.mufu == peaks.mufu
    assert 128 / rates.fma == peaks.fp32
    if name == "h100":  # the static model has one entry for sm_90, with the H200's memory
        return
    clock = peaks.bandwidth / (rates.dram * TARGETS[name].sms)
    assert 0.8 < clock / (peaks.max_mhz * 1e6) <= 1.0


@pytest.mark.parametrize(
    ("device", "target"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB300", "b300"),
        ("NVIDIA GB10", "gb10"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A100-SXM4-80GB", None),
        ("Tesla T4", None),
    ],
)
def test_device_names(device, target):
    assert target_of(device) == target


def test_an_unknown_target_names_the_known_ones():
    with pytest.raises(BadInput, match=r"b200.*gb10"):
        find_target("v100")
