"""A confined process from start to end: streams, time, and a tree that is killed whole."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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


def supervise(
    command: Callable[[int], list[str]], variables: Mapping[str, str], limits: Limits
) -> Completed:
    """Run a layer's command to its end, or to the end of its time; kills all that is left.

    `command` gets the descriptor on which the layer says that it is about to become the candidate.
    Raises OSError where it never does: then this machine failed, not the candidate.
    """
    started = time.monotonic()
    told, ready = os.pipe()
    try:
        child = _Child(command(ready), variables, ready)
    finally:
        os.close(ready)
    with _LOCK:
        _RUNNING.add(child)
    try:
        kept, timed_out = _listen(child, started + limits.wall_s, limits.output_bytes)
    finally:
        child.kill()
        with _LOCK:
            _RUNNING.discard(child)
        status, peak = child.reap()
        begun = os.read(told, 1)
        os.close(told)
    if not begun and not timed_out:
        said = kept[1].text().strip().splitlines() or [f"it ended with status {status}"]
        raise OSError(f"the sandbox did not start: {said[-1]}")
    code = 128 - status if status > 128 else status  # both layers report signals as 128 + n
    out, err = (printable(k.text()) for k in kept)
    return Completed(code, out, err, timed_out, time.monotonic() - started, peak)


def kill_all() -> None:
    """Kill every child that is running now; their `run` calls return."""
    with _LOCK:
        for child in _RUNNING:
            child.kill()


def output_of(argv: Sequence[str]) -> str:
    """What one of our own short programs prints; empty where it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else ""


def printable(text: str) -> str:
    """Text without control characters (newline and tab stay), lone surrogates or escapes."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


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

    def __init__(self, command: list[str], variables: Mapping[str, str], ready: int) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(variables),
            cwd="/",
            pass_fds=(ready,),
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


_RUNNING: set[_Child] = set()
_LOCK = threading.Lock()
