"""Executor: where builds run. `local` uses threads, each of which waits for a sandboxed process.

The engine hands every executor plain-data requests and a module-level function, so one that
carries them to other machines needs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from .sandbox import Pool

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Runs independent requests side by side, results in the order of the requests."""

    def map(self, work: Callable[[T], R], requests: Sequence[T]) -> Iterable[R]: ...

    def close(self) -> None: ...


class LocalExecutor:
    """`jobs` builds at once on this machine."""

    def __init__(self, jobs: int) -> None:
        self._pool = Pool(jobs, "build")

    def map(self, work: Callable[[T], R], requests: Sequence[T]) -> Iterable[R]:
        return self._pool.map(work, requests)

    def stop(self) -> None:
        """Kill what is being built: nobody waits for it any more."""
        self._pool.stop()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
