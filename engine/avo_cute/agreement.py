"""Agreement: whether what was found now bears out what a commit says, number for number.

A measured number agrees when its intervals of then and now come within this machine's margin of
each other; a static one when it is the same. Pure, but for the bench's names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .bench import Bench
from .once import FAILED
from .records import Attempt, Interval, Status, Verdict

STATIC_DIGITS = 1e-5  # of a score; trailers have six


@dataclass(frozen=True, slots=True)
class Verification:
    """What one verification found. `why` is one line that says what does not hold, "" if all does.

    `artifact` is "equal" or "different" (to the recorded one, or of two builds where none is
    recorded) or "none"; `against` is the commit that `verdict` compares with. `was` is the
    recorded gain's interval; None where it was not measured, or was against another commit.
    """

    attempt: Attempt
    verdict: Verdict
    artifact: str
    against: str
    was: Interval | None
    why: str
    remarks: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return not self.why

    @property
    def gain(self) -> Interval | None:
        """The gain of now; None where nothing was measured to the end."""
        measured = self.verdict.measured
        return None if measured is None else measured.gain


def recorded_gain(attempt: Attempt) -> Interval | None:
    """The gain that a measured attempt was recorded with; None where there is none to read."""
    if attempt.trailers.get("Score-kind") != "measured":
        return None
    return _interval(attempt.trailers.get("Gain", ""))


def recorded_score(attempt: Attempt) -> Interval | None:
    """Likewise the score over the seed."""
    told = attempt.trailers
    if told.get("Score-kind") != "measured":
        return None
    return _interval(f"{told.get('Score', '')} {told.get('Score-interval', '')}")


def _interval(text: str) -> Interval | None:
    try:
        value, low, high = map(float, text.split())
    except ValueError:
        return None
    return Interval(value, low, high) if math.isfinite(value + low + high) else None


def relation(was: Interval, now: Interval) -> str:
    """How two intervals of one gain lie to each other."""
    if now.low > was.high:
        return "the new interval lies above the old one"
    if now.high < was.low:
        return "the new interval lies below the old one"
    if now.low <= was.value <= now.high:
        return "the new interval contains the old gain"
    return "the intervals overlap"


def not_the_same(found: Verification, rebuilt: Verdict, bench: Bench) -> str:
    """Where the machine code, or what is known without a GPU, is not what the commit says."""
    told, status = found.attempt.trailers, found.attempt.status
    built = "Artifact" in told or "Upstream" in told
    if not rebuilt.artifact:
        same = not built and rebuilt.status is status
        return "" if same else f"recorded as {status}, now {rebuilt.status}: {rebuilt.reason}"
    if found.artifact == "different":
        hint = (
            ", which may be the other toolchain's doing" if _other_toolchain(told, rebuilt) else ""
        )
        of = (
            "the rebuilt objects are not the recorded ones"
            if "Artifact" in told
            else ("two builds give different objects")
        )
        return f"{of}{hint}"
    if not built:
        return f"recorded as {status}, but it builds now"
    cycles = " ".join(f"{e.cycles:.0f}" for e in rebuilt.estimates)
    if told.get("Evaluator") == bench.evaluator and told.get("Cycles", cycles) != cycles:
        return f"the static estimate is {cycles} cycles, recorded {told['Cycles']}"
    return ""


def not_as_good(found: Verification, like: bool) -> str:
    """Where measuring does not bear out what the commit says; `like`: with the same opponent."""
    before, verdict, gain = found.attempt.status, found.verdict, found.gain
    if verdict.status in FAILED:
        same = before is verdict.status
        return "" if same else f"recorded as {before}, now {verdict.status}: {verdict.reason}"
    if before in FAILED:
        return f"recorded as {before}, but it passes now"
    if found.attempt.trailers.get("Score-kind") != "measured":
        return ""
    if gain is None:  # impossible or unsound numbers
        holds = before is not Status.ACCEPTED
        return "" if holds else f"the gain does not hold: {verdict.reason}"
    if not like:
        return ""
    if before is Status.ACCEPTED and (lost := _lost(verdict, gain)):
        return f"the gain does not hold: {lost}"
    if before is not Status.ACCEPTED and verdict.status is Status.ACCEPTED:
        return f"recorded as {before}, now {verdict.reason}"
    return next(_apart(found), "")


def _lost(verdict: Verdict, gain: Interval) -> str:
    """Why what was accepted would not be again."""
    assert verdict.measured is not None
    if verdict.status is Status.REJECTED:
        return verdict.reason
    margin = verdict.measured.margin
    if gain.low <= math.exp(margin):
        return f"{gain}, its bound is not above the margin of {math.expm1(margin):.2%}"
    return ""


def _apart(found: Verification) -> Iterator[str]:
    """Numbers of the commit that cannot be the ones of now, on the same kind of GPU."""
    measured, told = found.verdict.measured, found.attempt.trailers
    if measured is None or told.get("Device", measured.device) != measured.device:
        return
    pairs = (
        ("gain", recorded_gain(found.attempt), measured.gain),
        ("score", recorded_score(found.attempt), measured.score),
    )
    for name, was, now in pairs:
        if was is None:
            what = told.get(name.capitalize(), "")
            if what and now is not None:
                yield f"the recorded {name} {what!a} has no interval that can be read"
        elif not was.low <= was.value <= was.high:
            yield f"the recorded {name} {was} lies outside of its own interval"
        elif now is not None and _distance(was, now) > measured.margin:
            yield f"the recorded {name} {was} is not the {name} of now, {now}"


def _distance(one: Interval, other: Interval) -> float:
    """How far two intervals are from each other, as a log-ratio; 0 where they meet."""
    gap = max(one.low / other.high, other.low / one.high)
    return max(0.0, math.log(gap))


def another_estimate(found: Verification, like: bool, bench: Bench) -> str:
    """Where a static score or gain is not the recorded one, by the same evaluator."""
    told, verdict = found.attempt.trailers, found.verdict
    same = told.get("Evaluator") == bench.evaluator and not _other_toolchain(told, verdict)
    if told.get("Score-kind") != "static" or verdict.kind != "static" or not (like and same):
        return ""
    for name, now in (("Score", verdict.score), ("Gain", verdict.gain)):
        was = _number(told.get(name, ""))
        if name in told and now is not None and not abs(was - now) <= STATIC_DIGITS:
            return f"the recorded {name.lower()} is {told[name]!a}, the estimate gives {now:.6f}"
    return ""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def differences(attempt: Attempt, rebuilt: Verdict, bench: Bench) -> list[str]:
    told = attempt.trailers
    lines = []
    if _other_toolchain(told, rebuilt):
        lines.append(f"another toolchain: {rebuilt.toolchain}; recorded {told['Toolchain']}")
    if told.get("Evaluator", bench.evaluator) != bench.evaluator:
        lines.append(
            f"another evaluator: {bench.evaluator[:12]}, recorded {told['Evaluator'][:12]}: static "
            "estimates are not compared"
        )
    return lines


def _other_toolchain(told: Mapping[str, str], rebuilt: Verdict) -> bool:
    recorded = told.get("Toolchain", "").partition("; driver ")[0]
    return bool(recorded) and recorded != rebuilt.toolchain


def measurement(found: Verification, bench: Bench) -> list[str]:
    if bench.rig is None:
        return [f"nothing was measured: --devices none, or no {bench.target.title} in this machine"]
    if found.was is None or found.gain is None:
        return []
    between = relation(found.was, found.gain)
    return [f"gain {found.gain} now, {found.was} when it was recorded: {between}"]
