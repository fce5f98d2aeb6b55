"""Verification: whether an attempt is what its commit says, byte for byte and number for number.

Its tree is built once more with an empty cache, and on a machine with the target's GPU measured
once more at the commit level, with hidden workloads that nobody has seen. What was found is kept
as a note of the commit; the commit itself never changes.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from .bench import Bench, Spread
from .errors import BadInput, MachineFailed
from .history import UNKNOWN
from .lineage import Lineage
from .once import standing_against
from .plan import Wanted, default_target, make_bench
from .readiness import make_ready
from .recording import measured_facts
from .records import Attempt, Interval, Status, Verdict
from .run import Watch
from .sandbox import printable
from .score import judge_tree
from .target import find_target
from .task import Task, find_task, shipped_tasks

FAILING = (
    Status.BUILD_FAILED,
    Status.AUDIT_FAILED,
    Status.INCORRECT,
    Status.CRASHED,
    Status.TIMED_OUT,
)


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


def verify_once(
    rev: str, against: str | None, wanted: Wanted, spread: Spread, watch: Watch
) -> tuple[Bench, Verification]:
    """Verify an attempt or a seed, against its parent or `against`, and keep that as a note.

    Raises `MachineFailed` where this machine cannot say.
    """
    lineage = Lineage.open(wanted.lineage)
    run = lineage.find_run(wanted.run) if wanted.run or lineage.runs() else None
    attempt = lineage.attempt(lineage.resolve(rev, run))
    base = lineage.resolve(against, run) if against else _compared_with(attempt)
    bench = _bench(attempt, wanted, spread, watch)
    with closing(bench):
        found = verify(lineage, attempt, base, bench, watch)
    keep(lineage, bench, found)
    return bench, found


def verify(
    lineage: Lineage, attempt: Attempt, base: str, bench: Bench, watch: Watch
) -> Verification:
    """Rebuild an attempt and, on a bench that measures, compare it with the commit `base`."""
    with tempfile.TemporaryDirectory(prefix="avo-cute-verify-") as folder:
        fresh = replace(bench, cache=Path(folder) / "first")
        watch.phase(f"rebuilding {attempt.commit[:10]} with an empty cache")
        rebuilt = twin = verdict = judge_tree(lineage.repo, attempt.tree, fresh, None)
        if "Artifact" not in attempt.trailers:
            watch.phase("and once more: no artifact is recorded")
            second = replace(bench, cache=Path(folder) / "second", rig=None)
            twin = judge_tree(lineage.repo, attempt.tree, second, None)
        if rebuilt.estimates:
            verdict = _judged_again(lineage, attempt, base, (bench, fresh), watch)
    return conclude(lineage, attempt, base, bench, (rebuilt, twin, verdict))


def _bench(attempt: Attempt, wanted: Wanted, spread: Spread, watch: Watch) -> Bench:
    """The bench that the attempt was judged on, as far as this machine has it."""
    told = attempt.trailers
    if "Task" not in told or (attempt.number == UNKNOWN and "Upstream" not in told):
        raise BadInput(f"{attempt.commit[:10]} is neither an attempt nor a seed")
    for option, asked, recorded in (
        ("target", wanted.target, told.get("Target")),
        ("workloads", wanted.workloads, told.get("Workloads")),
    ):
        if None not in (asked, recorded) and asked != recorded:
            raise BadInput(f"{attempt.commit[:10]} was judged with --{option} {recorded}")
    task = _task(told["Task"], wanted.task)
    target = find_target(told.get("Target") or wanted.target or default_target())
    group = told.get("Workloads") or wanted.workloads or task.settings.default_group
    return make_bench(task, target, group, wanted, spread, watch)


def _compared_with(attempt: Attempt) -> str:
    """The commit that an attempt's gain is over."""
    return attempt.trailers.get("Against") or attempt.parent or attempt.commit


def _task(recorded: str, asked: str | None) -> Task:
    if asked is None and recorded not in shipped_tasks():
        raise BadInput(f"task {recorded} is not shipped: give --task DIRECTORY")
    task = find_task(asked or recorded)
    if task.name != recorded:
        raise BadInput(f"it is an attempt of task {recorded}, not of {task.name}")
    return task


def _judged_again(
    lineage: Lineage, attempt: Attempt, base: str, benches: tuple[Bench, Bench], watch: Watch
) -> Verdict:
    """The full verdict on what was rebuilt; both sides that it meets may come from the cache."""
    bench, fresh = benches
    task = bench.task
    standing = standing_against(lineage, lineage.seed(task.name), base, bench, watch)
    if bench.rig is not None:
        watch.phase("self-test and calibration of this machine")
        make_ready(lineage.repo, bench, standing.seed)
        watch.phase(f"measuring {attempt.commit[:10]} in fresh processes")
    # the libraries are not what it is compared with: their rounds are saved
    alone = replace(fresh, thorough=True)
    verdict = judge_tree(lineage.repo, attempt.tree, alone, standing)
    if verdict.status is Status.INFRA_ERROR:
        raise MachineFailed(f"this machine cannot say: {verdict.reason}")
    return verdict


