"""The search operator: no model, no key, only knobs. A sweep that composes, a TPE sampler, or
uniform mutation.

What it knows is in the lineage: every proposal's body carries its changed knobs on lines from
which, with the trailers, a resumed run rebuilds the same state. One seed and one history give one
proposal; a proposal that is being evaluated is not made again.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain, combinations, islice, product
from typing import ClassVar, Literal

from ..history import kind_of
from ..knobs import Knob, apply, read
from ..patterns import normal
from ..records import Attempt, Status, Target, Workload
from . import Candidate, Proposal
from .compose import Combination, combinations_of
from .evidence import Change, Evidence, Values, change_lines, change_of
from .prose import body_of, subject_of
from .sweep import Idea, ideas_of, sweep
from .tpe import Tpe

Check = Callable[[Values, Target], list[str]]
Strategy = Literal["sweep", "tpe", "random"]

_SIZES = (1, 1, 1, 1, 1, 1, 1, 2, 2, 3)  # knobs in a proposal: a commit should read as one idea
_DRAWS = 200  # random mutations that may be refused before neighbours are listed one by one
_LISTED = 4_000  # neighbours looked at before the space counts as exhausted
_STARTUP = 5  # attempts before the sampler has something to learn from

_LARGE = math.log(1.015)  # a predicted gain that is put together at once
_SMALL = math.log(1.0015)  # and one that must have waited, because accepting costs more than trying
_PATIENCE = 6  # attempts without a new incumbent after which a small gain is put together
_SET_ASIDE = 2  # failures of this machine after which an assignment is left alone
_PAUSE = 3  # attempts after a combination that was not accepted


@dataclass
class SearchOperator:
    """Proposes legal assignments of the knobs that no attempt of the history has tried.

    `sweep` tries one idea after the other, for all lengths at once, the most promising first, and
    puts together what served each workload best as soon as that is worth an acceptance; when no
    idea is left it goes on as `tpe`, which mutates the knobs that a Tree-structured Parzen
    Estimator (Bergstra et al., NeurIPS 2011) would set otherwise than the parent has them. `random`
    draws uniformly among mutations of one to three knobs of the parent; it is the baseline that
    the others are to beat.
    """

    knobs: Sequence[Knob]
    check: Check
    target: Target
    workloads: Sequence[Workload]
    strategy: Strategy = "sweep"
    seed: int = 0
    kind: str = "static"  # of the scores it learns from: the other kind is no evidence
    name: ClassVar[str] = "search"

    _seen: set[str] = field(default_factory=set, init=False)  # commits
    _tried: set[str] = field(default_factory=set, init=False)  # assignments
    _asked: dict[str, Change] = field(default_factory=dict, init=False)  # being evaluated
    _scores: dict[str, float] = field(default_factory=dict, init=False)  # by commit
    _infra: dict[str, set[str]] = field(default_factory=dict, init=False)  # commits by assignment
    _quiet: int = field(default=0, init=False)  # attempts since the last incumbent or combination
    _pause: int = field(default=0, init=False)  # attempts to wait before the next combination

    def __post_init__(self) -> None:
        self._active = tuple(k for k in self.knobs if k.applies(self.target, self.workloads))
        self._tpe = Tpe(self._active)
        self._evidence = Evidence(self._active, self.workloads)

    def propose(self, parent: Candidate, history: Sequence[Attempt]) -> Proposal | None:
        """The next untried assignment near the parent; None when there is none left."""
        for attempt in history:
            self.observe(attempt)
        values = read(self._active, parent.files)
        self._tried.add(_key(values))
        standing = set(self.check(values, self.target))  # the parent was evaluated all the same

        def legal(changes: Values) -> bool:
            after = _after(values, changes)
            known = self._tried | set(self._asked)
            return _key(after) not in known and standing.issuperset(self.check(after, self.target))

        for changes, combination in self._steps(values, legal):
            if legal(changes):
                return self._proposal(parent, values, changes, combination)
        return None

    def observe(self, attempt: Attempt) -> None:
        """Learn from one attempt; the same one again, and a machine's failure, change nothing."""
        compared = attempt.number > 0 and attempt.status in _COMPARED
        if attempt.commit in self._seen or (compared and kind_of(attempt) != self.kind):
            return
        change = change_of(attempt.body)
        if change is not None:
            self._asked.pop(change.after, None)
        if attempt.status is Status.INFRA_ERROR:
            self._failed_here(attempt, change)
            return
        self._seen.add(attempt.commit)
        self._evidence.add(attempt, change)
        before = self._scores.get(attempt.parent, 1.0)  # scores are speed-ups over the seed
        score = attempt.score
        if score is None and attempt.status in (Status.NO_CHANGE, Status.EQUAL):
            score = before
        if score is not None:
            self._scores[attempt.commit] = score
        if change is not None:
            self._tried |= {change.before, change.after}
            self._tpe.add(change.new, (score or 0.0) / before)
            accepted = attempt.status is Status.ACCEPTED
            self._quiet = 0 if accepted or change.combined else self._quiet + 1
            self._pause = _PAUSE if change.combined and not accepted else max(0, self._pause - 1)

    def _failed_here(self, attempt: Attempt, change: Change | None) -> None:
        """This machine failed: once is chance; after `_SET_ASIDE` times it is left alone."""
        if change is not None:
            failed = self._infra.setdefault(change.after, set())
            failed.add(attempt.commit)
            if len(failed) >= _SET_ASIDE:
                self._tried.add(change.after)

    def _steps(
        self, values: Values, legal: Callable[[Values], bool]
    ) -> Iterator[tuple[dict[str, str], Combination | None]]:
        """Changes to try, best guess first; lazily, because the first is mostly good."""
        if self.strategy == "sweep":
            ideas = self._sweep(values, legal)
            first = next(ideas, None)
            for combination in self._combinations(values, last=first is None):
                yield dict(combination.changes), combination
            yield from ((changes, None) for changes in chain([first] if first else [], ideas))
        yield from ((changes, None) for changes in self._mutations(values))

    def _sweep(self, values: Values, legal: Callable[[Values], bool]) -> Iterator[dict[str, str]]:
        assignment, evidence = _key(values), self._evidence
        asked = {u for change in self._asked.values() for u in evidence.units(change.new)}

        def is_open(idea: Idea) -> bool:
            done = idea.unit in asked or evidence.tested(idea.unit, assignment)
            return not (done or evidence.knows(values, idea.changes))

        return sweep(ideas_of(self._active, values), evidence, is_open, legal)

    def _combinations(self, values: Values, last: bool) -> Iterator[Combination]:
        """What is worth an acceptance now: much, or something after a while or at the end."""
        if self._pause or any(change.combined for change in self._asked.values()):
            return
        least = _SMALL if last or self._quiet >= _PATIENCE else _LARGE
        names = [w.name for w in self.workloads]
        for found in combinations_of(self._active, values, self._evidence, names):
            if found.gain >= least:
                yield found

    def _mutations(self, values: Values) -> Iterator[dict[str, str]]:
        """One to three changes at once: what the sampler wants, then any."""
        rng = random.Random(f"{self.seed} {len(self._seen)} {_key(values)}")
        others = {
            knob.name: options
            for knob in self._active
            if knob.name in values
            and (options := [c for c in knob.choices if normal(c) != values[knob.name]])
        }
        if not others:
            return
        if self.strategy != "random" and len(self._tpe) >= _STARTUP:
            yield from _subsets(self._tpe.suggest(values, rng.getrandbits(32)), rng)
        for _ in range(_DRAWS):
            names = rng.sample(sorted(others), min(rng.choice(_SIZES), len(others)))
            yield {name: rng.choice(others[name]) for name in names}
        yield from islice(_neighbours(others, rng), _LISTED)

    def _proposal(
        self,
        parent: Candidate,
        values: Values,
        changes: Mapping[str, str],
        combination: Combination | None,
    ) -> Proposal:
        changed = tuple(knob for knob in self._active if knob.name in changes)
        change = Change(
            new={name: normal(value) for name, value in changes.items()},
            before=_key(values),
            after=_key(_after(values, changes)),
            old={name: values[name] for name in changes},
            combined=combination is not None,
        )
        self._asked[change.after] = change
        predicted = combination.predicted if combination else None
        body = body_of(changed, change, self.workloads, predicted)
        return Proposal(
            files=apply(self._active, parent.files, changes),
            subject=subject_of(self._active, change),
            body=f"{body}\n\n{change_lines(change)}\n",
        )


_COMPARED = (Status.ACCEPTED, Status.EQUAL, Status.REJECTED, Status.NO_CHANGE)


def _after(values: Values, changes: Values) -> dict[str, str]:
    return {**values, **{name: normal(value) for name, value in changes.items()}}


def _key(values: Values) -> str:
    """Names a whole assignment."""
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _subsets(wanted: Mapping[str, str], rng: random.Random) -> Iterator[dict[str, str]]:
    """Parts of what the sampler wants changed, of one to three knobs, in random order."""
    names = sorted(wanted)
    for _ in range(_DRAWS if names else 0):
        chosen = rng.sample(names, min(rng.choice(_SIZES), len(names)))
        yield {name: wanted[name] for name in chosen}


def _neighbours(
    others: Mapping[str, Sequence[str]], rng: random.Random
) -> Iterator[dict[str, str]]:
    """Every assignment by distance from the parent: all of one knob, then all of two, …"""
    names = sorted(others)
    rng.shuffle(names)
    for size in range(1, len(names) + 1):
        for chosen in combinations(names, size):
            for values in product(*(others[name] for name in chosen)):
                yield dict(zip(chosen, values, strict=True))
