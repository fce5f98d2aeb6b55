"""A confined process from start to end: streams, time, and a tree that is killed whole."""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import MachineFailed

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
    """How a child ended. `returncode` is negative for a signal, None if its time ran out.

    Text is printable. `layers` names what confined it; it is empty where nothing did.
    """

    returncode: int | None
    stdout: str
    stderr: str
    timed_out: bool
    wall_s: float
    max_rss_bytes: int
    layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signs:
    """Pipes on which the sandbox speaks to us: `started` of the command, `info` of bwrap.

    The command has neither. The first of each pair is ours to read. `namespace`: bwrap is used.
    """

    started: tuple[int, int]
    info: tuple[int, int]
    namespace: bool


@contextlib.contextmanager
def signs(namespace: bool) -> Iterator[Signs]:
    """Fresh pipes, closed afterwards."""
    with contextlib.ExitStack() as stack:
        pairs = []
        for _ in range(2):
            pairs.append(os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
            for end in pairs[-1]:
                stack.callback(os.close, end)
        yield Signs(pairs[0], pairs[1], namespace)


def supervise(
    command: list[str], variables: Mapping[str, str], limits: Limits, told: Signs
) -> Completed:
    """Run a layer's command to its end, or to the end of its time; kills all that is left."""
    started = time.monotonic()
    child = _Child(command, variables, told)
    with _LOCK:
        _RUNNING.add(child)
    try:
        kept, timed_out = _listen(child, started + limits.wall_s, limits.output_bytes)
    finally:
        try:
            child.kill()
        finally:
            with _LOCK:
                _RUNNING.discard(child)
        status, peak = child.reap()
    out, err = (printable(k.text()) for k in kept)
    if not child.began() and not child.unwanted:
        why = (err.strip() or "no message").splitlines()[-1][:300]
        when = f"not begun after {limits.wall_s:g} s" if timed_out else f"status {status}"
        raise MachineFailed(f"the sandbox did not start ({when}): {why}")
    code = 128 - status if 128 < status <= 128 + signal.NSIG else status  # signals come as 128 + n
    wall_s = time.monotonic() - started
    return Completed(None if timed_out else code, out, err, timed_out, wall_s, peak)


def kill_all() -> None:
    """Kill every child that is running now; their `run` calls return."""
    with _LOCK:
        for child in _RUNNING:
            child.unwanted = True
            child.kill()


def output_of(argv: Sequence[str]) -> str:
    """What one of our own short programs prints; empty where it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else ""


def remove(folder: Path) -> None:
    """Remove a folder that a candidate could write to, however deep it made it."""
    subprocess.run(["rm", "-rf", "--", str(folder)], stdin=subprocess.DEVNULL, capture_output=True)


def printable(text: str) -> str:
    """Text without escape sequences and control characters; newline and tab stay."""
    return "".join(c for c in _ESCAPES.sub("", text) if c.isprintable() or c in "\n\t")


_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]*[0-~]"
)


def _listen(child: _Child, deadline: float, keep: int) -> tuple[tuple[_Kept, _Kept], bool]:
    """Read both streams until the child has ended and they are closed, or time is over."""
    kept = (_Kept(keep), _Kept(keep))
    with selectors.DefaultSelector() as watched:
        for stream, into in zip(child.streams, kept, strict=True):
            watched.register(stream, selectors.EVENT_READ, into.add)
        watched.register(child.handle, selectors.EVENT_READ)
        watched.register(child.told.info[0], selectors.EVENT_READ, child.meet_namespace)
        while len(watched.get_map()) > 1:  # `info` stays open
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return kept, True
            for key, _ in watched.select(remaining):
                data = os.read(key.fd, 1 << 16) if key.data is not None else b""
                if data:
                    key.data(data)
                else:
                    watched.unregister(key.fileobj)
    return kept, False


class _Child:
    """A process and its pidfd: signals can never reach another process of the same number.

    Of bwrap also the pidfd of process 1 in its namespace: that one is gone only when everything
    in the namespace is, which may be later than bwrap itself.
    """

    def __init__(self, command: list[str], variables: Mapping[str, str], told: Signs) -> None:
        self.told = told
        self.unwanted = False
        self._info = b""
        self._first: int | None = None
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(variables),
            cwd="/",
            pass_fds=(told.started[1], told.info[1]),
            start_new_session=True,  # the terminal's Ctrl-C is the engine's to handle
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self.streams = (self._process.stdout, self._process.stderr)
        try:
            self.handle = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

    def began(self) -> bool:
        """Whether the command was reached: until then nothing is the command's fault."""
        try:
            return os.read(self.told.started[0], 1) == b"1"
        except BlockingIOError:
            return False

    def meet_namespace(self, data: bytes) -> None:
        """Take bwrap's word for its process 1, if it is a child of bwrap now.

        The word comes in pieces: a number is whole only when something follows it.
        """
        self._info += data
        found = re.search(rb'"child-pid": *([0-9]+)[^0-9]', self._info)
        if found is None or self._first is not None:
            return
        pid = int(found[1])
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            if _parent_of(pid) == self._process.pid:
                self._first = handle
            else:
                os.close(handle)

    def kill(self) -> None:
        """Kill the whole tree: bwrap's by its namespace, otherwise the supervisor is asked to."""
        if self.told.namespace:
            self._wait_for_namespace()
        for number, patience in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
            _send(self.handle, number)
            if _ended(self.handle, patience):
                break
        if self._first is not None:
            _send(self._first, signal.SIGKILL)
            if not _ended(self._first, GRACE_S):
                raise MachineFailed("a process in the sandbox does not end, not even killed")

    def _wait_for_namespace(self) -> None:
        """A bwrap killed before its process 1 is known could leave that behind."""
        deadline = time.monotonic() + 1.0
        while self._first is None and not _ended(self.handle, 0) and time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):  # another thread was faster
                if _ended(self.told.info[0], 0.05):
                    self.meet_namespace(os.read(self.told.info[0], 1 << 12))

    def reap(self) -> tuple[int, int]:
        """Exit status (128 + n for signal n) and peak memory in bytes of the largest process."""
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        for handle in (self.handle, self._first):
            if handle is not None:
                os.close(handle)
        for stream in self.streams:
            stream.close()
        return (128 - code if code < 0 else code), usage.ru_maxrss * 1024


class _Kept:
    """The first and the last part of a stream, and how much was dropped between them."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()  # a little more than half, cut at the end
        self._held = self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        rest = data[room:]
        if rest:
            self._tail.append(rest)
            self._held += len(rest)
        while self._tail and self._held - len(self._tail[0]) >= self._half:
            self._held -= len(self._tail.popleft())

    def text(self) -> str:
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._half) :]
        dropped = self._seen - len(self._head) - len(tail)
        mark = f"\n[… {dropped} bytes dropped …]\n".encode() if dropped else b""
        return (bytes(self._head) + mark + tail).decode("utf-8", "replace")


def _send(handle: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)


def _ended(handle: int, patience: float | None) -> bool:
    """Whether a pidfd's process has ended (or a pipe has something to read)."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(None if patience is None else patience * 1000))


def _parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


_RUNNING: set[_Child] = set()
_LOCK = threading.Lock()
