"""The supervisor: sees from the lineage that a run goes in circles, and says where to go instead.

    alarm(attempts, answered(attempts, sessions))  →  Alarm | None        pure, deterministic
    Supervisor.directive(alarm, attempts, …)       →  Directive           a model, or the catalogue

An alarm speaks only of attempts after the last acceptance and after the last directive, so the same
situation rings once. What was given is read from `Directive:` trailers, of attempts and of session
commits alike, and is not given again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from .catalogue import Direction, mentions
from .errors import Exhausted
from .memory import MemoryTask, Note, brief, near_misses, reason_kind
from .model import Ask, Model, ModelError, user_text
from .prompts import prompt
from .records import Attempt, Status, Usage
from .sandbox import printable
from .tools.quoting import quoted

STALLED = 48  # attempts without a new high-water mark: three sessions that ran to their end
SAME_FAILURE = 8  # in a row with one status; 40 % of AVO's attempts did not compile, so not fewer
SAME_REASON = 5  # in a row that failed for one reason
SAME_ARTIFACT, ARTIFACT_WINDOW = 4, 16  # times the same machine code, among so many attempts
RETURNS, RETURN_WINDOW = 4, 12  # steps back to a version left before, among so many attempts
DIRECTIONS, MOST = 3, 5  # in a directive: so many at least, while there are, and at most
FIELD = 400  # characters of what a model says of a direction, each time
MAX_TOKENS = 16_000  # of the model's answer, thinking included
REVIEW_TOKENS = 10_000  # of the record that the model sees

Told = Mapping[int, Mapping[str, str]]  # session -> trailers of its commit


@dataclass(frozen=True, slots=True)
class Alarm:
    """What is wrong: `kind` is stalled, same-failure, same-artifact or oscillation. `text` is the
    engine's own words; `attempts` are the numbers of those that show it, oldest first."""

    kind: str
    text: str
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Idea:
    """One direction of a directive, in words."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Directive:
    """What the next session is to do. `source` is "model" or "catalogue"; `usage` was billed for
    it, also where the model's answer was of no use. `names` are of the directions in `text`."""

    kind: str
    text: str
    source: str
    usage: Usage
    names: tuple[str, ...] = ()

    @property
    def trailer(self) -> str:
        """The value of `Directive:`, from which later ones know what was given."""
        return f"{self.kind}: {', '.join(self.names)}" if self.names else self.kind


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


@dataclass(frozen=True, slots=True)
class Supervisor:
    """Answers alarms; without a model from the catalogue alone. `task` is the task's title."""

    model: Model | None
    catalogue: Sequence[Direction]
    task: str = ""

    def directive(
        self,
        alarm: Alarm,
        attempts: Sequence[Attempt],
        sessions: Told | None = None,
        notes: Sequence[Note] = (),
    ) -> Directive:
        """Several directions that were neither tried nor given before.

        What the model's answer lacks of `DIRECTIONS` comes from the catalogue, and so does all of
        it where the model fails. `Exhausted` passes: the run cannot go on without the model.
        """
        given = set(_given(attempts, sessions or {}))
        found, usage = self._asked(alarm, attempts, sorted(given), notes)
        ours = _new(found, given, attempts)[:MOST]
        source = "model" if ours else "catalogue"
        if len(ours) < DIRECTIONS:
            known = given | {d.name for d in ours}
            ours += _from_catalogue(self.catalogue, known, attempts)[: DIRECTIONS - len(ours)]
        text = _text(alarm, ours)
        return Directive(alarm.kind, text, source, usage, tuple(d.name for d in ours))

    def _asked(
        self,
        alarm: Alarm,
        attempts: Sequence[Attempt],
        given: Sequence[str],
        notes: Sequence[Note],
    ) -> tuple[list[Idea], Usage]:
        """The model's directions, unchecked, and what they cost."""
        if self.model is None:
            return [], Usage()
        task = MemoryTask(self.task, directions=self.catalogue)
        record = brief(attempts, notes, "", task, REVIEW_TOKENS)
        before = quoted("directives", ", ".join(given[-200:])) if given else "none"
        text = f"{alarm.text}\n\nDirections given before: {before}\n\n{record}"
        system = prompt("supervisor", task=self.task)
        try:
            reply = self.model.reply(Ask(system, (user_text(text),), (), MAX_TOKENS))
        except Exhausted:
            raise
        except ModelError as error:
            return [], error.usage
        return list(_read(reply.text)), reply.usage


