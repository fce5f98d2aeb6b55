"""The lineage as an agent reads it: every attempt of every run, accepted or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from ..errors import BadInput
from ..history import search, seen
from ..operators import Desk
from ..records import Attempt, Status
from .quoting import quoted

SHOWN = 40  # attempts at once
SEARCHED = 2_000  # newest hits of all runs that are looked through for those of one run

Rev = Annotated[
    str, Field(max_length=200, description="An attempt's number, a commit, best, or parent.")
]


class Past:
    """Tools on the commits of the lineage."""

    def __init__(self, session: Desk) -> None:
        self._session = session

    def lineage_log(
        self,
        status: Annotated[
            str,
            Field(max_length=40, description="Only these, such as equal; empty: all."),
        ] = "",
        before: Annotated[int, Field(ge=0, description="Only attempts below this number.")] = 0,
    ) -> str:
        """List attempts of this run, newest first, 40 at once: number, status, score, gain,
        subject, and why it ended so."""
        if status and status not in set(Status):
            raise BadInput(f"no status is called {status!r}: {', '.join(Status)}")
        found = [
            a
            for a in self._session.history()
            if (not status or a.status == status) and (not before or a.number < before)
        ]
        more = f"before={found[-SHOWN].number}" if len(found) > SHOWN else ""
        return _listing(found[::-1], more)

    def lineage_show(self, rev: Rev) -> str:
        """Show one attempt whole: what it was to do, what was seen, and its trailers."""
        attempt = self._session.lineage.attempt(self._commit(rev))
        trailers = "\n".join(f"{key}: {value}" for key, value in attempt.trailers.items())
        return quoted("lineage", f"{attempt.subject}\n\n{attempt.body}\n\n{trailers}")

    def lineage_diff(
        self,
        rev: Rev,
        against: Annotated[
            str,
            Field(
                max_length=200,
                description="The older one; empty: what the attempt started from.",
            ),
        ] = "",
    ) -> str:
        """Show the source change of an attempt against its parent, or between any two versions."""
        lineage, commit = self._session.lineage, self._commit(rev)
        old = self._commit(against) if against else lineage.attempt(commit).parent
        text = lineage.diff(old, commit)
        return quoted("lineage", text) if text else "the two have the same source"

    def lineage_search(
        self,
        text: Annotated[str, Field(min_length=2, max_length=200)],
        where: Annotated[
            Literal["messages", "changes"],
            Field(description="messages: subjects and bodies; changes: lines added or removed."),
        ] = "messages",
    ) -> str:
        """Find attempts of all runs, failed ones included, whose message speaks of a text or whose
        change adds or removes it: has this been tried, and what came of it?"""
        repo, alone = self._session.lineage.repo, self._session.alone
        limit = SEARCHED if alone else SHOWN + 1
        found = search(repo, text, changes=where == "changes", limit=limit)
        if alone:
            found = [a for a in found if a.run == self._session.run_name][: SHOWN + 1]
        return _listing(found, "search for something narrower", run=True)

    def _commit(self, rev: str) -> str:
        return self._session.resolve(rev)


def _listing(found: Sequence[Attempt], more: str, run: bool = False) -> str:
    if not found:
        return "no such attempts"
    lines = [_line(a, run) for a in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"… and more: {more}")
    return quoted("lineage", "\n".join(lines))


def _line(attempt: Attempt, run: bool) -> str:
    score = "" if attempt.score is None else f" {attempt.score:.4f}"
    gain = "" if attempt.gain is None else f" {attempt.gain - 1:+.2%}"
    name = f"{attempt.run} " if run else ""
    head = f"{name}#{attempt.number} {attempt.status}{score}{gain}"
    return f"{head} | {attempt.subject} | {' '.join(seen(attempt).split())[:160]}"
