"""Whose fault it is that an evaluation ends early: the candidate's, or this machine's.

A candidate has machine code in the measuring process and no Python. What Python raises there, our
code or a task's reference raised; what a launch does is named after the arm whose launch it was.
"""

from __future__ import annotations

from ..records import Status
from .device import Device, DeviceFault, device_faults, one_line
from .job import BelowFloor, WrongResult

CANDIDATE = "candidate"
FAILURES = (WrongResult, BelowFloor, DeviceFault)  # of an arm
OURS = (
    RuntimeError,
    MemoryError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    ImportError,
    OSError,
)


def blame(failure: WrongResult | BelowFloor | DeviceFault) -> tuple[Status, str]:
    """Status and reason. A fault that no arm is named for came with the candidate."""
    arm = failure.arm or CANDIDATE
    if arm != CANDIDATE:
        return Status.INFRA_ERROR, str(failure)
    if isinstance(failure, WrongResult):
        return Status.INCORRECT, failure.text
    if isinstance(failure, BelowFloor):
        return Status.REJECTED, f"impossible: {failure}"
    return Status.CRASHED, f"{failure}"


def own_fault(error: Exception, device: Device) -> tuple[Status, str]:
    """Status and reason of one of `OURS`: out of memory in the reference, say. This machine's
    fault, unless the device is broken by now: then the error came with a launch."""
    try:
        with device_faults():
            device.synchronize()
    except DeviceFault as fault:
        return blame(fault)
    return Status.INFRA_ERROR, f"{type(error).__name__} in our own code: {one_line(error)}"