# What is wrong.


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


# Where to go instead.


def _read(text: str) -> Iterator[Idea]:
    """The directions of a model's answer that are whole."""
    for name, *fields in _BLOCK.findall(text):
        why, how, expect = (" ".join(printable(field).split())[:FIELD] for field in fields)
        slug = "-".join(re.findall("[a-z0-9]+", name.lower()))[:NAME].strip("-")
        if slug:
            yield Idea(slug, f"{why} How: {how} Expect: {expect}")


def _new(found: Iterable[Idea], given: set[str], attempts: Sequence[Attempt]) -> list[Idea]:
    """Those that were neither given nor tried, each once."""
    ideas = {idea.name: idea for idea in found if idea.name not in given}
    spoken = mentions(ideas, attempts)
    return [idea for idea in ideas.values() if not spoken[idea.name]]


def _from_catalogue(
    catalogue: Sequence[Direction], given: set[str], attempts: Sequence[Attempt]
) -> list[Idea]:
    """What nobody has tried, in the catalogue's order; then near misses worth a second look."""
    ideas = _new((Idea(d.name, _described(d)) for d in catalogue), given, attempts)
    for attempt in near_misses(attempts):
        name = f"revisit-{attempt.number}"
        if name not in given:
            gain = (attempt.gain or 1.0) - 1
            text = f"attempt {attempt.number} was correct, at {gain:+.2%}. How: find what kept it"
            ideas.append(
                Idea(name, f"{text} back, and try it on the best version or with another.")
            )
    return ideas


def _described(direction: Direction) -> str:
    d = direction
    published = f" Published: {d.effect} ({d.source})" if d.effect else ""
    return f"{d.title}. {d.mechanism} Needs: {d.precondition} How: {d.how} ({d.where}){published}"


def _text(alarm: Alarm, ideas: Sequence[Idea]) -> str:
    numbers = f"attempts {alarm.attempts[0]} to {alarm.attempts[-1]}"
    head = f"The supervisor looked at this run: {alarm.text} ({numbers}). {_ADVICE[alarm.kind]}"
    if not ideas:
        return f"{head} Nothing in the catalogue is left: begin with the profile, not with an idea."
    choose = "Directions that were not tried; take the one whose precondition you can check first, "
    choose += "and say its name in the hypothesis:"
    listed = "\n".join(f"{n}. {idea.name}: {idea.text}" for n, idea in enumerate(ideas, 1))
    return f"{head}\n{choose}\n\n{listed}"


def _given(attempts: Sequence[Attempt], sessions: Told) -> Iterator[str]:
    """Names of all directions that were given before."""
    told = {a.trailers[TRAILER] for a in attempts if TRAILER in a.trailers}
    told |= {trailers[TRAILER] for trailers in sessions.values() if TRAILER in trailers}
    for value in told:
        yield from re.findall("[a-z0-9-]+", value.partition(":")[2])


def _session(attempt: Attempt) -> int:
    text = attempt.trailers.get("Session", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


TRAILER = "Directive"
NAME = 48  # characters of a direction's name
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
_ADVICE = {
    "stalled": "Leave the line of work of the latest attempts.",
    "same-failure": "Do not make that attempt again in another form: find out why it fails, or "
    "leave the place.",
    "same-artifact": "The edits do not reach the machine code: compare what `build` says before "
    "the next evaluation.",
    "oscillation": "None of those versions is better than the best: leave all of them.",
}
_FIELD = r"(?:[^\w\n]|_)*{}(?:[^\w\n]|_)*:[*_ \t]*(\S.*)"
_BLOCK = re.compile(
    "^" + r"\s*\n".join(_FIELD.format(key) for key in ("Direction", "Why", "How", "Expect")),
    re.MULTILINE | re.IGNORECASE,
)
