"""The GPU models avo-cute builds for: the limits of a build, and how fast they can be at most.

Sources: SM counts and L2 of B200/B300: NVIDIA Blackwell architecture technical brief and the
CUDA device queries published for those parts; H100: NVIDIA H100 whitepaper (132 SMs in the SXM
part, 50 MB L2); H200: the same die, its device query says 60 MiB L2; GB10: DGX Spark's device query
(48 SMs, 24 MB L2). Shared memory per block: CUDA C++ programming guide, table of compute
capabilities (227 KiB on 9.0 and 10.x, 99 KiB on 12.x). Peaks: see `PEAKS`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BadInput
from .records import Target

_KIB, _MIB = 1024, 1024 * 1024

TARGETS = {
    t.name: t
    for t in (
        Target("b200", "sm_100a", "sm100", 148, 227 * _KIB, 126 * _MIB, "NVIDIA B200"),
        Target("b300", "sm_103a", "sm100", 148, 227 * _KIB, 126 * _MIB, "NVIDIA B300"),
        Target("h200", "sm_90a", "sm90", 132, 227 * _KIB, 60 * _MIB, "NVIDIA H200"),
        Target("h100", "sm_90a", "sm90", 132, 227 * _KIB, 50 * _MIB, "NVIDIA H100"),
        Target("gb10", "sm_121a", "sm120", 48, 99 * _KIB, 24 * _MIB, "NVIDIA GB10 (DGX Spark)"),
    )
}


@dataclass(frozen=True, slots=True)
class Peaks:
    """What one GPU model cannot exceed. Rates "a clock" are per SM; a multiply-add is 2 FLOP.

    `datasheet_flops` (per second, dense bf16) is what NVIDIA prints and what published tables mean
    by peak. It holds at a boost clock that chips exceed, so it is no physical limit.
    """

    bf16: int  # dense bf16 FLOP a clock with fp32 accumulation, on tensor cores
    fp32: int  # lanes: FFMA, FMUL or FADD a clock
    mufu: int  # exponentials (MUFU.EX2) a clock
    bandwidth: float  # bytes of device memory per second
    max_mhz: int  # the highest SM clock that the driver names
    datasheet_flops: float


# bf16 a clock: data sheet / (SMs x boost clock). H100 whitepaper 989.4e12 / (132 x 1.83e9) = 4096;
# Blackwell brief 2.25e15 / (148 x 1.85e9) = 8218, that is 8192; GB10's 1 PFLOPS of sparse FP4 is
# 125e12 of dense bf16, / (48 x 2.418e9) = 1077, that is 1024. fp32 and mufu: CUDA C++ programming
# guide, arithmetic throughput (128 and 16); B300: NVIDIA on Blackwell Ultra, twice Blackwell's
# exponentials. Bandwidth: data sheets. max_mhz: `nvidia-smi -q -d CLOCK`, "Max Clocks", as seen on
# an H200 and as published for the others.
PEAKS = {
    "b200": Peaks(8192, 128, 16, 8.0e12, 1965, 2.25e15),
    "b300": Peaks(8192, 128, 32, 8.0e12, 2032, 2.25e15),
    "h200": Peaks(4096, 128, 16, 4.8e12, 1980, 989.4e12),
    "h100": Peaks(4096, 128, 16, 3.35e12, 1980, 989.4e12),
    "gb10": Peaks(1024, 128, 16, 273e9, 3003, 125e12),
}


def peaks_of(target: Target) -> Peaks:
    """The peaks of a target of `TARGETS`."""
    return PEAKS[target.name]


def find_target(name: str) -> Target:
    """The target called `name`; `BadInput` lists the known ones."""
    try:
        return TARGETS[name]
    except KeyError:
        raise BadInput(f"unknown target {name!r}: choose one of {', '.join(TARGETS)}") from None
