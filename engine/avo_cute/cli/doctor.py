"""`avo-cute doctor`: what this machine can do, and the remedy for what it cannot."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

import click

from . import options as o


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
    """What this machine can do: GPU, DSL, sandbox, disk, git, key. Exit 3 if builds cannot run."""
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
    """Every line, in the order in which a newcomer needs them."""
    return [_git(), _dsl(), _seed(), _nvdisasm(), *_sandbox(), _gpu(), _ncu(), _key(), _disk()]


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


def _gpu() -> Line:
    from ..gpu import find_gpu

    gpu = find_gpu()
    if gpu is None:
        return Line(
            "GPU",
            False,
            "none: scores are static estimates",
            "nothing to do unless you expected a GPU; then install NVIDIA's driver",
        )
    target = f"target {gpu.target}" if gpu.target else "no target of avo-cute fits it"
    return Line("GPU", gpu.target is not None, f"{gpu.name}, driver {gpu.driver}, {target}")


def _ncu() -> Line:
    where = shutil.which("ncu")
    return Line(
        "profiler",
        where is not None,
        where or "ncu not found",
        "install Nsight Compute to profile on a GPU",
    )


def _key() -> Line:
    there = bool(os.environ.get("ANTHROPIC_API_KEY"))
    return Line(
        "key",
        there,
        "ANTHROPIC_API_KEY is set" if there else "no ANTHROPIC_API_KEY",
        "not needed by the search operator",
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
