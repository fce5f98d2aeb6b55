"""What the attempts of a run have shown about single values of knobs, workload by workload.

A value's effect on a workload is known from attempts in which nothing else that the workload can
feel was changed. Effects are logarithms of speed-ups and add up along the incumbents of a run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..history import kind_of, seen
from ..knobs import Knob
from ..patterns import normal
from ..records import Attempt, Status, Workload

Values = Mapping[str, str]
Unit = tuple[object, str]  # an idea: which knobs (`Knob.idea`), and the value they get

_FAILED = (
    Status.INCORRECT,
    Status.BUILD_FAILED,
    Status.AUDIT_FAILED,
    Status.CRASHED,
    Status.TIMED_OUT,
)
_SPILLS = " spills: "  # how the static rule names a candidate that spills


@dataclass(frozen=True, slots=True)
class Change:
    """What an attempt says it changed, and the whole assignments before and after, by key.

    `old` is empty where it was not written down; `combined` if it put together what earlier
    attempts had shown.
    """

    new: Values
    before: str
    after: str
    old: Values
    combined: bool = False


class Evidence:
    """Learns from attempts in order; knows effects, and which ideas do not work at all."""

    def __init__(self, knobs: Sequence[Knob], workloads: Sequence[Workload]) -> None:
        self._knobs = {knob.name: knob for knob in knobs}
        self._workloads = workloads
        self._touched = {k.name: tuple(w.name for w in workloads if k.touches(w)) for k in knobs}
        self._effects: dict[tuple[str, str], dict[str, list[float]]] = {}
        self._good: set[Unit] = set()
        self._inert: set[tuple[Unit, str]] = set()  # changed no object of that assignment
        self._failed: list[frozenset[Unit]] = []  # at least one of them is to blame
        self._blamed: tuple[set[Unit], set[Unit]] | None = None
        self._keys: dict[str, str] = {}  # assignment by commit
        self._cycles: dict[str, Sequence[float | None]] = {}  # by commit
        self._measured = False

    def touched(self, name: str) -> tuple[str, ...]:
        """The workloads whose objects the knob can change."""
        return self._touched[name]

    def add(self, attempt: Attempt, change: Change | None) -> None:
        """Take in one attempt; one that says nothing about the knobs may still be a parent."""
        gains = self._gains(attempt)
        self._blamed = None
        if change is None or not set(change.new) <= set(self._knobs):
            return
        self._keys[attempt.commit] = change.after
        if self._keys.get(attempt.parent, change.before) != change.before:
            gains = None  # it was compared with another incumbent than it was made from
        units = self.units(change.new)
        if attempt.status is Status.NO_CHANGE:
            self._inert |= {(unit, change.before) for unit in units}
        elif attempt.status in _FAILED or _SPILLS in seen(attempt):
            self._failed.append(frozenset(self._named(attempt, units) or units))
        elif gains is not None and set(change.old) == set(change.new):
            self._good |= {unit for unit, names in units.items() if self._alone(names, change)}
            self._learn(change, gains)

    def units(self, changes: Values) -> dict[Unit, list[str]]:
        """The ideas that a change consists of, with the knobs of each."""
        units: dict[Unit, list[str]] = {}
        for name, value in changes.items():
            units.setdefault((self._knobs[name].idea, value), []).append(name)
        return units

    def tested(self, unit: Unit, assignment: str) -> bool:
        """Whether the idea has been tried by itself, or does nothing to this assignment."""
        return unit in self._good or unit in self.bad() or (unit, assignment) in self._inert

    def bad(self) -> set[Unit]:
        """Ideas that made an attempt fail."""
        return self._blame()[0]

    def suspects(self) -> set[Unit]:
        """Ideas of which one made an attempt fail, but it is not known which."""
        return self._blame()[1]

    def advantage(self, name: str, current: str, value: str) -> dict[str, float] | None:
        """Effect of `value` against `current` on each workload that the knob touches."""
        effects = {w: self._effects.get((name, w), {}) for w in self.touched(name)}
        if not all(current in known and value in known for known in effects.values()):
            return None
        return {w: _mean(known[value]) - _mean(known[current]) for w, known in effects.items()}

    def knows(self, values: Values, changes: Values) -> bool:
        """Whether all effects of these changes are known."""
        effects = (self.advantage(n, values[n], normal(c)) for n, c in changes.items())
        return all(effect is not None for effect in effects)

    def _blame(self) -> tuple[set[Unit], set[Unit]]:
        if self._blamed is None:
            rests = {failed - self._good for failed in self._failed}
            bad = {unit for rest in rests if len(rest) == 1 for unit in rest}
            self._blamed = bad, {unit for rest in rests if not rest & bad for unit in rest}
        return self._blamed

    def _gains(self, attempt: Attempt) -> Sequence[float | None] | None:
        """Speed-ups over the parent per workload: measured, or from the parent's cycles, which
        count for nothing once anything was measured."""
        count = len(self._workloads)
        self._measured |= kind_of(attempt) == "measured"
        cycles = numbers(attempt.trailers.get("Cycles", ""), count)
        if cycles:
            self._cycles[attempt.commit] = cycles
            if attempt.number == 0:  # judged as it stands: the start of the run itself
                self._cycles[attempt.parent] = cycles
        if gains := numbers(attempt.trailers.get("Gains", ""), count):
            return gains
        before = self._cycles.get(attempt.parent)
        if self._measured or not (cycles and before):
            return None
        return [old / new if old and new else None for old, new in zip(before, cycles, strict=True)]

    def _learn(self, change: Change, gains: Sequence[float | None]) -> None:
        for workload, gain in zip(self._workloads, gains, strict=True):
            felt = [n for n in change.new if workload.name in self._touched[n]]
            if gain is None or len(felt) != 1:
                continue
            (name,) = felt
            old, new = change.old[name], change.new[name]
            known = self._effects.setdefault((name, workload.name), {})
            if old not in known:
                known[old] = [_mean(known[new]) - math.log(gain)] if new in known else [0.0]
            known.setdefault(new, []).append(_mean(known[old]) + math.log(gain))

    def _alone(self, names: Sequence[str], change: Change) -> bool:
        others = {w for n in change.new if n not in names for w in self.touched(n)}
        return not any(w in others for n in names for w in self.touched(n))

    def _named(self, attempt: Attempt, units: Mapping[Unit, Sequence[str]]) -> set[Unit]:
        """Those ideas that touch a workload or class which the verdict speaks of."""
        words = set(re.findall(r"[\w.-]+", seen(attempt)))
        named = {w.name for w in self._workloads if words & {w.name, w.class_name}}
        return {
            unit
            for unit, names in units.items()
            if any(w in named for name in names for w in self.touched(name))
        }


def numbers(text: str, count: int) -> list[float | None] | None:
    """`count` positive, finite numbers, None for each that is none; trailers can be edited."""
    words = text.split()
    found = [_positive(word) for word in words]
    return found if len(found) == count and any(found) else None


def _positive(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def change_of(body: str) -> Change | None:
    """What a commit's body says it changed; None where it does not, or says it unreadably."""
    found, before = _LINE.search(body), _BEFORE.search(body)
    new = _strings(found["new"]) if found else None
    if found is None or new is None:
        return None
    old = _strings(before["old"]) if before else None
    combined = bool(before and before["combined"])
    return Change(new, found["before"], found["after"], old or {}, combined)


def change_lines(change: Change) -> str:
    """The lines that `change_of` reads."""
    new, old = (json.dumps(dict(v), sort_keys=True) for v in (change.new, change.old))
    combined = " combined" if change.combined else ""
    return f" knobs {new} {change.before} -> {change.after}\n before {old}{combined}"


# Lines with a leading space, so that git takes them neither for trailers nor for prose.
_LINE = re.compile(
    r"^ *knobs (?P<new>\{.*\}) (?P<before>[0-9a-f]{16}) -> (?P<after>[0-9a-f]{16}) *$", re.MULTILINE
)
_BEFORE = re.compile(r"^ *before (?P<old>\{.*\})(?P<combined> combined)? *$", re.MULTILINE)


def _strings(text: str) -> dict[str, str] | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None  # the message is untrusted text
    sound = isinstance(data, dict) and all(isinstance(v, str) for v in data.values())
    return data if sound else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
