"""The sandbox: the only starter of child processes, and what keeps them from everything else.

Two layers do the same job. `bwrap` gives a child namespaces of its own: a file system of read-only
binds, no network, no other processes. `landlock` needs nothing installed: kernel rules on paths,
TCP, signals and abstract sockets, with a supervisor that outlives the child and kills what it
leaves behind. In both a seccomp filter refuses sockets to anybody outside and everything that
reaches into other processes or mounts, resources are limited, and the whole tree dies in the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..errors import MachineFailed, Stopped
from . import seccomp
from .devices import Devices, gpu_devices
from .pool import Pool
from .process import Completed, Limits, Signs, kill_all, output_of, remove, signs, supervise
from .streams import printable, read_regular

__all__ = [
    "Completed",
    "Devices",
    "Limits",
    "Pool",
    "Probe",
    "choose_layer",
    "describe",
    "gpu_devices",
    "kill_all",
    "layers",
    "printable",
    "read_regular",
    "remove",
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
    hide: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    limits: Limits | None = None,
    layer: str | None = None,
    devices: Devices | None = None,
    stop: Callable[[], bool] | None = None,
) -> Completed:
    """Run `argv` confined, until it ends or its time is over; nothing of it is left afterwards.

    It sees the interpreter, the system's libraries and `read` (read-only, at their own paths) and
    may write to `write` and to a private HOME, /tmp and /dev/shm; nothing below `hide` can be read.
    stdin is empty, the environment is ours, `cwd` is its HOME where none is given. `devices` are
    the device files it may use. `stop` is asked many times a second, from the calling thread; True
    ends the command as the end of its time does. Raises `MachineFailed` if this machine cannot
    start it.
    """
    limits, layer = limits or Limits(), layer or choose_layer()
    try:
        with _private_folder(layer) as home, signs(layer == "bwrap") as told:
            hidden = tuple(p for p in hide if p.is_dir())
            paths = _Paths(tuple(read), tuple(write), hidden, home, devices)
            spec = _spec(layer, paths, limits, cwd, told)
            command = _command(layer, argv, paths, spec, told)
            done = supervise(command, _variables(home) | dict(env or {}), limits, told, stop)
    except OSError as error:
        raise MachineFailed(f"cannot run {argv[0]}: {error}") from None
    return replace(done, layers=() if layer == "none" else tuple(describe(layer).split("+")))


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


@dataclass(frozen=True, slots=True)
class _Paths:
    """What a command may see and change."""

    read: tuple[Path, ...]
    write: tuple[Path, ...]
    hide: tuple[Path, ...]
    home: Path
    devices: Devices | None = None


def _command(layer: str, argv: Sequence[str], paths: _Paths, spec: str, told: Signs) -> list[str]:
    """The full command line of a layer."""
    inner = [sys.executable, "-I", "-S", "-E", str(CONFINE), spec, *argv]
    return [*_bwrap(paths, told), *inner] if layer == "bwrap" else inner


def _spec(layer: str, paths: _Paths, limits: Limits, cwd: Path | None, told: Signs) -> str:
    """What confine.py is to do, as JSON."""
    devices = paths.devices or Devices()
    readable, listed = _around((*_system(), *paths.read), paths.hide)
    gpu = paths.devices is not None
    filter_ = b"" if layer == "none" else seccomp.program(layer, landlock_abi(), gpu)
    spec = {
        "landlock": {"landlock": "paths", "bwrap": "processes"}.get(layer, ""),
        "seccomp": filter_.hex(),
        "supervise": layer != "bwrap",  # bwrap's own process 1 does that
        "read": [str(p) for p in (*readable, *devices.facts, *devices.proc)],
        "list": [str(p) for p in listed],
        "write": [*map(str, (*paths.write, paths.home, *devices.nodes, *devices.own)), *_DEVICES],
        "limits": [limits.memory_bytes, limits.cpu_s, limits.file_bytes],
        "nice": limits.nice,
        "privileged": limits.privileged,
        "home": str(paths.home),
        "cwd": str(cwd or paths.home),
        "started": told.started[1],
    }
    return json.dumps(spec)


def _bwrap(paths: _Paths, told: Signs) -> list[str]:
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    words += ["--info-fd", str(told.info[1])]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", str(_BWRAP_HOME)]
    devices = paths.devices or Devices()
    binds = ("--ro-bind", (*_system(), *paths.read, CONFINE, *devices.facts))
    for option, chosen in (binds, ("--bind", paths.write), ("--dev-bind", devices.nodes)):
        for path in chosen:
            words += [option, str(path), str(path)]
    for path in paths.hide:
        words += ["--tmpfs", str(path)]
    # /proc/sys is the whole machine's: root may write to it even without any capability
    if paths.devices is None:
        words += ["--remount-ro", "/proc"]
    else:
        for path in devices.shared:
            words += ["--ro-bind", str(path), str(path)]
    return [*words, "--remount-ro", "/", "--"]


def _variables(home: Path) -> dict[str, str]:
    places = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "USER": "candidate",  # there is no /etc/passwd to look it up in
        "LOGNAME": "candidate",
        **dict.fromkeys(places, str(home)),
    }


_BWRAP_HOME = Path("/tmp/avo-cute-home")  # in the sandbox's own /tmp, which is memory
_OLDEST_LANDLOCK = 3  # before, any file could be truncated
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


@cache
def _system() -> tuple[Path, ...]:
    """What every Python program needs to see: the system's libraries and the interpreter."""
    wanted = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache"]
    wanted += ["/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/alternatives"]
    wanted += [sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix)]
    wanted += [*map(str, _links(Path(sys.executable))), str(Path(os.__file__).parent)]
    wanted += site.getsitepackages()
    kept: list[Path] = []
    for path in sorted({Path(p) for p in wanted if Path(p).exists()}, key=lambda p: len(p.parts)):
        if not any(path.is_relative_to(k) for k in kept if not k.is_symlink()):
            kept.append(path)
    return tuple(kept)


