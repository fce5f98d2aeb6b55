"""Operators: who varies. An operator runs one session from a parent and may try many candidates.

The operator proposes; the engine judges, decides and commits. To an operator the engine is a
`Session`: a workspace that starts as the parent, and one door to the score. `OneByOne` makes an
operator of anything that turns a parent and a history into one proposal after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..records import Attempt
from ..sandbox import kill_all


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tree to start from: `files` maps paths (relative, "/") to contents and may be lazy."""

    tree: str  # git's id of it
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change, and what its author says about it; both are untrusted.

    `files` holds the changed files, if they are not in the workspace already. `subject` is
    imperative and has no prefix; `body` says hypothesis, prediction and what changed.
    """

    subject: str
    body: str
    files: Mapping[str, bytes]


class Session(Protocol):
    """What an operator gets from the engine."""

    @property
    def folder(self) -> Path:
        """The workspace: plain files, editable where the task says so."""
        ...

    @property
    def parent(self) -> Candidate:
        """The incumbent this session started from."""
        ...

    @property
    def width(self) -> int:
        """How many prepared candidates may be judged side by side."""
        ...

    def history(self) -> Sequence[Attempt]:
        """Every attempt of the run so far, oldest first; read from the lineage at each call."""
        ...

    def prepare(self, proposal: Proposal) -> Callable[[], Attempt]:
        """Take the workspace as a candidate, after writing the proposal's files over the parent's.

        Calling the result judges and records it; that may happen in another thread.
        """
        ...

    def evaluate(self, proposal: Proposal) -> Attempt:
        """Judge and record the workspace now: `prepare`, and what it gives."""
        ...

    def over(self) -> bool:
        """True once a candidate was accepted, the session is spent, or the run must stop."""
        ...


class Operator(Protocol):
    """Varies: runs one session."""

    @property
    def name(self) -> str: ...

    def vary(self, session: Session) -> bool:
        """Try candidates until the session is over; False when there is nothing left to try."""
        ...


class Proposer(Protocol):
    """Proposes the next change, or None when it has nothing left to try from this parent."""

    @property
    def name(self) -> str: ...

    def propose(self, parent: Candidate, history: Sequence[Attempt]) -> Proposal | None: ...

    def observe(self, attempt: Attempt) -> None: ...


class OneByOne:
    """An operator that evaluates proposals as they come, `session.width` of them side by side.

    It reads the history once; afterwards it learns from its own attempts.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.name = proposer.name
        self._proposer = proposer
        self._informed = False

    def vary(self, session: Session) -> bool:
        if session.width == 1:
            while not session.over():
                proposal = self._propose(session)
                if proposal is None:
                    return False
                self._proposer.observe(session.evaluate(proposal))
            return True
        return self._side_by_side(session)

    def _side_by_side(self, session: Session) -> bool:
        """Keep `width` evaluations going; the proposer is only ever asked from this thread.

        If one fails, the others end as they would have, and are recorded, before that is raised.
        """
        exhausted, running = False, set[Future[Attempt]]()
        with ThreadPoolExecutor(session.width, thread_name_prefix="attempt") as pool:
            try:
                while True:
                    while not exhausted and len(running) < session.width and not session.over():
                        proposal = self._propose(session)
                        if proposal is None:
                            exhausted = True
                        else:
                            running.add(pool.submit(session.prepare(proposal)))
                    if not running:
                        return not exhausted
                    done = wait(running, return_when=FIRST_COMPLETED).done
                    for future in done:
                        running.remove(future)
                        self._proposer.observe(future.result())
            except KeyboardInterrupt:  # now means now: nobody waits for the attempts in hand
                while wait(running, timeout=0.2).not_done:
                    kill_all()
                raise

    def _propose(self, session: Session) -> Proposal | None:
        history: Sequence[Attempt] = () if self._informed else session.history()
        self._informed = True
        return self._proposer.propose(session.parent, history)
