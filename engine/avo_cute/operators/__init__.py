"""Operators: who varies. An operator runs one session from a parent and may try many candidates.

The operator proposes; the engine judges, decides and commits. To an operator the engine is a
`Session`: a workspace that starts as the parent, and one door to the score. `OneByOne` makes an
operator of anything that turns a parent and a history into one proposal after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ..lineage import Lineage
from ..records import Attempt, Facts, Usage, Verdict
from ..sandbox import Pool


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
    trailers: Mapping[str, str] = field(default_factory=dict)  # the engine's own, e.g. what it cost


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


class Desk(Session, Protocol):
    """What an operator that reads and writes gets besides: an agent, or whoever plays one."""

    @property
    def number(self) -> int:
        """Of the session, in its run."""
        ...

    @property
    def start(self) -> str:
        """The parent's commit and subject."""
        ...

    @property
    def tried(self) -> Sequence[Attempt]:
        """The attempts of this session."""
        ...

    @property
    def editable(self) -> Sequence[str]:
        """Patterns of the paths that may change."""
        ...

    @property
    def focus(self) -> Sequence[str]:
        """The files a reader of the kernel begins with."""
        ...

    @property
    def max_file_bytes(self) -> int: ...

    @property
    def lineage(self) -> Lineage:
        """For reading."""
        ...

    @property
    def run_name(self) -> str: ...

    @property
    def alone(self) -> bool:
        """Whether nothing of other runs may be told: it is compared with them."""
        ...

    def tree(self) -> str:
        """The workspace as a tree; `BadInput` for what a candidate must not contain."""
        ...

    def build(self) -> Verdict:
        """Compile, audit and estimate the workspace; nothing is measured or recorded."""
        ...

    def standing_facts(self) -> Mapping[str, Facts]:
        """What the incumbent's machine code is, by workload."""
        ...

    def profile(self) -> str:
        """Where the time of what is in the workspace goes, in at most 4 kB."""
        ...

    def resolve(self, rev: str) -> str:
        """The commit that a revision, an attempt's number, best or parent means."""
        ...

    def version(self, rev: str) -> Mapping[str, bytes]:
        """The files of a version."""
        ...

    def about(self) -> Mapping[str, str]:
        """The task in words, for a prompt; the same in every session of a run."""
        ...

    def brief(self) -> str:
        """What the lineage remembers, within a fixed length."""
        ...

    def note(self, text: str) -> None:
        """Keep what was learnt, for later sessions."""
        ...

    def keep(self, name: str, data: bytes) -> None:
        """Keep a file of the transcript."""
        ...

    def spend(self, model: str, usage: Usage) -> None:
        """Count what a model's answer cost."""
        ...

    @property
    def left(self) -> Callable[[], str]:
        """Says in words what the run may still spend; empty without a limit."""
        ...


class Operator(Protocol):
    """Varies: runs one session."""

    @property
    def name(self) -> str: ...

    def vary(self, session: Desk) -> bool:
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
        `KeyboardInterrupt` waits for none: the attempts in hand are lost.
        """
        exhausted, running = False, set[Future[Attempt]]()
        with Pool(session.width, "attempt") as pool:
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

    def _propose(self, session: Session) -> Proposal | None:
        history: Sequence[Attempt] = () if self._informed else session.history()
        self._informed = True
        return self._proposer.propose(session.parent, history)
