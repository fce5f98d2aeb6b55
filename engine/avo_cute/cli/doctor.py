"""`avo-cute doctor`: what this machine can do, and the remedy for what it cannot."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options as o

if TYPE_CHECKING:
    from ..gpu import Gpu

_PIP = "pip install "


@dataclass(frozen=True, slots=True)
class Line:
    """One checked thing. `needed` says whether avo-cute can work at all without it."""

    name: str
    ok: bool
    says: str
    remedy: str = ""
    needed: bool = False


@click.command(epilog="Example:\n\n  avo-cute doctor --json")
@o.as_json
def doctor(as_json: bool) -> None:
    """What this machine can do: builds, measuring, profiles. Exit 3 if builds cannot run."""
    from dataclasses import asdict

    from .show import print_json

    lines = check()
    if as_json:
        print_json([asdict(line) for line in lines])
    else:
        for line in lines:
            mark = click.style("ok  ", fg="green") if line.ok else click.style("no  ", fg="yellow")
            remedy = f"\n        → {line.remedy}" if line.remedy and not line.ok else ""
            click.echo(f"{mark}{line.name:<10} {line.says}{remedy}")
    if any(line.needed and not line.ok for line in lines):
        click.get_current_context().exit(3)


def check() -> list[Line]:
    """Every line, in the order in which a newcomer needs them: build, measure, vary."""
    building = [_git(), _dsl(), _seed(), _nvdisasm(), *_sandbox(), _disk()]
    return [*building, *_measuring(), _key()]


def _git() -> Line:
    from ..repo import git_version

    found = git_version()
    return Line("git", bool(found), found or "not found", "install git ≥ 2.36", needed=True)


def _dsl() -> Line:
    from ..build.toolchain import toolchain
    from ..errors import MachineFailed

    try:
        return Line("DSL", True, toolchain(), needed=True)
    except MachineFailed as error:
        return Line("DSL", False, "not usable", str(error), needed=True)


def _seed() -> Line:
    from ..errors import AvoError
    from ..plan import seed_of
    from ..task import find_task

    try:
        seed = seed_of(find_task("fa4"))
    except AvoError as error:
        return Line("seed", False, "FlashAttention-4 is not as released", str(error))
    return Line("seed", True, f"{seed.upstream}, {len(seed.files)} files verified")


def _nvdisasm() -> Line:
    from ..build.toolchain import installed, version

    name = "nvidia-cuda-nvdisasm"
    there = installed(name)
    says = f"{name} {version(name)}" if there else "not found"
    return Line("nvdisasm", there, says, f"pip install {name}", needed=True)


def _sandbox() -> list[Line]:
    from ..sandbox import layers

    probes = layers()
    return [
        Line(
            p.name,
            p.works,
            p.detail if p.works else "does not work here",
            p.detail,
            needed=not any(q.works for q in probes),
        )
        for p in probes
    ]


def _measuring() -> list[Line]:
    """What measured scores need, and what only profiles and the last check need."""
    from ..gpu import find_gpus

    gpus = find_gpus()
    return [
        _gpu(gpus),
        _linker(),
        _torch(bool(gpus)),
        _tvm_ffi(),
        _ncu(),
        _counters(bool(gpus)),
        _sanitizer(),
    ]


def _gpu(gpus: Sequence[Gpu]) -> Line:
    if not gpus:
        return Line(
            "GPU",
            False,
            "none: scores are static estimates",
            "nothing to do unless you expected a GPU; then install NVIDIA's driver",
        )
    number = f"{len(gpus)} x " if len(gpus) > 1 else ""
    names = " and ".join(dict.fromkeys(gpu.name for gpu in gpus))
    targets = sorted({gpu.target for gpu in gpus if gpu.target})
    fits = f"target {', '.join(targets)}" if targets else "no target of avo-cute fits"
    says = f"{number}{names}, driver {gpus[0].driver}, {fits}"
    return Line("GPU", bool(targets), says, "measure on one of the targets that `evolve -h` names")


def _linker() -> Line:
    from ..sandbox.process import output_of

    with tempfile.TemporaryDirectory(prefix="avo-cute-doctor-") as folder:
        library = Path(folder) / "empty.so"
        if cc := shutil.which("cc", path="/usr/bin:/bin"):  # where a confined command looks
            output_of([cc, "-shared", "-o", str(library), "-x", "assembler", os.devnull])
        links = library.is_file()
    says = f"{cc} links libraries" if links else "cc cannot link a library"
    return Line("linker", links, says, "to measure, install a C compiler (apt install gcc)")


def _torch(gpu: bool) -> Line:
    """torch is asked for CUDA only where there is a GPU: importing it takes seconds."""
    from ..build.toolchain import installed, version
    from ..sandbox.process import output_of

    remedy = "to measure, install torch's build for CUDA (pip install torch)"
    if not installed("torch"):
        return Line("torch", False, "not found", remedy)
    says = f"torch {version('torch')}"
    if not gpu:
        return Line("torch", True, f"{says}, not asked for CUDA: there is no GPU")
    asked = "import torch; print(torch.version.cuda or 'none', torch.cuda.is_available())"
    cuda, _, works = output_of([sys.executable, "-c", asked]).partition(" ")
    if works == "True":
        return Line("torch", True, f"{says}, CUDA {cuda}")
    return Line("torch", False, f"{says} cannot use the GPU (CUDA {cuda or 'unknown'})", remedy)


def _tvm_ffi() -> Line:
    from ..build.toolchain import installed, version

    name = "apache-tvm-ffi"
    there = installed(name)
    return Line(
        "launcher", there, f"{name} {version(name)}" if there else f"no {name}", _PIP + name
    )


def _ncu() -> Line:
    from ..gpu import cuda_tool

    where = cuda_tool("ncu")
    remedy = "to profile on a GPU, install Nsight Compute (part of the CUDA toolkit)"
    return Line("profiler", where is not None, where or "ncu not found", remedy)


def _counters(gpu: bool) -> Line:
    from ..gpu import counters_open

    if not gpu:
        return Line("counters", False, "no GPU to count on", "profiles show the machine code alone")
    parameters = Path("/proc/driver/nvidia/params")
    text = parameters.read_text() if parameters.is_file() else ""
    there = counters_open(text, Path("/proc/self/status").read_text())
    return Line(
        "counters",
        there,
        "may be read by this user" if there else "for administrators only",
        "profile as root, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    )


def _sanitizer() -> Line:
    from ..gpu import cuda_tool

    where = cuda_tool("compute-sanitizer")
    remedy = "to check accepted kernels for races, install the CUDA toolkit"
    return Line("sanitizer", where is not None, where or "compute-sanitizer not found", remedy)


def _key() -> Line:
    from ..choice import KEYS, MODEL

    there = next((key for key in KEYS if os.environ.get(key)), "")
    address = os.environ.get("ANTHROPIC_BASE_URL", "")
    says = f"{there} is set, not tried: evolve asks {MODEL}" if there else f"no {KEYS[0]}"
    return Line(
        "key",
        bool(there),
        f"{says}, at {address}" if there and address else says,
        f"for the agent set {KEYS[0]}; search and commands of yours need none",
    )


def _disk() -> Line:
    from ..config import cache_dir

    folder = cache_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / 1e9
    return Line(
        "disk",
        free > 2,
        f"{free:.1f} GB free for the build cache {cache_dir()}",
        "free some space, or set AVO_CUTE_CACHE to a folder on another disk",
        needed=True,
    )
