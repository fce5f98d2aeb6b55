"""The words of a commit that a search proposes: its ideas, their reasons, what would refute it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..knobs import Knob
from ..patterns import normal
from ..records import Workload
from .evidence import Change

_SUBJECT = 55  # with the longest prefix of a task a line of git's log


def subject_of(knobs: Sequence[Knob], change: Change) -> str:
    """Imperative, without a prefix, at most 55 characters; `knobs` are all that the search has."""
    settings = _settings(knobs, change)
    plain = [s for s in settings if s.value]
    sized = [s for s in settings if not s.value]
    first, more = settings[0].what, f" and {len(settings) - 1} more" if settings[1:] else ""
    if sized:
        chosen = f"Choose {_names(sized)} by {sized[0].size}"
        wordings = [f"{chosen}, {_to(plain)}", f"{chosen}, and {len(plain)} more"]
        wordings = wordings if plain else [chosen]
    else:
        wordings = [f"Set {_to(plain)}", f"Set {first} to {plain[0].value}{more}"]
    wordings += [f"Change {_names(settings)}", f"Change {first}{more}"]
    wordings += [f"Change {' and '.join(change.new)}", f"Change {len(settings)} knobs"]
    return next((w for w in wordings if len(w) <= _SUBJECT), wordings[-1][:_SUBJECT])


def body_of(
    changed: Sequence[Knob],
    change: Change,
    workloads: Sequence[Workload],
    predicted: Mapping[str, float] | None,
) -> str:
    """Hypothesis, prediction, and the changes as `knob: old -> new`.

    `predicted` has the log of the expected speed-up by workload, of a combination.
    """
    lines = [
        f"  {knob.name}: {change.old[knob.name]} -> {change.new[knob.name]}" for knob in changed
    ]
    said = _single(changed, workloads) if predicted is None else _combined(predicted)
    return "\n".join((*said, "", "What changed:", *lines))


def _single(changed: Sequence[Knob], workloads: Sequence[Workload]) -> list[str]:
    reasons = {knob.title: knob.effect for knob in changed if knob.effect}
    said = [f"Hypothesis on {title}: {effect}." for title, effect in reasons.items()]
    moved = [w for w in workloads if any(knob.touches(w) for knob in changed)]
    names = _classes(moved) if len(_classes(moved)) < len(moved) else [w.name for w in moved]
    kept = [c for c in _classes(workloads) if c not in _classes(moved)]
    prediction = f"Prediction for {', '.join(names)}: faster than the parent."
    if kept:
        prediction += f" No other object changes ({', '.join(kept)})."
    return [textwrap.fill(text, 72) for text in (*said, prediction)]


def _combined(predicted: Mapping[str, float]) -> list[str]:
    mean = math.expm1(math.fsum(predicted.values()) / len(predicted))
    said = (
        "Hypothesis: what served each workload best in the attempts of this run serves it best "
        "beside the others too.",
        f"Prediction if the parts do not disturb each other: {mean:+.1%} in the mean, by workload",
    )
    gains = (f"  {workload} {math.expm1(gain):+.1%}" for workload, gain in predicted.items())
    return [*(textwrap.fill(text, 72) for text in said), *gains]


@dataclass(frozen=True, slots=True)
class _Setting:
    """What one idea of a change is called. `value` is empty where it depends on the size."""

    what: str
    value: str
    size: str


def _settings(knobs: Sequence[Knob], change: Change) -> list[_Setting]:
    ideas: dict[object, list[Knob]] = {}
    for knob in knobs:
        ideas.setdefault(knob.idea, []).append(knob)
    settings = []
    for members in ideas.values():
        changed = [knob for knob in members if knob.name in change.new]
        if not changed:
            continue
        values = {_label(knob, change.new[knob.name]) for knob in changed}
        what, size = changed[0].title, changed[0].ladder[0].split()[0] if changed[0].ladder else ""
        if len(changed) == 1 and changed[0].at:
            what = f"{what} at {changed[0].at}"
        elif change.combined and changed != members:
            values.add("")
        settings.append(_Setting(what, values.pop() if len(values) == 1 else "", size))
    return settings


def _names(settings: Sequence[_Setting]) -> str:
    return " and ".join(setting.what for setting in settings)


def _label(knob: Knob, value: str) -> str:
    return {normal(choice): label for choice, label in knob.labels}.get(value, value)


def _to(settings: Sequence[_Setting]) -> str:
    """`a to 1, b to 2`, or `a and b to 1` where the value is the same."""
    by_value: dict[str, list[str]] = {}
    for setting in settings:
        by_value.setdefault(setting.value, []).append(setting.what)
    return ", ".join(f"{' and '.join(names)} to {value}" for value, names in by_value.items())


def _classes(workloads: Sequence[Workload]) -> list[str]:
    return sorted({w.class_name for w in workloads})
