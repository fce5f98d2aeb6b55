"""The sandbox: the only starter of child processes, and what keeps them from everything else.

Two layers do the same job. `bwrap` gives a child namespaces of its own: a file system of read-only
binds, no network, no other processes. `landlock` needs nothing installed: kernel rules on paths,
TCP, signals and abstract sockets, with a supervisor that outlives the child and kills what it
leaves behind. In both a seccomp filter refuses sockets other than unix ones and everything that
reaches into other processes or mounts, resources are limited, and the whole tree dies in the end.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import site
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import MachineFailed
from .process import Completed, Limits, kill_all, output_of, printable, supervise

__all__ = [
    "Completed",
    "Limits",
    "Probe",
    "choose_layer",
    "describe",
    "kill_all",
    "layers",
    "printable",
    "run",
]

CONFINE = Path(__file__).with_name("confine.py")


@dataclass(frozen=True, slots=True)
class Probe:
    """A layer tried on this machine: `detail` says what it is, or how to get it."""

    name: str
    works: bool
    detail: str


def run(
    argv: Sequence[str],
    *,
    read: Sequence[Path] = (),
    write: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    layer: str | None = None,
) -> Completed:
    """Run `argv` confined, until it ends or its time is over; nothing of it is left afterwards.

    It sees the interpreter, the system's libraries and `read` (read-only, at their own paths) and
    may write to `write` and to a private HOME, /tmp and /dev/shm. stdin is empty, the environment
    is ours. Raises `MachineFailed` if this machine cannot start it.
    """
    limits, layer = limits or Limits(), layer or choose_layer()
    with _private_folder() as home:
        before, spec = _layer(layer, read, write, home, limits)
        inner = [sys.executable, "-I", "-S", "-E", str(CONFINE)]
        variables = _variables(Path("/tmp") if layer == "bwrap" else home) | dict(env or {})

        def command(ready: int) -> list[str]:
            return [*before, *inner, str(ready), spec, *argv]

        try:
            return supervise(command, variables, limits)
        except OSError as error:
            raise MachineFailed(f"cannot run {argv[0]}: {error}") from None


def choose_layer(allow_none: bool = False) -> str:
    """The best layer that works here; "none" only where that was allowed and nothing works."""
    for probe in layers():
        if probe.works:
            return probe.name
    if allow_none:
        return "none"
    raise MachineFailed(
        "no sandbox works here, and candidates are not built without one: install bubblewrap, or "
        "accept the risk with --unsafe-no-sandbox"
    )


@cache
def layers() -> tuple[Probe, ...]:
    """Each layer, tried for real once per process."""
    return (_probe_bwrap(), _probe_landlock())


@cache
def describe(layer: str) -> str:
    """What a verdict's `Sandbox:` says, e.g. "bwrap+seccomp" or "landlock-7+seccomp"."""
    if layer == "none":
        return "none"
    return f"landlock-{landlock_abi()}+seccomp" if layer == "landlock" else f"{layer}+seccomp"


@cache
def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where it has none or it is switched off."""
    return int(output_of([sys.executable, "-I", "-S", "-E", str(CONFINE), "abi"]) or 0)


def _layer(
    layer: str, read: Sequence[Path], write: Sequence[Path], home: Path, limits: Limits
) -> tuple[list[str], str]:
    """What comes before our launcher, and the launcher's specification."""
    readable = [*_system(), *read, CONFINE]
    spec = {
        "landlock": layer == "landlock",
        "seccomp": layer != "none",
        "supervise": layer != "bwrap",  # bwrap's own process 1 does that
        "read": [str(p) for p in readable],
        "write": [*map(str, write), str(home), *_DEVICES],
        "limits": [limits.memory_bytes, limits.cpu_s, limits.file_bytes],
    }
    return (_bwrap(readable, write) if layer == "bwrap" else []), json.dumps(spec)


def _bwrap(read: Sequence[Path], write: Sequence[Path]) -> list[str]:
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for option, paths in (("--ro-bind", read), ("--bind", write)):
        for path in paths:
            words += [option, str(path), str(path)]
    return [*words, "--remount-ro", "/", "--chdir", "/tmp", "--"]


def _variables(home: Path) -> dict[str, str]:
    places = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "candidate",
        "LOGNAME": "candidate",
        **dict.fromkeys(places, str(home)),
    }


_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@cache
def _system() -> tuple[Path, ...]:
    """What every Python program needs to see: the system's libraries and the interpreter."""
    wanted = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache"]
    wanted += ["/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"]
    wanted += [sys.prefix, sys.base_prefix, str(Path(sys.executable).resolve().parent)]
    wanted += site.getsitepackages()
    kept: list[Path] = []
    for path in sorted({Path(p) for p in wanted if Path(p).exists()}, key=lambda p: len(p.parts)):
        if not any(path.is_relative_to(k) for k in kept if not k.is_symlink()):
            kept.append(path)
    return tuple(kept)


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="avo-cute-home-"))
    except OSError as error:
        raise MachineFailed(f"no temporary folder: {error}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _probe_bwrap() -> Probe:
    if shutil.which("bwrap") is None:
        return Probe("bwrap", False, "install bubblewrap (apt install bubblewrap)")
    done = _try("bwrap")
    if done:
        remedy = "this system forbids unprivileged namespaces (kernel.unprivileged_userns_clone, "
        return Probe("bwrap", False, f"{done}; {remedy}AppArmor)")
    return Probe("bwrap", True, "namespaces, no network, seccomp")


def _probe_landlock() -> Probe:
    abi = landlock_abi()
    if not abi:
        return Probe("landlock", False, "needs Linux 5.13 or newer with Landlock switched on")
    done = _try("landlock")
    if done:
        return Probe("landlock", False, done)
    return Probe("landlock", True, f"version {abi}, seccomp")


def _try(layer: str) -> str:
    """Why a layer does not work here, or an empty string."""
    try:
        done = run([sys.executable, "-I", "-S", "-c", "print(6 * 7)"], layer=layer)
    except MachineFailed as error:
        return str(error)
    return "" if done.stdout.strip() == "42" else (done.stderr.strip() or "no answer")[:200]
