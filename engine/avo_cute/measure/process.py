"""One measuring process, seen from the engine: started ahead, asked once, killed where it hangs.

It has a folder, the only place that it may write to: our request appears in it, its phases and its
result come from it. A candidate's machine code runs in there, so it is confined, and what it
leaves is judged like anything a candidate made.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self

from .. import sandbox
from ..errors import MachineFailed, Stopped
from ..records import Status
from .answer import Unbelievable, read_answer
from .kernel import RUNTIME_VARIABLE, find_runtime
from .request import REQUEST, RESULT, MeasureRequest, Result, write
from .watch import Watch

_HERE = Path(__file__).parent
_PYTHON = (sys.executable, "-I", "-W", "ignore")
_PROBE_S = 90.0
_DETAIL_CHARACTERS = 1500
_LIMITS = sandbox.Limits(
    wall_s=7 * 86_400.0,  # the watch ends it: it may have been started long ahead
    cpu_s=86_400,
    memory_bytes=1 << 50,  # CUDA reserves addresses for every byte of every GPU
    grace_s=60.0,  # the driver first ends what runs on the GPU
)


@dataclass(frozen=True, slots=True)
class Setting:
    """How measuring processes are started on this machine.

    `layer` is the sandbox layer, "none" where they run unconfined. `read` holds everything a
    request may name: the task directory and the folder of linked libraries. The commands are given
    the process's folder as their last argument. `start_s` is for getting ready, `limit_s` for one
    request, whatever it consists of.
    """

    layer: str
    read: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    worker: tuple[str, ...] = (*_PYTHON, str(_HERE / "worker.py"))
    prober: tuple[str, ...] = (*_PYTHON, str(_HERE / "probe.py"))
    start_s: float = 180.0
    limit_s: float = 900.0


class Worker:
    """A measuring process on one GPU: `submit` once, `wait` once; or `close` it unused."""

    def __init__(self, setting: Setting, device: str) -> None:
        """Start it; it gets ready by itself. `device` is for CUDA_VISIBLE_DEVICES."""
        self._setting, self._device = setting, device
        try:
            self._base = Path(tempfile.mkdtemp(prefix="avo-cute-measure-"))
        except OSError as error:
            raise MachineFailed(f"no temporary folder to measure in: {error}") from None
        self.folder = self._base / "process"
        self.folder.mkdir()
        self._watch = Watch(self.folder, setting.start_s, setting.limit_s)
        self._ended: Future[sandbox.Completed] = Future()
        self._thread = Thread(target=self._run, name=f"measure on {device}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the process is gone, for whatever reason."""
        return self._ended.done()

    def submit(self, request: MeasureRequest) -> None:
        """Ask; at once, or when it is ready."""
        self._watch.ask()
        write(request, self.folder / REQUEST)

    def wait(self) -> Result:
        """What it found, or how it failed; then nothing of it is left.

        Raises `MachineFailed` where it never got as far as its request, says itself that the
        machine is at fault, hangs while the candidate does not run, or left a GPU behind that does
        not answer.
        """
        try:
            result = self._judge(self._ended.result())
            if result.status in (Status.CRASHED, Status.TIMED_OUT):
                probe(self._setting, self._device, f" after a candidate {result.status}")
        finally:
            self.close()
        return result

    def close(self) -> None:
        """Kill what is still running and remove the folder; may be called at any time."""
        self._watch.stop()
        self._thread.join()
        sandbox.remove(self._base)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        command = (*self._setting.worker, str(self.folder))
        try:
            done = start(self._setting, self._device, command, self.folder, self._watch)
        except MachineFailed as error:
            self._ended.set_exception(error)
        else:
            self._ended.set_result(done)

    def _judge(self, done: sandbox.Completed) -> Result:
        self._watch.look()
        ending = self._watch.overrun if done.timed_out else _ending(done)
        if not ending:
            try:
                result = read_answer(self.folder / RESULT, self._base / RESULT)
            except Unbelievable as error:
                ending = str(error)
            else:
                if result.status == Status.INFRA_ERROR:
                    raise MachineFailed(f"measuring failed: {result.reason}")
                return result
        said = done.stderr.strip()[-_DETAIL_CHARACTERS:]
        if not self._watch.begun:
            last = said.splitlines()[-1][:300] if said else "no message"
            raise MachineFailed(f"the measuring process did not start: {ending}: {last}")
        if done.timed_out and not self._watch.hung:
            return Result(Status.TIMED_OUT, f"the measuring process hangs: {ending}", said)
        if done.timed_out:
            raise MachineFailed(f"{self._watch.hung} hangs on this machine: {ending}")
        if done.returncode == -signal.SIGKILL and (other := self._watch.other()):
            raise MachineFailed(f"killed while {other} ran, out of memory perhaps: {said[-300:]}")
        during = f"the measuring process {ending}, during {self._watch.phase!r}"
        return Result(Status.CRASHED, during, said)


