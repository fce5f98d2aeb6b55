"""What an operator is told about where a candidate's time goes: counters, and the hot loop.

`profile_of` takes a verdict and gives text of at most 4 kB. The counters need the target's GPU,
`ncu` and a driver that lets this user count; the machine code is always there to look at. Nothing
here decides anything.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from . import sandbox
from .bench import Bench
from .build.elf import read_object
from .build.sass import Kernel, disassemble
from .gpu import counters_open
from .measure import profiling
from .measure.hotloop import describe_loops
from .measure.process import start
from .measure.profile import DIGEST_BYTES, Start, profile
from .measure.profiling import Ask
from .measure.rig import fresh_seed
from .records import Failure, Status, Verdict, Workload

OBJECTS = 2  # of a candidate that has more, these are told about
_RUNS_WELL = (Status.ACCEPTED, Status.EQUAL, Status.REJECTED, Status.NO_CHANGE)
_LIMITS = sandbox.Limits(
    wall_s=150.0,
    cpu_s=3600,
    memory_bytes=1 << 50,  # CUDA reserves addresses for every byte of every GPU
    file_bytes=16 << 30,  # ncu may keep device memory in files between its passes
    grace_s=60.0,
)


def profile_of(verdict: Verdict, bench: Bench) -> str:
    """A digest (≤ 4 kB) of the shortest workload of each of a candidate's objects, two at most.

    Says in a line why there are no counters where there are none. Raises `MachineFailed` only
    where this machine cannot link the object.
    """
    chosen = representatives(verdict, bench)
    if not chosen:
        return f"nothing to profile: the candidate is {verdict.status} and has no objects"
    room = DIGEST_BYTES // len(chosen) - 1
    return "\n".join(_of_one(verdict, bench, w, room) for w in chosen)


def representatives(verdict: Verdict, bench: Bench) -> list[Workload]:
    """The public workload with the least work of each distinct object, of as many classes as
    there can be."""
    by_object: dict[Path, Workload] = {}
    for w in sorted(bench.workloads, key=lambda w: float(bench.task.reference.flops(w.params))):
        if w.name in verdict.objects and verdict.launches.get(w.name):
            by_object.setdefault(verdict.objects[w.name], w)
    first: dict[str, Workload] = {}
    for w in by_object.values():
        first.setdefault(w.class_name, w)
    others = [w for w in by_object.values() if w not in first.values()]
    return [*first.values(), *others][:OBJECTS]


def _of_one(verdict: Verdict, bench: Bench, workload: Workload, room: int) -> str:
    path, launch = verdict.objects[workload.name], verdict.launches[workload.name][0]
    same = [w.name for w in bench.workloads if verdict.objects.get(w.name) == path]
    head = f"{workload.name} (the object of {', '.join(same)})"[:200]
    room -= len(head.encode()) + 1
    kernels = _kernels(path)
    if why := _why_not_launched(verdict, bench):
        line = f"no counters: {why}"
        loops = describe_loops(kernels, launch, room - len(line.encode()) - 1)
        return f"{head}\n{line}\n{loops}"
    assert bench.rig is not None
    with bench.rig.held() as gpu, tempfile.TemporaryDirectory(prefix="avo-cute-profile-") as made:
        folder = Path(made)
        library = bench.rig.link({workload.name: path})[workload.name]
        Ask(
            str(bench.task.directory),
            bench.target.name,
            library,
            dict(workload.params),
            fresh_seed(),
        ).write(folder)
        found = profile(
            _command(folder),
            _outside(bench, gpu.name, folder),
            kernels,
            launch,
            folder / "ncu.csv",
            room,
        )
    return f"{head}\n{found.text}"


def _why_not_launched(verdict: Verdict, bench: Bench) -> str:
    if bench.rig is None:
        return f"nothing is launched: no {bench.target.title} here, or --devices none"
    if verdict.status not in _RUNS_WELL:
        return f"a candidate that is {verdict.status} is not launched"
    return ""


def _command(folder: Path) -> Sequence[str]:
    return (sys.executable, "-I", "-W", "ignore", str(Path(profiling.__file__)), str(folder))


def _outside(bench: Bench, device: str, folder: Path) -> Start:
    """Starts a command outside the sandbox: ncu and its process speak through sockets and shared
    files, and count with a right that is root's on most machines. What it launches has passed the
    audit; where it was measured it also kept the launch contract."""
    assert bench.rig is not None
    setting = replace(bench.rig.setting, layer="none")
    parameters = Path("/proc/driver/nvidia/params")
    text = parameters.read_text() if parameters.is_file() else ""
    limits = replace(_LIMITS, privileged=not counters_open(text, ""))
    return lambda argv: start(setting, device, tuple(argv), folder, limits=limits)


def _kernels(path: Path) -> tuple[Kernel, ...]:
    """Kernels of an object that was audited; none where it cannot be read any more."""
    found = read_object(path.read_bytes())
    kernels = found if isinstance(found, Failure) else disassemble(found.cubin)
    return () if isinstance(kernels, Failure) else kernels
