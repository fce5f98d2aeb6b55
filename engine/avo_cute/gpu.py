"""The GPU of this machine, through NVML; absence is an answer, not an error."""

from __future__ import annotations

from dataclasses import dataclass

# Substrings of NVML device names. GB200/GB300 carry the same dies as B200/B300.
_NAMES = (
    ("B300", "b300"),
    ("B200", "b200"),
    ("H200", "h200"),
    ("H100", "h100"),
    ("GB10", "gb10"),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: NVML's name, the target that fits it (or None), and the driver's version."""

    name: str
    target: str | None
    driver: str


def find_gpu() -> Gpu | None:
    """The first GPU, or None where there is no driver or no device."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        if pynvml.nvmlDeviceGetCount() == 0:
            return None
        name = str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    return Gpu(name, target_of(name), driver)


def target_of(name: str) -> str | None:
    """The target for an NVML device name, e.g. "NVIDIA H200" -> "h200"."""
    return next((target for part, target in _NAMES if part in name.upper()), None)
