"""Operators: who varies. An operator runs one session from a parent and may try many candidates.

The operator proposes; the engine judges, decides and commits. Adding an operator means writing a
class with a `name` and a `vary` method and naming it in `evolve.make_operator`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..records import Attempt


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an operator says about the candidate it left in the workspace.

    `subject` is imperative and without the task's prefix; `body` holds hypothesis, prediction and
    what was changed. Both are untrusted text.
    """

    subject: str
    body: str


class Session(Protocol):
    """What an operator gets: a workspace that starts as the parent, and one door to the score."""

    @property
    def folder(self) -> Path:
        """The workspace: plain files, editable where the task says so."""
        ...

    @property
    def history(self) -> Sequence[Attempt]:
        """Every attempt of the run so far, oldest first."""
        ...

    def write(self, files: Mapping[str, bytes]) -> None:
        """Make the workspace the parent with these files changed."""
        ...

    def evaluate(self, proposal: Proposal) -> Attempt:
        """Judge and record what is in the workspace now; the attempt says how it ended."""
        ...

    def over(self) -> bool:
        """True once a candidate was accepted, or a limit of the run was reached."""
        ...


class Operator(Protocol):
    """Varies: runs one session."""

    name: str

    def vary(self, session: Session) -> bool:
        """Try candidates until the session is over; False when there is nothing left to try."""
        ...
