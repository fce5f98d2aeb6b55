"""The search operator: no model, no key, only knobs. Uniform mutation, or a TPE sampler.

What it knows is in the lineage: every proposal's body carries its changed knobs on one line, from
which a resumed run rebuilds the same state. One seed and one history give one proposal.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import combinations, islice, product
from typing import ClassVar, Literal

from ..knobs import Knob, apply, read
from ..patterns import normal
from ..records import Attempt, Status, Target, Workload
from . import Candidate, Proposal
from .prose import body_of, subject_of
from .tpe import Tpe

Values = Mapping[str, str]
Check = Callable[[Values, Target], list[str]]

_SIZES = (1, 1, 1, 1, 1, 1, 1, 2, 2, 3)  # knobs in a proposal: a commit should read as one idea
_DRAWS = 200  # random mutations that may be refused before neighbours are listed one by one
_LISTED = 4_000  # neighbours looked at before the space counts as exhausted
_STARTUP = 5  # attempts before the sampler has something to learn from


@dataclass(frozen=True, slots=True)
class Change:
    """The knobs that an attempt changed, and the whole assignments before and after, by key."""

    new: Values
    before: str
    after: str


@dataclass
class SearchOperator:
    """Proposes legal assignments of the knobs that no attempt of the history has tried.

    `random` draws uniformly among mutations of one to three knobs of the parent; it is the
    baseline that the others are to beat. `tpe` mutates the knobs that a Tree-structured Parzen
    Estimator (Bergstra et al., NeurIPS 2011) would set otherwise than the parent has them.
    """

    knobs: Sequence[Knob]
    check: Check
    target: Target
    workloads: Sequence[Workload]
    strategy: Literal["tpe", "random"] = "tpe"
    seed: int = 0
    name: ClassVar[str] = "search"

    _seen: set[str] = field(default_factory=set, init=False)  # commits
    _tried: set[str] = field(default_factory=set, init=False)  # assignments
    _scores: dict[str, float] = field(default_factory=dict, init=False)  # by commit

    def __post_init__(self) -> None:
        self._active = tuple(k for k in self.knobs if k.applies(self.target, self.workloads))
        self._tpe = Tpe(self._active)

    def propose(self, parent: Candidate, history: Sequence[Attempt]) -> Proposal | None:
        """The next untried assignment near the parent; None when there is none left."""
        for attempt in history:
            self.observe(attempt)
        values = read(self._active, parent.files)
        self._tried.add(_key(values))
        standing = set(self.check(values, self.target))  # the parent was evaluated all the same
        for changes in self._mutations(values):
            after = {**values, **{name: normal(value) for name, value in changes.items()}}
            if _key(after) not in self._tried and standing.issuperset(
                self.check(after, self.target)
            ):
                return self._proposal(parent, values, changes)
        return None

    def observe(self, attempt: Attempt) -> None:
        """Learn from one attempt; the same one again, and a machine's failure, change nothing."""
        if attempt.commit in self._seen or attempt.status is Status.INFRA_ERROR:
            return
        self._seen.add(attempt.commit)
        before = self._scores.get(attempt.parent, 1.0)  # scores are speed-ups over the seed
        score = attempt.score
        if score is None and attempt.status in (Status.NO_CHANGE, Status.EQUAL):
            score = before
        if score is not None:
            self._scores[attempt.commit] = score
        change = assignment_of(attempt.body)
        if change is not None:
            self._tried |= {change.before, change.after}
            self._tpe.add(change.new, (score or 0.0) / before)

    def _mutations(self, values: Values) -> Iterator[dict[str, str]]:
        """Changes to try, best guess first; lazily, because the first is mostly good."""
        rng = random.Random(f"{self.seed} {len(self._seen)} {_key(values)}")
        others = {
            knob.name: options
            for knob in self._active
            if knob.name in values
            and (options := [c for c in knob.choices if normal(c) != values[knob.name]])
        }
        if not others:
            return
        if self.strategy == "tpe" and len(self._tpe) >= _STARTUP:
            yield from _subsets(self._tpe.suggest(values, rng.getrandbits(32)), rng)
        for _ in range(_DRAWS):
            names = rng.sample(sorted(others), min(rng.choice(_SIZES), len(others)))
            yield {name: rng.choice(others[name]) for name in names}
        yield from islice(_neighbours(others, rng), _LISTED)

    def _proposal(self, parent: Candidate, values: Values, changes: dict[str, str]) -> Proposal:
        changed = tuple(knob for knob in self._active if knob.name in changes)
        classes = sorted({w.class_name for w in self.workloads})
        body = body_of(changed, values, changes, classes)
        return Proposal(
            files=apply(self._active, parent.files, changes),
            subject=subject_of(changed, changes),
            body=f"{body}\n\n{knobs_line(values, changes)}\n",
        )


def assignment_of(body: str) -> Change | None:
    """What a commit's body says it changed; None where it does not, or says it unreadably."""
    found = _LINE.search(body)
    if found is None:
        return None
    try:
        new = json.loads(found["new"])
    except (ValueError, RecursionError):
        return None  # the message is untrusted text
    if not (isinstance(new, dict) and all(isinstance(v, str) for v in new.values())):
        return None
    return Change(new, found["before"], found["after"])


# One line with a leading space, so that git takes it neither for a trailer nor for prose.
_LINE = re.compile(
    r"^ *knobs (?P<new>\{.*\}) (?P<before>[0-9a-f]{16}) -> (?P<after>[0-9a-f]{16}) *$", re.MULTILINE
)


def knobs_line(values: Values, changes: Values) -> str:
    """The line that `assignment_of` reads: new values, and both assignments as a whole."""
    new = {name: normal(value) for name, value in changes.items()}
    text = json.dumps(new, sort_keys=True)
    return f" knobs {text} {_key(values)} -> {_key({**values, **new})}"


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
