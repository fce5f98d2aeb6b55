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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import MachineFailed, Stopped
from .streams import Kept, printable

POLL_S = 0.02  # between two questions whether a command is to be stopped


@dataclass(frozen=True, slots=True)
class Limits:
    """`wall_s` for the whole tree; the rest per process. `output_bytes` is kept of each stream.

    `grace_s` is how long a killed tree may take to be gone.
    """

    wall_s: float = 300.0
    cpu_s: int = 600
    memory_bytes: int = 12 << 30  # address space: a build reserves far more than it uses
    output_bytes: int = 64 << 10
    file_bytes: int = 256 << 20
    nice: int = 0  # above our own: builds give way to what is being measured
    grace_s: float = 5.0
    privileged: bool = False  # keeps our capabilities: for a profiler, never for a build


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
    command: list[str],
    variables: Mapping[str, str],
    limits: Limits,
    told: Signs,
    stop: Callable[[], bool] | None = None,
) -> Completed:
    """Run a layer's command to its end, or to the end of its time; kills all that is left.

    Raises `Stopped` where `kill_all` ended it: how it ended then says nothing.
    """
    started = time.monotonic()
    child = _Child(command, variables, told, limits.grace_s)
    with _LOCK:
        _RUNNING.add(child)
    try:
        kept, timed_out = _listen(child, started + limits.wall_s, limits.output_bytes, stop)
    finally:
        try:
            child.kill()
        finally:
            with _LOCK:
                _RUNNING.discard(child)
        status, peak = child.reap()
    out, err = (printable(k.text()) for k in kept)
    if child.unwanted:
        raise Stopped(f"{Path(command[0]).name} was stopped before it was done")
    if not child.began():
        why = (err.strip() or "no message").splitlines()[-1][:300]
        spent = f"not begun after {time.monotonic() - started:.1f} s"
        when = spent if timed_out else f"status {status}"
        raise MachineFailed(f"the sandbox did not start ({when}): {why}")
    code = 128 - status if 128 < status <= 128 + signal.NSIG else status  # signals come as 128 + n
    wall_s = time.monotonic() - started
    ended = None if timed_out else code
    return Completed(ended, out, err, timed_out, wall_s, peak)


def kill_all() -> None:
    """Kill every child that is running now; their `run` calls raise `Stopped`."""
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


def _listen(
    child: _Child, deadline: float, keep: int, stop: Callable[[], bool] | None
) -> tuple[tuple[Kept, Kept], bool]:
    """Read both streams until the child has ended and they are closed, or time is over."""
    kept = (Kept(keep), Kept(keep))
    with selectors.DefaultSelector() as watched:
        for stream, into in zip(child.streams, kept, strict=True):
            watched.register(stream, selectors.EVENT_READ, into.add)
        watched.register(child.handle, selectors.EVENT_READ)
        watched.register(child.told.info[0], selectors.EVENT_READ, child.meet_namespace)
        while len(watched.get_map()) > 1:  # `info` stays open
            remaining = deadline - time.monotonic()
            if remaining <= 0 or (stop is not None and stop()):
                return kept, True
            for key, _ in watched.select(min(remaining, POLL_S) if stop else remaining):
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

    def __init__(
        self, command: list[str], variables: Mapping[str, str], told: Signs, grace_s: float
    ) -> None:
        self.told, self._grace_s = told, grace_s
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
        for number, patience in ((signal.SIGTERM, self._grace_s), (signal.SIGKILL, None)):
            _send(self.handle, number)
            if _ended(self.handle, patience):
                break
        if self._first is not None:
            _send(self._first, signal.SIGKILL)
            if not _ended(self._first, self._grace_s):
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
