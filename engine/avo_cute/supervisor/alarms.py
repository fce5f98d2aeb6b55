"""Alarms: what the attempts of a run say about the run, as a function of them alone.

    alarm(attempts, answered(attempts, sessions))  →  Alarm | None

An alarm speaks only of attempts after the last acceptance and after the last directive, so the same
situation rings once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ..memory import reason_kind
from ..records import Attempt, Status

STALLED = 24  # attempts without a new high-water mark: a session that ran to its end, and a half
SAME_FAILURE = 8  # in a row with one status; 40 % of AVO's attempts did not compile, so not fewer
SAME_REASON = 5  # in a row that failed for one reason
SAME_ARTIFACT, ARTIFACT_WINDOW = 4, 16  # times the same machine code, among so many attempts
RETURNS, RETURN_WINDOW = 4, 12  # steps back to a version left before, among so many attempts
TRAILER = "Directive"

Told = Mapping[int, Mapping[str, str]]  # session -> trailers of its commit


@dataclass(frozen=True, slots=True)
class Alarm:
    """What is wrong: `kind` is stalled, same-failure, same-artifact or oscillation. `text` is the
    engine's own words; `attempts` are the numbers of those that show it, oldest first."""

    kind: str
    text: str
    attempts: tuple[int, ...]


def alarm(attempts: Sequence[Attempt], since: int = 0) -> Alarm | None:
    """What is wrong with a run (attempts oldest first), or None.

    Only attempts with a number above `since` count, and of those only what came after the last
    accepted one: acceptance is a new high-water mark, head-to-head, whatever its score says.
    Failures of the machine are never evidence. The most telling alarm comes first.
    """
    tail: list[Attempt] = []
    for attempt in reversed(attempts):
        if attempt.status is Status.ACCEPTED or 0 <= attempt.number <= since:
            break
        if attempt.status is not Status.INFRA_ERROR and attempt.number != 0:
            tail.append(attempt)
    tail.reverse()
    checks = (_oscillation, _same_artifact, _same_failure, _stalled)
    return next((found for check in checks if (found := check(tail))), None)


def answered(attempts: Sequence[Attempt], sessions: Told | None = None) -> int:
    """The number of the last attempt that a directive has answered: the last one of the latest
    session that had one, or, where that session made none, the last one before it. 0: none."""
    directed = [n for n, trailers in (sessions or {}).items() if TRAILER in trailers]
    latest = max([0, *directed, *(_session(a) for a in attempts if TRAILER in a.trailers)])
    done = [a.number for a in attempts if 0 < _session(a) <= latest or TRAILER in a.trailers]
    return max(done, default=0)


def _oscillation(tail: Sequence[Attempt]) -> Alarm | None:
    window = tail[-RETURN_WINDOW:]
    made = [a.trailers.get("Artifact", a.tree) for a in window]
    back = [n for n in range(2, len(made)) if made[n] != made[n - 1] and made[n] in made[:n]]
    if len(back) < RETURNS:
        return None
    among = len({made[n] for n in back})
    text = f"{len(back)} of the last {len(window)} attempts went back to one of {among} versions"
    return Alarm("oscillation", text, tuple(window[n].number for n in back))


def _same_artifact(tail: Sequence[Attempt]) -> Alarm | None:
    window = tail[-ARTIFACT_WINDOW:]
    counts = Counter(a.trailers["Artifact"] for a in window if "Artifact" in a.trailers)
    artifact, count = (counts.most_common(1) or [("", 0)])[0]
    if count < SAME_ARTIFACT:
        return None
    same = tuple(a.number for a in window if a.trailers.get("Artifact") == artifact)
    text = f"{count} of the last {len(window)} attempts were the same machine code"
    return Alarm("same-artifact", text, same)


def _same_failure(tail: Sequence[Attempt]) -> Alarm | None:
    if not tail or tail[-1].status not in _FAILED:
        return None
    status, reason = tail[-1].status, reason_kind(tail[-1])
    alike = list(_last_while(tail, lambda a: a.status is status))
    same = list(_last_while(alike, lambda a: reason_kind(a) == reason))
    if len(alike) < SAME_FAILURE and len(same) < SAME_REASON:
        return None
    shown, what = (same, " for the same reason") if len(same) >= SAME_REASON else (alike, "")
    text = f"the last {len(shown)} attempts all ended {status}{what}"
    return Alarm("same-failure", text, tuple(a.number for a in shown))


def _stalled(tail: Sequence[Attempt]) -> Alarm | None:
    if len(tail) < STALLED:
        return None
    text = f"no new high-water mark in the last {len(tail)} attempts"
    return Alarm("stalled", text, tuple(a.number for a in tail))


def _last_while(tail: Sequence[Attempt], same: Callable[[Attempt], bool]) -> Sequence[Attempt]:
    """The longest end of `tail` of which all is the same."""
    return tail[len(tail) - sum(1 for _ in takewhile(same, reversed(tail))) :]


def _session(attempt: Attempt) -> int:
    text = attempt.trailers.get("Session", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


_FAILED = frozenset(
    {
        Status.BUILD_FAILED,
        Status.AUDIT_FAILED,
        Status.INCORRECT,
        Status.CRASHED,
        Status.TIMED_OUT,
        Status.NO_CHANGE,
    }
)
