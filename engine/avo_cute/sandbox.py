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
import os
import select
import selectors
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import MachineFailed

CONFINE = Path(__file__).with_name("confine.py")
GRACE_S = 5.0  # for a killed tree to be gone


@dataclass(frozen=True, slots=True)
class Limits:
    """`wall_s` for the whole tree; the rest per process. `output_bytes` is kept of each stream."""

    wall_s: float = 300.0
    cpu_s: int = 600
    memory_bytes: int = 12 << 30  # address space: a build reserves far more than it uses
    output_bytes: int = 64 << 10
    file_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class Completed:
    """How a child ended. `returncode` is negative for a signal; text is printable."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    wall_s: float
    max_rss_bytes: int


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
        command, variables = _command(layer, argv, read, write, home, limits)
        variables |= env or {}
        try:
            return _supervise(command, variables, limits)
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


def kill_all() -> None:
    """Kill every child that is running now; their `run` calls return."""
    with _LOCK:
        for child in _RUNNING:
            child.kill()


@cache
def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where it has none or it is switched off."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-E", str(CONFINE), "abi"], capture_output=True, text=True
    )
    return int(done.stdout or 0) if done.returncode == 0 else 0


def _command(
    layer: str,
    argv: Sequence[str],
    read: Sequence[Path],
    write: Sequence[Path],
    home: Path,
    limits: Limits,
) -> tuple[list[str], dict[str, str]]:
    """The full command of a layer and the environment it starts with."""
    inner = [sys.executable, "-I", "-S", "-E", str(CONFINE)]
    readable = [*_system(), *read, CONFINE]
    spec = {
        "landlock": layer == "landlock",
        "seccomp": layer != "none",
        "supervise": layer != "bwrap",  # bwrap's own process 1 does that
        "read": [str(p) for p in readable],
        "write": [*map(str, write), str(home), *_DEVICES],
        "limits": [limits.memory_bytes, limits.cpu_s, limits.file_bytes],
    }
    inner += [json.dumps(spec), *argv]
    if layer == "bwrap":
        return [*_bwrap(readable, write), *inner], _variables(Path("/tmp"))
    return inner, _variables(home)


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


def _supervise(command: list[str], variables: Mapping[str, str], limits: Limits) -> Completed:
    started = time.monotonic()
    child = _Child(command, variables)
    with _LOCK:
        _RUNNING.add(child)
    try:
        kept, timed_out = _listen(child, started + limits.wall_s, limits.output_bytes)
    finally:
        child.kill()
        with _LOCK:
            _RUNNING.discard(child)
        status, peak = child.reap()
    code = 128 - status if status > 128 else status  # both layers report signals as 128 + n
    out, err = (printable(k.text()) for k in kept)
    return Completed(code, out, err, timed_out, time.monotonic() - started, peak)


def _listen(child: _Child, deadline: float, keep: int) -> tuple[tuple[_Kept, _Kept], bool]:
    """Read both streams until the child has ended and they are closed, or time is over."""
    kept = (_Kept(keep), _Kept(keep))
    with selectors.DefaultSelector() as watched:
        for stream, into in zip(child.streams, kept, strict=True):
            watched.register(stream, selectors.EVENT_READ, into)
        watched.register(child.handle, selectors.EVENT_READ)
        while watched.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return kept, True
            for key, _ in watched.select(remaining):
                data = os.read(key.fd, 1 << 16) if key.data is not None else b""
                if data:
                    key.data.add(data)
                else:
                    watched.unregister(key.fileobj)
    return kept, False


class _Child:
    """A process and its pidfd: signals can never reach another process of the same number."""

    def __init__(self, command: list[str], variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(variables),
            cwd="/",
            start_new_session=True,  # the terminal's Ctrl-C is the engine's to handle
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.streams = (self._process.stdout, self._process.stderr)
        self.handle = os.pidfd_open(self._process.pid)

    def kill(self) -> None:
        """Kill the whole tree: bwrap's by its namespace, otherwise the supervisor is asked to."""
        for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)
            if select.select([self.handle], [], [], patience)[0]:
                return

    def reap(self) -> tuple[int, int]:
        """Exit status (128 + n for signal n) and peak memory in bytes of the largest process."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        os.close(self.handle)
        for stream in self.streams:
            stream.close()
        return (128 - code if code < 0 else code), usage.ru_maxrss * 1024


_RUNNING: set[_Child] = set()
_LOCK = threading.Lock()


class _Kept:
    """The first and the last part of a stream, and how much was dropped between them."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head, self._tail = b"", b""
        self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail = (self._tail + data[room:])[-self._half :] if room < len(data) else self._tail

    def text(self) -> str:
        dropped = self._seen - len(self._head) - len(self._tail)
        mark = f"\n[… {dropped} bytes dropped …]\n".encode() if dropped else b""
        return (self._head + mark + self._tail).decode("utf-8", "replace")


def printable(text: str) -> str:
    """Text without control characters (newline and tab stay), lone surrogates or escapes."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


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