def _around(granted: Sequence[Path], hide: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """What to grant so that all of `granted` but `hide` can be read, and folders only to list.

    A rule of Landlock holds for everything below its path: a folder that contains a hidden one is
    granted entry by entry.
    """
    readable, listed = [], []
    queue = list(granted)
    while queue:
        path = queue.pop()
        real = path.resolve()
        if any(real.is_relative_to(h.resolve()) for h in hide):
            continue
        if any(h.resolve().is_relative_to(real) for h in hide):
            listed.append(path)
            queue += path.iterdir()
        else:
            readable.append(path)
    return readable, listed


def _links(path: Path) -> Iterator[Path]:
    """The folders that a chain of links goes through, from `path` to the file itself."""
    for _ in range(40):  # as many as the kernel follows
        yield path.parent
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


@contextlib.contextmanager
def _private_folder(layer: str) -> Iterator[Path]:
    if layer == "bwrap":
        yield _BWRAP_HOME
        return
    try:
        folder = Path(tempfile.mkdtemp(prefix="avo-cute-home-"))
    except OSError as error:
        raise MachineFailed(f"no temporary folder: {error}") from None
    try:
        yield folder
    finally:
        remove(folder)


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
    if abi < _OLDEST_LANDLOCK or not seccomp.supported():
        needs = "needs Linux 6.2 or newer with Landlock switched on, on x86_64 or aarch64"
        return Probe("landlock", False, needs)
    done = _try("landlock")
    if done:
        return Probe("landlock", False, done)
    return Probe("landlock", True, f"version {abi}, seccomp")


def _try(layer: str) -> str:
    """Why a layer does not work here, or an empty string."""
    try:
        done = run([sys.executable, "-I", "-S", "-c", "print(6 * 7)"], layer=layer)
    except Stopped:
        raise
    except MachineFailed as error:
        return str(error)
    return "" if done.stdout.strip() == "42" else (done.stderr.strip() or "no answer")[:200]
