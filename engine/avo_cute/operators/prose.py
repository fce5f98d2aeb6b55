"""The words of a commit that a search proposes: one idea, its reason, and what would refute it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ..knobs import Knob

_SUBJECT = 50


def subject_of(changed: Sequence[Knob], changes: Mapping[str, str]) -> str:
    """Imperative, without a prefix, at most 50 characters."""
    settings = [f"{knob.title} to {changes[knob.name]}" for knob in changed]
    count = f"{len(changed)} knobs" if len(changed) > 1 else changed[0].name
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    wordings = (
        f"Set {', '.join(settings)}",
        f"Set {settings[0]}{more}",
        f"Change {changed[0].title}{more}",
        f"Change {count}",
    )
    return next((w for w in wordings if len(w) <= _SUBJECT), wordings[-1][:_SUBJECT])


def body_of(
    changed: Sequence[Knob],
    values: Mapping[str, str],
    changes: Mapping[str, str],
    classes: Sequence[str],
) -> str:
    """Hypothesis, prediction, and the changes as `knob: old -> new`."""
    reasons = [f"Hypothesis on {knob.title}: {knob.effect}." for knob in changed if knob.effect]
    lines = [f"  {knob.name}: {values[knob.name]} -> {changes[knob.name]}" for knob in changed]
    return "\n".join(
        (
            *(textwrap.fill(reason, 72) for reason in reasons),
            textwrap.fill(_prediction(changed, classes), 72),
            "",
            "What changed:",
            *lines,
        )
    )


def _prediction(changed: Sequence[Knob], classes: Sequence[str]) -> str:
    globs = {glob for knob in changed for glob in knob.classes}
    moved = [c for c in classes if any(fnmatchcase(c, glob) for glob in globs)]
    kept = [c for c in classes if c not in moved]
    said = f"Prediction for {', '.join(moved)}: faster than the parent."
    return f"{said} No other object changes ({', '.join(kept)})." if kept else said
