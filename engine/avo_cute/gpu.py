"""The GPUs of this machine and NVIDIA's tools for them; absence is an answer, not an error."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

# NVML's device names. GB200 and GB300 carry the same dies as B200 and B300. Left out are parts of
# the same name with fewer SMs or faster memory (H100 PCIe, H100 NVL) and GH200.
_NAMES = (
    (re.compile(r"\bG?B300\b"), "b300"),
    (re.compile(r"\bG?B200\b"), "b200"),
    (re.compile(r"\bH200\b"), "h200"),
    (re.compile(r"\bH100\b(?! PCIe| NVL)"), "h100"),
    (re.compile(r"\bGB10\b"), "gb10"),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: NVML's name, the target that fits it (or None), and the driver's version.

    `index` is its place on the PCI bus, as `--devices` counts; `uuid` is its name for ever.
    """

    name: str
    target: str | None
    driver: str
    index: int = 0
    uuid: str = ""


def find_gpus() -> list[Gpu]:
    """Every GPU that answers, in NVML's order; empty where there is no driver or no device."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        found = [_gpu(index, driver) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
    return [gpu for gpu in found if gpu is not None]


def _gpu(index: int, driver: str) -> Gpu | None:
    """A device, unless it has fallen off the bus: the others are still good."""
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name, uuid = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError:
        return None
    return Gpu(str(name), target_of(str(name)), driver, index, str(uuid))


def target_of(name: str) -> str | None:
    """The target for an NVML device name, e.g. "NVIDIA H200" -> "h200"."""
    return next((target for pattern, target in _NAMES if pattern.search(name)), None)


def cuda_tool(name: str) -> str | None:
    """Path of a program of the CUDA toolkit: on the PATH, or where its installer puts it."""
    usual = Path("/usr/local/cuda/bin") / name
    return shutil.which(name) or (str(usual) if usual.is_file() else None)


def counters_open(parameters: str, status: str) -> bool:
    """Whether a process may read the GPU's performance counters.

    `parameters` is the text of /proc/driver/nvidia/params (without it the driver's default holds,
    administrators only), `status` the process's /proc/self/status: what the driver asks for is
    the capability SYS_ADMIN, which root in a container usually lacks.
    """
    if re.search(r"^RmProfilingAdminOnly:\s*0$", parameters, re.MULTILINE):
        return True
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return effective is not None and bool(int(effective.group(1), 16) >> _CAP_SYS_ADMIN & 1)


_CAP_SYS_ADMIN = 21
