"""evolve: the whole system on one screen.

    choose parent → workspace → operator → build → audit → measure → decide → commit
    ╰─ run.session ──────────╯  ╰ vary ─╯  ╰─ session.evaluate: score, then lineage ─╯

The operator varies; everything that judges or commits is ours. Between two sessions a supervisor
may say where to go. A run knows nothing that is not in the lineage: killed anywhere, it goes on
from its commits and loses at most the step in hand.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

from .budget import Budget, Spent
from .errors import BadRequest, ModelFailed
from .operators import Operator
from .run import Run
from .supervisor import Supervisor

BARREN = 3  # sessions in a row without an attempt that end a run


def evolve(
    run: Run, operator: Operator, limits: Limits, supervisor: Supervisor | None = None
) -> str:
    """Vary until a limit is reached or nothing is left to try; returns why it ended."""
    with interruptible(limits), closing(run.bench):
        run.begin()
        ended = ""
        for ended in sessions(run, operator, limits, supervisor):  # noqa: B007 - the last one
            pass
    return ended


def sessions(
    run: Run, operator: Operator, limits: Limits, supervisor: Supervisor | None
) -> Iterator[str]:
    """One session after the other of a run that has begun; yields why it ends, "" before that."""
    barren = 0
    while not (ended := limits.reached(run.spent)):
        before, more = run.done, True
        stop, left = partial(limits.stop, run), partial(limits.left, run)
        with run.session(operator.name, stop, left) as session:
            try:
                session.direct(supervisor)
                more = operator.vary(session)
            except BadRequest as refused:  # this conversation cannot go on; another one may
                run.watch.phase(f"the session ends: {refused}")
            except ModelFailed:
                if not limits.reached(run.committed):
                    raise  # else it is only that nobody waits for an answer any more
        if not more:
            ended = "nothing left to try: every legal combination of the knobs was proposed"
            break
        barren = 0 if run.done > before else barren + 1
        if barren >= BARREN and not limits.reached(run.spent):
            ended = f"{BARREN} sessions in a row made no attempt"
            break
        yield ""
    yield ended


@dataclass(slots=True)
class Limits:
    """When to stop, always between two steps."""

    budget: Budget = field(default_factory=Budget)
    interrupted: bool = False
    started: float = field(default_factory=time.monotonic)

    def reached(self, spent: Spent) -> str:
        """Why to stop after what this invocation has spent, or an empty string."""
        if self.interrupted:
            return "interrupted: finished the attempt in hand"
        return self.budget.reached(spent, time.monotonic() - self.started)

    def stop(self, run: Run) -> bool:
        """Whether a session of the run should begin nothing more."""
        return bool(self.reached(run.committed))

    def left(self, run: Run) -> str:
        """What the run may still spend, in words; empty without a limit."""
        return self.budget.left(run.committed, time.monotonic() - self.started)


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
