"""A GPU as the measuring worker uses it, behind a protocol that a simulated one fits too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ..records import Param

Tensor = Any  # torch.Tensor; torch is imported in the worker only
Mark = Any  # a point in the stream's time


@dataclass(frozen=True, slots=True)
class Condition:
    """The device at one moment, as NVML reports it: NaN (or 0) where it reports nothing.

    `throttle` is NVML's bit mask of reasons why the clock is lower than it could be.
    """

    sm_mhz: float
    power_w: float
    temperature_c: float
    throttle: int
    others: int  # other processes that use the device


class Device(Protocol):
    """What correctness and timing need from a GPU (`CudaDevice`) or from `SimulatedDevice`."""

    @property
    def torch_device(self) -> str:
        """Where tensors go: "cuda:0", or "cpu" for a simulated device."""
        ...

    def synchronize(self) -> None:
        """Wait for everything that was launched; raises `DeviceFault` where a launch failed."""
        ...

    def mark(self) -> Mark:
        """A point on the stream, behind everything launched so far."""
        ...

    def seconds(self, start: Mark, end: Mark) -> float:
        """Device time between two marks, once both have passed."""
        ...

    def clock(self) -> float:
        """The host's monotonic clock, in seconds."""
        ...

    def condition(self) -> Condition:
        """The state now; takes well under a millisecond and may be called while work is queued."""
        ...

    def flush(self) -> None:
        """Put something else into the L2 cache (twice its size), persisting lines included."""
        ...

    def rest(self, seconds: float) -> None:
        """Leave the device idle."""
        ...

    def spin(self, seconds: float) -> None:
        """Launch a kernel that only waits, for a known delay; 0 is an empty launch."""
        ...

    def copier(self, size: int) -> Callable[[], None]:
        """A launch that copies `size` bytes from one place in device memory to another."""
        ...

    def turn(self, arm: str) -> None:
        """Say whose launches follow, an arm's name or "" for our own: for `running`."""
        ...


@contextmanager
def running(device: Device, arm: str) -> Iterator[None]:
    """What is launched and waited for in here is `arm`'s: a hang is put down to it."""
    device.turn(arm)
    try:
        yield
    finally:
        device.turn("")


class DeviceFault(Exception):
    """A launch failed: an illegal address, a refused configuration. The process is of no more
    use; `str()` is one line. `arm` is whose launch it was, where that is known."""

    def __init__(self, text: str, arm: str = "") -> None:
        blamed = not arm or text.startswith(f"{arm}: ")
        super().__init__(text if blamed else f"{arm}: {text}")
        self.text, self.arm = text, arm


class Unavailable(Exception):
    """An arm that cannot run this workload on this device; `str()` is one line."""


@contextmanager
def device_faults(arm: str = "") -> Iterator[None]:
    """Turn what torch raises for a failed launch into a `DeviceFault` that blames `arm`.

    torch.AcceleratorError and its elders are all `RuntimeError`; an error of an asynchronous
    launch surfaces in whichever call comes next. Memory that torch cannot get is no fault of a
    launch: only our own code asks torch for some.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        raise DeviceFault(one_line(error), arm) from error
    except DeviceFault as fault:
        raise DeviceFault(fault.text, fault.arm or arm) from fault.__cause__


def one_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where there is none."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


class Arm(Protocol):
    """One contender: a linked object, a library's kernel, or (in tests) a Python function."""

    @property
    def name(self) -> str: ...

    def bind(
        self, params: Mapping[str, Param], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        """A launch with everything but the call done: calling it launches once, into `outputs`."""
        ...
