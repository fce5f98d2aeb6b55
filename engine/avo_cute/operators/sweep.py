"""One idea after the other, the most promising first; ideas that cannot meet share an attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from ..knobs import Knob
from ..patterns import normal
from .evidence import Evidence, Unit, Values


@dataclass(frozen=True, slots=True)
class Idea:
    """One value for all knobs that differ only in their rung, as far as they do not have it."""

    unit: Unit
    changes: Values
    expected: float  # gain in percent, 0 if nobody measured it


def ideas_of(knobs: Sequence[Knob], values: Values) -> list[Idea]:
    """All ideas for a parent with these values: the largest expectation first, and of equal ones
    what is nearest to the present value."""
    ranked: list[tuple[float, int, int, Idea]] = []
    for members in _alike(knobs, values).values():
        choices = list(dict.fromkeys(c for knob in members for c in knob.choices))
        here = [n for n, c in enumerate(choices) if normal(c) == values[members[0].name]]
        for n, choice in enumerate(choices):
            value = normal(choice)
            changes = {
                knob.name: choice
                for knob in members
                if choice in knob.choices and values[knob.name] != value
            }
            expected = max(dict(knob.expect).get(choice, 0.0) for knob in members)
            if changes:
                distance = min((abs(n - at) for at in here), default=n)
                idea = Idea((members[0].idea, value), changes, expected)
                ranked.append((-expected, distance, len(ranked), idea))
    return [idea for *_, idea in sorted(ranked, key=lambda entry: entry[:3])]


def sweep(
    ideas: Sequence[Idea],
    evidence: Evidence,
    is_open: Callable[[Idea], bool],
    legal: Callable[[Values], bool],
) -> Iterator[dict[str, str]]:
    """Attempts that each try the next open idea, and with it others that touch no workload of it.

    An idea that may have made an attempt fail is tried alone.
    """
    waiting = [idea for idea in ideas if is_open(idea)]
    alone = evidence.suspects()
    everywhere = _felt(evidence, {n: c for idea in ideas for n, c in idea.changes.items()})
    for n, idea in enumerate(waiting):
        if not legal(idea.changes):
            continue
        changes, felt = dict(idea.changes), _felt(evidence, idea.changes)
        for other in () if idea.unit in alone else islice(waiting, n + 1, None):
            if felt == everywhere:
                break
            touched = _felt(evidence, other.changes)
            if other.unit in alone or touched & felt or not legal({**changes, **other.changes}):
                continue
            changes |= other.changes
            felt |= touched
        yield changes


def _felt(evidence: Evidence, changes: Values) -> set[str]:
    return {workload for name in changes for workload in evidence.touched(name)}


def _alike(knobs: Sequence[Knob], values: Values) -> Mapping[object, list[Knob]]:
    alike: dict[object, list[Knob]] = {}
    for knob in knobs:
        if knob.name in values:
            alike.setdefault(knob.idea, []).append(knob)
    return alike