def probe(setting: Setting, device: str, after: str = "") -> str:
    """Compute something on the GPU in a fresh, trusted process; returns what it says of the GPU.

    Raises `MachineFailed` if that fails; `after` says what happened before.
    """
    with tempfile.TemporaryDirectory(prefix="avo-cute-probe-") as folder:
        limited = replace(_LIMITS, wall_s=_PROBE_S)
        done = start(setting, device, (*setting.prober, folder), Path(folder), limits=limited)
    if done.returncode == 0 and done.stdout.startswith("ok "):
        return done.stdout.removeprefix("ok ").strip()
    why = f"no answer within {_PROBE_S:g} s" if done.timed_out else _ending(done) or "no answer"
    said = (done.stderr.strip() or "no message").splitlines()[-1][:300]
    if not after:
        raise MachineFailed(f"CUDA does not start on GPU {device}: {why}: {said}")
    remedy = "reset it (nvidia-smi --gpu-reset) or take another with --devices"
    raise MachineFailed(f"GPU {device} does not answer{after}; {why}: {said}; {remedy}")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What keeps measuring processes from the rest of the machine. `why` says what was tried in
    vain before; it is empty where the best layer works."""

    layer: str
    why: str = ""

    @property
    def trailer(self) -> str:
        """For a verdict's `Sandbox:`."""
        named = "unconfined" if self.layer == "none" else sandbox.describe(self.layer)
        return f"measure: {named}"


def choose_measuring_layer(setting: Setting, device: str) -> Confinement:
    """The first layer in which CUDA starts, tried for real; "none" where it starts in no other.

    An object that is measured has passed the audit, so it is measured unconfined rather than not
    at all, and the verdict says so. Raises `MachineFailed` where CUDA does not start at all.
    """
    failed: list[str] = []
    for layer in (*(p.name for p in sandbox.layers() if p.works), "none"):
        try:
            probe(replace(setting, layer=layer), device)
        except Stopped:
            raise
        except MachineFailed as error:
            failed.append(f"{layer}: {error}")
        else:
            return Confinement(layer, "; ".join(failed))
    raise MachineFailed(failed[-1].removeprefix("none: "))


def start(
    setting: Setting,
    device: str,
    command: tuple[str, ...],
    folder: Path,
    watch: Watch | None = None,
    limits: sandbox.Limits = _LIMITS,
) -> sandbox.Completed:
    """Run a command that uses one GPU and may write to `folder`, to its end."""
    runtime = find_runtime()
    libraries = _library_path()
    env = {
        "CUDA_VISIBLE_DEVICES": device,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_CACHE_DISABLE": "1",
        "PYTHONNOUSERSITE": "1",
        RUNTIME_VARIABLE: str(runtime),
    }
    if libraries:
        env["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    return sandbox.run(
        command,
        read=[_HERE.parents[1], runtime, *libraries, *setting.read],
        write=[folder],
        env=env | dict(setting.env),
        limits=limits,
        layer=setting.layer,
        devices=sandbox.gpu_devices(),
        stop=None if watch is None else watch.over,
    )


def _library_path() -> list[Path]:
    """Where this machine was told to look for the driver's libraries."""
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return [Path(p).resolve() for p in named if p.startswith("/") and Path(p).is_dir()]


def _ending(done: sandbox.Completed) -> str:
    """How a process ended that should have ended well; empty if it did."""
    code = done.returncode
    if code is None:
        return "was stopped"
    if code < 0:
        known = -code in {int(s) for s in signal.Signals}
        return f"was killed by {signal.Signals(-code).name if known else -code}"
    return f"exited with status {code}" if code else ""
