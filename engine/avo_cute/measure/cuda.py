"""One CUDA device behind the `Device` protocol: torch's current stream, its events, NVML."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from .device import Condition, Mark, device_faults
from .nvml import Nvml

_event: Callable[..., Any] = torch.cuda.Event
_sleep: Callable[[int], None] = torch.cuda._sleep

CALIBRATION_CYCLES = 2_000_000  # about a millisecond


class CudaDevice:
    """The device `index` of this process, with everything on one stream.

    Making it creates the CUDA context. The stream is the default one, torch's current stream in a
    process that makes no other, which is also what a linked object launches on. `turn` is told
    whose launches follow, twice a visit: it must be quick.
    """

    def __init__(
        self,
        index: int = 0,
        companions: int = 0,
        turn: Callable[[str], None] = lambda arm: None,
    ) -> None:
        with device_faults():
            torch.cuda.set_device(index)
            properties = torch.cuda.get_device_properties(index)
            self._stream = torch.cuda.current_stream(index)
            self.l2_bytes = int(properties.L2_cache_size)
            self._filler = torch.zeros(2 * self.l2_bytes, dtype=torch.uint8, device=f"cuda:{index}")
            torch.cuda.synchronize(index)
        self.index = index
        self.title = str(properties.name)
        self._nvml = Nvml(str(properties.uuid), index, companions)
        self._reset_persisting = _persisting_reset()
        self._hz = math.nan  # of the SM clock: how fast a waiting kernel counts
        self._turn = turn

    @property
    def torch_device(self) -> str:
        return f"cuda:{self.index}"

    def synchronize(self) -> None:
        with device_faults():
            torch.cuda.synchronize(self.index)

    def mark(self) -> Mark:
        event = _event(enable_timing=True)
        event.record(self._stream)
        return event

    def seconds(self, start: Mark, end: Mark) -> float:
        with device_faults():
            return float(start.elapsed_time(end)) / 1e3

    def clock(self) -> float:
        return time.perf_counter()

    def condition(self) -> Condition:
        """Also sets the rate at which `spin` counts: it waits in cycles of the SM clock, so the
        clock under load must be known, and that is when conditions are read."""
        now = self._nvml.condition()
        if now.sm_mhz > 0:
            self._hz = now.sm_mhz * 1e6
        return now

    def flush(self) -> None:
        with device_faults():
            self._filler.fill_(1)
        self._reset_persisting()

    def rest(self, seconds: float) -> None:
        self.synchronize()
        time.sleep(seconds)

    def spin(self, seconds: float) -> None:
        if math.isnan(self._hz):
            self._hz = self.measured_hz()
        _sleep(int(seconds * self._hz))

    def copier(self, size: int) -> Callable[[], None]:
        with device_faults():
            source = torch.ones(size, dtype=torch.uint8, device=self.torch_device)
            target = torch.empty_like(source)

        def copy() -> None:
            target.copy_(source)

        return copy

    def turn(self, arm: str) -> None:
        self._turn(arm)

    def measured_hz(self) -> float:
        """Cycles a second of a waiting kernel, by events; at the clock of this moment."""
        with device_faults():
            _sleep(CALIBRATION_CYCLES)
            start = self.mark()
            _sleep(CALIBRATION_CYCLES)
            end = self.mark()
            self.synchronize()
            return CALIBRATION_CYCLES / self.seconds(start, end)


def about(device: CudaDevice) -> dict[str, str | float]:
    """Device, driver, and how it is doing, for the verdict."""
    import pynvml
    import torch

    now = device.condition()
    return {
        "device": device.title,
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "sm_mhz": now.sm_mhz,
        "power_w": now.power_w,
        "temperature_c": now.temperature_c,
        "throttle": now.throttle,
    }


def _persisting_reset() -> Callable[[], object]:
    """The driver's call that makes persisting L2 lines normal again, for the current context.

    Objects cannot ask for persisting lines (their launch attributes are audited): this is a second
    lock on one door, so its absence is no error.
    """
    try:
        reset: Callable[[], object] = ctypes.CDLL("libcuda.so.1").cuCtxResetPersistingL2Cache
    except (OSError, AttributeError):
        return lambda: None
    return reset
