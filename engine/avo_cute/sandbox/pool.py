"""Threads that wait for sandboxed children, and need not be waited for once somebody wants out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Thread
from types import TracebackType
from typing import ParamSpec, TypeVar

from ..errors import MachineFailed
from .process import kill_all

P = ParamSpec("P")
T = TypeVar("T")

_AGAIN_S = 0.1  # a thread that has lost one child may start the next


class Pool(ThreadPoolExecutor):
    """A pool that a Ctrl-C ends at once: every child is killed, also those of other pools.

    Leaving it waits, as usual; also after an exception, because what a thread does for another
    candidate is not to be lost with this one. Only `KeyboardInterrupt` means now.
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, thread_name_prefix=name)
        self._unfinished: set[Future[object]] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = super().submit(fn, *args, **kwargs)
        self._unfinished.add(future)  # type: ignore[arg-type]
        future.add_done_callback(self._unfinished.discard)
        return future

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if not isinstance(value, KeyboardInterrupt):
                self.shutdown()
        except KeyboardInterrupt:
            self.stop()
            raise
        if isinstance(value, KeyboardInterrupt):
            self.stop()

    def stop(self) -> None:
        """End what runs, begin nothing more, and wait until all has ended.

        The killing goes on in a thread of its own, so that it is done whatever interrupts us.
        """
        self.shutdown(wait=False, cancel_futures=True)
        # Futures, not threads: Python 3.11 takes a thread whose `join` was interrupted for ended.
        ending = list(self._unfinished)
        Thread(target=_kill, args=(ending,), name="kill", daemon=True).start()
        wait(ending)


def _kill(ending: list[Future[object]]) -> None:
    while wait(ending, timeout=0).not_done:
        with contextlib.suppress(MachineFailed):  # one that does not die: its own thread says it
            kill_all()
        wait(ending, timeout=_AGAIN_S)
