"""evolve: the whole system on one screen.

    choose parent → workspace → operator → build → audit → measure → decide → commit
    ╰─ run.session ──────────╯  ╰ vary ─╯  ╰─ session.evaluate: score, then lineage ─╯

The operator varies; everything that judges or commits is ours. A run knows nothing that is not in
the lineage: killed anywhere, it goes on from its commits and loses at most the attempt in hand.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Literal

from .bench import Bench
from .errors import BadInput
from .operators import OneByOne, Operator
from .run import Run


def evolve(run: Run, operator: Operator, limits: Limits) -> str:
    """Vary until a limit is reached or nothing is left to try; returns why it ended."""
    with interruptible(limits), closing(run.bench):
        run.begin()
        while not (ended := limits.reached(run.done)):
            with run.session(operator.name, lambda: bool(limits.reached(run.begun))) as session:
                more = operator.vary(session)
            if not more:
                return "nothing left to try: every legal combination of the knobs was proposed"
    return ended


def make_operator(
    name: str, bench: Bench, strategy: Literal["sweep", "tpe", "random"], seed: int
) -> Operator:
    """The operator called `name`; `auto` is `search`, which needs neither key nor model."""
    if name not in ("auto", "search"):
        raise BadInput(f"unknown operator {name!r}: use search")
    from .operators.search import SearchOperator

    knobs = bench.task.knobs
    workloads = bench.workloads
    rules = (knobs.KNOBS, knobs.check, bench.target, workloads)
    return OneByOne(SearchOperator(*rules, strategy, seed, bench.kind))


@dataclass(slots=True)
class Limits:
    """When to stop, always between two attempts. None means without limit."""

    attempts: int | None = None
    hours: float | None = None
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)

    def reached(self, done: int) -> str:
        """Why to stop after `done` attempts of this invocation, or an empty string."""
        if self.interrupted:
            return "interrupted: finished the attempt in hand"
        if self.attempts is not None and done >= self.attempts:
            return f"{done} attempt{'s' if done != 1 else ''} done"
        if self.hours is not None and time.monotonic() - self.started >= self.hours * 3600:
            return f"{self.hours:g} hours are over"
        return ""


@contextmanager
def interruptible(limits: Limits) -> Iterator[None]:
    """Ctrl-C once finishes the attempt in hand, twice stops now; SIGTERM counts as Ctrl-C."""

    def once(number: int, frame: FrameType | None) -> None:
        if limits.interrupted:
            raise KeyboardInterrupt
        limits.interrupted = True
        with suppress(OSError):  # not sys.stderr: we may be in the middle of a write to it
            os.write(2, b"\nfinishing the attempt in hand; once more stops at once\n")

    before = {s: signal.signal(s, once) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
