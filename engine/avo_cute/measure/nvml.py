"""What NVML says about one device; a reading that the driver refuses is NaN, never an error."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any

import pynvml

from .device import Condition

SLOW_S = 0.25  # power, temperature and the list of processes are read no more often than this


class Nvml:
    """One device. Make it when this process already uses the device: it is then in the list of
    processes, and what is beyond that list later is another's.

    `uuid` as CUDA gives it, with or without "GPU-"; `index` is used where NVML does not know it.
    `companions` is how many other processes of ours may hold the device idle.
    """

    def __init__(self, uuid: str, index: int = 0, companions: int = 0) -> None:
        self._handle = _handle(uuid, index)
        self._companions = companions
        self._at_start = len(self._processes())
        self._slow = (math.nan, math.nan, 0)  # power in W, temperature in °C, others
        self._slow_at = -math.inf

    def condition(self) -> Condition:
        mhz = self._ask(lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM))
        reasons = self._ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        if time.monotonic() - self._slow_at > SLOW_S:
            self._slow = self._read_slow()
            self._slow_at = time.monotonic()
        power, temperature, others = self._slow
        return Condition(
            mhz, power, temperature, 0 if math.isnan(reasons) else int(reasons), others
        )

    def _read_slow(self) -> tuple[float, float, int]:
        milliwatts = self._ask(pynvml.nvmlDeviceGetPowerUsage)
        sensor = pynvml.NVML_TEMPERATURE_GPU
        temperature = self._ask(lambda h: pynvml.nvmlDeviceGetTemperature(h, sensor))
        return milliwatts / 1000, temperature, self._others()

    def _others(self) -> int:
        """In a PID namespace our own entry has an unknown number: then only what came later
        counts."""
        listed = self._processes()
        known = 1 + self._companions if os.getpid() in listed else self._at_start
        return max(0, len(listed) - known)

    def _processes(self) -> list[int]:
        if self._handle is None:
            return []
        try:
            found = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except pynvml.NVMLError:
            return []
        return [int(p.pid) for p in found]

    def _ask(self, question: Callable[[Any], float]) -> float:
        if self._handle is None:
            return math.nan
        try:
            return float(question(self._handle))
        except pynvml.NVMLError:
            return math.nan


def _handle(uuid: str, index: int) -> Any:
    """NVML's handle of a device, None where there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
    except pynvml.NVMLError:
        pass
    try:
        return pynvml.nvmlDeviceGetHandleByIndex(index)
    except pynvml.NVMLError:
        return None