def conclude(
    lineage: Lineage,
    attempt: Attempt,
    base: str,
    bench: Bench,
    found: tuple[Verdict, Verdict, Verdict],
) -> Verification:
    """What it all means. `found`: the rebuild, a second one (or the same), the full verdict."""
    rebuilt, twin, verdict = found
    recorded = attempt.trailers.get("Artifact") or twin.artifact
    artifact = "none"
    if rebuilt.artifact:
        artifact = "equal" if rebuilt.artifact == recorded else "different"
    like = lineage.tree(base) == lineage.tree(_compared_with(attempt))
    was = recorded_gain(attempt) if like else None
    start = Verification(attempt, verdict, artifact, base, was, "", ())
    remarks = (*_differences(attempt, rebuilt, bench), *_measurement(start, bench))
    why = _not_the_same(start, rebuilt, bench) or (_not_as_good(start, like) if bench.rig else "")
    return replace(start, why=why, remarks=remarks)


def keep(lineage: Lineage, bench: Bench, found: Verification) -> None:
    """Add the verification to the notes of its commit."""
    verdict, measured = found.verdict, found.verdict.measured
    facts = {
        "Verified": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "Holds": "yes" if found.holds else f"no: {found.why}",
        "Artifact": found.artifact,
        "Status": str(verdict.status),
        "Score-kind": verdict.kind if verdict.score is not None else "",
        "Score": "" if verdict.score is None else f"{verdict.score:.6f}",
        "Against": f"{found.against[:10]} {lineage.subject(found.against)}",
        "Gain": "" if verdict.gain is None else f"{verdict.gain:.6f}",
        **measured_facts(bench, measured),
        "Driver": str(measured.facts.get("driver", "")) if measured else "",
        "Target": bench.target.name,
        "Toolchain": verdict.toolchain,
        "Evaluator": bench.evaluator,
        "Sandbox": verdict.sandbox,
    }
    lines = [f"{key}: {_one_line(value)}" for key, value in facts.items() if value]
    text = "\n".join([*lines, *(f"Remark: {_one_line(r)}" for r in found.remarks)]) + "\n"
    before = lineage.read_note(found.attempt.commit)
    lineage.write_note(found.attempt.commit, f"{before.rstrip()}\n\n{text}" if before else text)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))[:500]


def recorded_gain(attempt: Attempt) -> Interval | None:
    """The gain that a measured attempt was recorded with; None where there is none to read."""
    words = attempt.trailers.get("Gain", "").split()
    if attempt.trailers.get("Score-kind") != "measured" or len(words) != 3:
        return None
    try:
        value, low, high = map(float, words)
    except ValueError:
        return None
    return Interval(value, low, high)


def relation(was: Interval, now: Interval) -> str:
    """How two intervals of one gain lie to each other."""
    if now.low > was.high:
        return "the new interval lies above the old one"
    if now.high < was.low:
        return "the new interval lies below the old one"
    if now.low <= was.value <= now.high:
        return "the new interval contains the old gain"
    return "the intervals overlap"


def _not_the_same(found: Verification, rebuilt: Verdict, bench: Bench) -> str:
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


def _not_as_good(found: Verification, like: bool) -> str:
    """Where measuring does not bear out what the commit says; `like`: with the same opponent."""
    before, verdict, gain = found.attempt.status, found.verdict, found.gain
    if verdict.status in FAILING:
        same = before is verdict.status
        return "" if same else f"recorded as {before}, now {verdict.status}: {verdict.reason}"
    if before in FAILING:
        return f"recorded as {before}, but it passes now"
    if found.attempt.trailers.get("Score-kind") != "measured" or not like or gain is None:
        return ""
    assert verdict.measured is not None
    holds = gain.low > math.exp(verdict.measured.margin)
    if before is Status.ACCEPTED and verdict.status is Status.REJECTED:
        return f"the gain does not hold: {verdict.reason}"
    if before is Status.ACCEPTED and not holds:
        margin = math.expm1(verdict.measured.margin)
        return f"the gain does not hold: {gain}, its bound is not above the margin of {margin:.2%}"
    if before is not Status.ACCEPTED and verdict.status is Status.ACCEPTED:
        return f"recorded as {before}, now {verdict.reason}"
    return ""


def _differences(attempt: Attempt, rebuilt: Verdict, bench: Bench) -> list[str]:
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


def _measurement(found: Verification, bench: Bench) -> list[str]:
    if bench.rig is None:
        return [f"nothing was measured: --devices none, or no {bench.target.title} in this machine"]
    if found.was is None or found.gain is None:
        return []
    between = relation(found.was, found.gain)
    return [f"gain {found.gain} now, {found.was} when it was recorded: {between}"]
