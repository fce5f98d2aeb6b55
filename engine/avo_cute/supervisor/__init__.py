"""The supervisor: sees from the lineage that a run goes in circles, and says where to go instead.

    look(attempts)  =  alarm?  →  ask the model, or the catalogue  →  Directive

What was given is read from `Directive:` trailers, of attempts and of session commits alike, and is
not given again; nor is a situation answered twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ..catalogue import Direction, mentions
from ..errors import Exhausted, UnknownModel, WrongKey
from ..memory import MemoryTask, Note, brief, near_misses
from ..model import Ask, Model, ModelError, user_text
from ..prompts import prompt
from ..records import Attempt, Usage
from ..sandbox import printable
from ..tools.quoting import quoted
from .alarms import TRAILER, Alarm, Told, alarm, answered

__all__ = ["Alarm", "Directive", "Supervisor", "Told", "alarm", "answered"]

DIRECTIONS, MOST = 3, 5  # in a directive: so many at least, while there are, and at most
FIELD = 400  # characters of what a model says of a direction, each time
NAME = 48  # characters of a direction's name
MAX_TOKENS = 16_000  # of the model's answer, thinking included
REVIEW_TOKENS = 10_000  # of the record that the model sees

Spend = Callable[[str, Usage], None]  # of a model's name and what an answer of it cost


@dataclass(frozen=True, slots=True)
class Directive:
    """What the next session is to do. `kind` is the alarm's; `names` are of the directions in
    `text`, which holds a model's words where `source` is "model"."""

    kind: str
    text: str
    source: Literal["model", "catalogue"]
    names: tuple[str, ...] = ()

    @property
    def trailer(self) -> str:
        """The value of `Directive:`, from which later ones know what was given."""
        return f"{self.kind}: {', '.join(self.names)}" if self.names else self.kind


class Supervisor:
    """Looks at a run between two sessions. Without a model it knows the catalogue alone. `task` is
    the task's title. What it gave it knows even where no attempt came of it."""

    def __init__(
        self, model: Model | None, directions: Sequence[Direction], task: str = ""
    ) -> None:
        self._model, self._catalogue, self._task = model, directions, task
        self._answered = 0  # number of the last attempt that a directive of ours has answered
        self._given: set[str] = set()  # names of our directions

    def look(
        self,
        attempts: Sequence[Attempt],
        spend: Spend,
        sessions: Told | None = None,
        notes: Sequence[Note] = (),
    ) -> Directive | None:
        """A directive if something is wrong that none has answered yet; attempts oldest first.

        It names several directions that were neither tried nor given before. What the model's
        answer lacks of `DIRECTIONS` comes from the catalogue, all of it where the model fails.
        `spend` hears what an answer cost, also when it is of no use. `Exhausted`, `WrongKey` and
        `UnknownModel` pass: the run cannot go on without the model either. `sessions` are the
        trailers of all session commits: of directives whose session made no attempt.
        """
        found = alarm(attempts, max(self._answered, answered(attempts, sessions)))
        if found is None:
            return None
        given = self._given | set(_given(attempts, sessions or {}))
        ideas = list(self._asked(found, attempts, sorted(given), notes, spend))
        ours = _new(ideas, given, attempts)[:MOST]
        source: Literal["model", "catalogue"] = "model" if ours else "catalogue"
        if len(ours) < DIRECTIONS:
            known = given | {idea.name for idea in ours}
            ours += _from_catalogue(self._catalogue, known, attempts)[: DIRECTIONS - len(ours)]
        names = tuple(idea.name for idea in ours)
        self._answered = max(a.number for a in attempts)
        self._given.update(names)
        return Directive(found.kind, _text(found, ours), source, names)

    def _asked(
        self,
        found: Alarm,
        attempts: Sequence[Attempt],
        given: Sequence[str],
        notes: Sequence[Note],
        spend: Spend,
    ) -> Iterable[_Idea]:
        """The model's directions, unchecked."""
        if self._model is None:
            return ()
        task = MemoryTask(self._task, directions=self._catalogue)
        record = brief(attempts, notes, "", task, REVIEW_TOKENS)
        before = quoted("directives", ", ".join(given[-200:])) if given else "none"
        text = f"{found.text}\n\nDirections given before: {before}\n\n{record}"
        system = prompt("supervisor", task=self._task)
        try:
            reply = self._model.reply(Ask(system, (user_text(text),), (), MAX_TOKENS))
        except ModelError as error:
            spend(self._model.name, error.usage)
            if isinstance(error, Exhausted | WrongKey | UnknownModel):
                raise
            return ()
        spend(self._model.name, reply.usage)
        return _read(reply.text)


@dataclass(frozen=True, slots=True)
class _Idea:
    """One direction of a directive, in words."""

    name: str
    text: str


def _read(text: str) -> Iterator[_Idea]:
    """The directions of a model's answer that are whole."""
    lines = (line.strip() for line in printable(text).splitlines())
    for name, *parts in _BLOCK.findall("\n".join(line for line in lines if line)):
        why, how, expect = (" ".join(part.split())[:FIELD] for part in parts)
        slug = "-".join(re.findall("[a-z0-9]+", name.lower()))[:NAME].strip("-")
        if slug:
            yield _Idea(slug, f"{why} How: {how} Expect: {expect}")


def _new(found: Iterable[_Idea], given: set[str], attempts: Sequence[Attempt]) -> list[_Idea]:
    """Those that were neither given nor tried, each once."""
    ideas = {idea.name: idea for idea in found if idea.name not in given}
    spoken = mentions(ideas, attempts)
    return [idea for idea in ideas.values() if not spoken[idea.name]]


def _from_catalogue(
    catalogue: Sequence[Direction], given: set[str], attempts: Sequence[Attempt]
) -> list[_Idea]:
    """What nobody has tried, in the catalogue's order; then near misses worth a second look."""
    ideas = _new((_Idea(d.name, _described(d)) for d in catalogue), given, attempts)
    for attempt in near_misses(attempts):
        name = f"revisit-{attempt.number}"
        if name not in given:
            gain = (attempt.gain or 1.0) - 1
            text = f"attempt {attempt.number} was correct, at {gain:+.2%}. How: find what kept it"
            ideas.append(
                _Idea(name, f"{text} back, and try it on the best version or with another.")
            )
    return ideas


def _described(direction: Direction) -> str:
    d = direction
    published = f" Published: {d.effect} ({d.source})" if d.effect else ""
    return f"{d.title}. {d.mechanism} Needs: {d.precondition} How: {d.how} ({d.where}){published}"


def _text(found: Alarm, ideas: Sequence[_Idea]) -> str:
    numbers = f"attempts {found.attempts[0]} to {found.attempts[-1]}"
    head = f"The supervisor looked at this run: {found.text} ({numbers}). {_ADVICE[found.kind]}"
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
    "^" + r"\n".join(_FIELD.format(key) for key in ("Direction", "Why", "How", "Expect")),
    re.MULTILINE | re.IGNORECASE,
)
