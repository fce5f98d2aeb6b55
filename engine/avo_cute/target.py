"""The GPU models avo-cute builds for, with the limits that a build can be checked against.

Sources: SM counts and L2 of B200/B300: NVIDIA Blackwell architecture technical brief and the
CUDA device queries published for those parts; H100/H200: NVIDIA H100 whitepaper (132 SMs in the
SXM part, 50 MB L2); GB10: DGX Spark's device query (48 SMs, 24 MB L2). Shared memory per block:
CUDA C++ programming guide, table of compute capabilities (227 KiB on 9.0 and 10.x, 99 KiB on 12.x).
"""

from __future__ import annotations

from .errors import BadInput
from .records import Target

_KIB, _MIB = 1024, 1024 * 1024

TARGETS = {
    t.name: t
    for t in (
        Target("b200", "sm_100a", "sm100", 148, 227 * _KIB, 126 * _MIB, "NVIDIA B200"),
        Target("b300", "sm_103a", "sm100", 148, 227 * _KIB, 126 * _MIB, "NVIDIA B300"),
        Target("h200", "sm_90a", "sm90", 132, 227 * _KIB, 50 * _MIB, "NVIDIA H200"),
        Target("h100", "sm_90a", "sm90", 132, 227 * _KIB, 50 * _MIB, "NVIDIA H100"),
        Target("gb10", "sm_121a", "sm120", 48, 99 * _KIB, 24 * _MIB, "NVIDIA GB10 (DGX Spark)"),
    )
}


def find_target(name: str) -> Target:
    """The target called `name`; `BadInput` lists the known ones."""
    try:
        return TARGETS[name]
    except KeyError:
        raise BadInput(f"unknown target {name!r}: choose one of {', '.join(TARGETS)}") from None
