"""The rig: this machine's GPUs and how they are measured on, for as long as a command runs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, local

from ..errors import MachineFailed
from ..sandbox import choose_layer
from ..stats import Calibration
from .devices import Devices, Gpu
from .link import link
from .process import Confinement, Setting, Worker, choose_measuring_layer
from .request import MeasureRequest, Result


@dataclass
class Rig:
    """GPUs, one candidate at a time on each, each with a process started ahead.

    `calibrations` is what each GPU, by name, makes of equal kernels.
    """

    devices: Devices
    setting: Setting
    libraries: Path  # folder of linked objects
    confinement: Confinement
    calibrations: dict[str, Calibration] = field(default_factory=dict)
    _held: local = field(default_factory=local, init=False)
    _ahead: dict[str, Worker] = field(default_factory=dict, init=False)
    _lock: Lock = field(default_factory=Lock, init=False)
    _closed: bool = field(default=False, init=False)

    @property
    def trailer(self) -> str:
        """What keeps measuring processes from the machine, for a verdict's `Sandbox:`."""
        return self.confinement.trailer

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.devices.gpus

    def link(self, objects: Mapping[str, Path]) -> dict[str, str]:
        """Linked library per workload.

        In the best sandbox layer, not in the one that CUDA starts in: a linker needs no GPU. Where
        no layer works there are objects to link only because builds without one were allowed.
        """
        layer = choose_layer(allow_none=True)
        return {name: str(path) for name, path in link(objects, self.libraries, layer).items()}

    @contextmanager
    def held(self, wanted: Gpu | None = None) -> Iterator[Gpu]:
        """Keep one GPU for this thread: all that it measures meanwhile is measured there."""
        already: Gpu | None = getattr(self._held, "gpu", None)
        if already is not None:
            yield already
            return
        devices = self.devices if wanted is None else self.devices.only(wanted)
        with devices.one() as gpu:
            self._held.gpu = gpu
            try:
                yield gpu
            finally:
                self._held.gpu = None

    @property
    def calibration(self) -> Calibration | None:
        """Of the GPU that this thread holds; None where it is not known."""
        gpu: Gpu | None = getattr(self._held, "gpu", None)
        return None if gpu is None else self.calibrations.get(gpu.name)

    def measure(self, request: MeasureRequest) -> Result:
        """One evaluation, alone on one GPU, in a fresh process. Raises `MachineFailed`."""
        with self.held() as gpu:
            worker = self._take(gpu)
            try:
                worker.submit(request)
                self._start_ahead(gpu)
                return worker.wait()
            finally:
                worker.close()

    def close(self) -> None:
        """End the processes that were started ahead."""
        with self._lock:
            self._closed = True
            waiting = list(self._ahead.values())
            self._ahead.clear()
        for worker in waiting:
            worker.close()

    def _take(self, gpu: Gpu) -> Worker:
        with self._lock:
            worker = self._ahead.pop(gpu.name, None)
        if worker is not None and worker.ended:
            worker.close()
            worker = None
        return worker or Worker(self.setting, gpu.name)

    def _start_ahead(self, gpu: Gpu) -> None:
        with self._lock:
            if not self._closed and gpu.name not in self._ahead:
                self._ahead[gpu.name] = Worker(self.setting, gpu.name)


def open_rig(task: Path, cache: Path, gpus: Sequence[Gpu], told: Callable[[str], None]) -> Rig:
    """These GPUs (see `find_devices`), once CUDA was seen to start confined.

    Raises `MachineFailed` where there is none, or CUDA does not start.
    """
    if not gpus:
        raise MachineFailed("no GPU to measure on")
    devices = Devices(gpus, cache / "devices", told)
    libraries = cache / "linked"
    libraries.mkdir(parents=True, exist_ok=True)
    setting = Setting("none", read=(task, libraries))
    with devices.one() as gpu:
        confinement = choose_measuring_layer(setting, gpu.name)
    setting = Setting(confinement.layer, read=(task, libraries))
    return Rig(devices, setting, libraries, confinement)


def fresh_seed() -> int:
    """A seed from the operating system: no candidate can have known it."""
    return secrets.randbits(62)
