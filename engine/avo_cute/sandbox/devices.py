"""Which device files a confined process may use, and what it may read about them: for CUDA."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from .process import output_of


@dataclass(frozen=True, slots=True)
class Devices:
    """Device files to read, write and control, and what describes them.

    `facts` are folders of /sys; `proc` are names in /proc, for the layer that shows the real one
    (bwrap mounts a /proc of its own, which has them all). `own` may be written to as well: CUDA
    names its threads there, and does not start where it cannot. `shared` is what must stay
    read-only of a /proc that may be written to: it is the whole machine's.
    """

    nodes: tuple[Path, ...] = ()
    facts: tuple[Path, ...] = ()
    proc: tuple[Path, ...] = ()
    own: tuple[Path, ...] = ()
    shared: tuple[Path, ...] = ()


def gpu_devices() -> Devices:
    """All NVIDIA GPUs of this machine; which of them CUDA uses is for the environment to say."""
    if not Path("/dev/nvidia-uvm").exists() and shutil.which("nvidia-modprobe"):
        # CUDA's first start makes it, with rights that a confined process does not have
        output_of(["nvidia-modprobe", "-u", "-c", "0"])
    found = sorted(Path("/dev").glob("nvidia*"))
    nodes = [node for path in found for node in ([path] if not path.is_dir() else path.iterdir())]
    return Devices(tuple(nodes), _there(_FACTS), _there(_PROC), _there(_OWN), _there(_SHARED))


def _there(names: tuple[str, ...]) -> tuple[Path, ...]:
    return tuple(path for path in map(Path, names) if path.exists())


# What the driver's library sizes itself by: processors, memory nodes, the PCI bus.
_FACTS = ("/sys/devices", "/sys/bus/pci", "/sys/class", "/sys/module", "/sys/kernel/mm")
_OWN = ("/proc/self",)
_SHARED = tuple(f"/proc/{n}" for n in "sys sysrq-trigger irq bus fs acpi driver mtrr".split())
_PROC = ("/proc/driver", "/proc/devices", "/proc/modules", "/proc/filesystems")
