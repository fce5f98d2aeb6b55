"""The best of what a run has seen, put together: for every workload the values that served it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..knobs import Knob
from ..patterns import normal
from .evidence import Evidence, Values

WORTH = math.log(1.003)  # an effect below that may be noise of the screening
_LOSS = math.log(0.995)  # more must not be predicted for any workload; 1 % would refuse it


@dataclass(frozen=True, slots=True)
class Combination:
    """Changes that belong together; `predicted` is the log of the speed-up by workload."""

    changes: Values
    predicted: Mapping[str, float]

    @property
    def gain(self) -> float:
        """Log of the geometric mean over all workloads."""
        return math.fsum(self.predicted.values()) / len(self.predicted)


def combinations_of(
    knobs: Sequence[Knob], values: Values, evidence: Evidence, workloads: Sequence[str]
) -> Iterator[Combination]:
    """What to put together for a parent with these values, best first: everything that helped,
    then parts of that, in case parts disturb each other: without the knobs that all lengths of a
    workload class share, these alone, and what only one set of workloads feels."""
    best = _best_values(knobs, values, evidence)
    touched = {name: frozenset(evidence.touched(name)) for name in best}
    narrow = {name for name in best if len(touched[name]) == 1}
    parts = [set(best), narrow, set(best) - narrow]
    for idea in {knob.idea: None for knob in knobs if knob.name in best}:
        parts.append({knob.name for knob in knobs if knob.idea == idea and knob.name in best})
    for names in parts:
        chosen = {name: best[name] for name in best if name in names}
        found = _without_losers(chosen, workloads)
        if found is not None:
            yield found


@dataclass(frozen=True, slots=True)
class _Best:
    choice: str
    effects: Mapping[str, float]  # by workload

    @property
    def mean(self) -> float:
        return math.fsum(self.effects.values()) / len(self.effects)


def _best_values(knobs: Sequence[Knob], values: Values, evidence: Evidence) -> dict[str, _Best]:
    """Per knob the value with the largest mean effect, if that is worth anything."""
    best, bad = {}, evidence.bad()
    for knob in knobs:
        if knob.name not in values or not evidence.touched(knob.name):
            continue
        known = {}
        for choice in sorted(knob.choices):
            value = normal(choice)
            effects = evidence.advantage(knob.name, values[knob.name], value)
            if effects and value != values[knob.name] and (knob.idea, value) not in bad:
                known[choice] = _Best(choice, effects)
        if known and (top := max(known.values(), key=lambda b: b.mean)).mean > WORTH:
            best[knob.name] = top
    return best


def _without_losers(chosen: Mapping[str, _Best], workloads: Sequence[str]) -> Combination | None:
    """The sum of the chosen values, less those that cost some workload too much."""
    chosen = dict(chosen)
    while chosen:
        predicted = {
            w: math.fsum(best.effects.get(w, 0.0) for best in chosen.values()) for w in workloads
        }
        worst = min(predicted, key=predicted.__getitem__)
        if predicted[worst] >= _LOSS:
            changes = {name: best.choice for name, best in chosen.items()}
            return Combination(changes, predicted)
        del chosen[min(chosen, key=lambda name: chosen[name].effects.get(worst, 0.0))]
    return None
