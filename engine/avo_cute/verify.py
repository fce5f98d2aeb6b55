"""Verification: whether an attempt is what its commit says, byte for byte and number for number.

Its tree is built once more with an empty cache, and on a machine with the target's GPU measured
once more at the commit level, with hidden workloads that nobody has seen. What was found is kept
as a note of the commit; the commit itself never changes.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from .agreement import (
    Verification,
    another_estimate,
    differences,
    measurement,
    not_as_good,
    not_the_same,
    recorded_gain,
)
from .bench import Bench, Spread
from .errors import BadInput, MachineFailed
from .history import UNKNOWN
from .lineage import Lineage
from .once import standing_against
from .plan import Wanted, default_target, make_bench
from .readiness import make_ready
from .recording import measured_facts
from .records import Attempt, Status, Verdict
from .run import Watch
from .sandbox import printable
from .score import judge_tree
from .target import find_target
from .task import Task, find_task, shipped_tasks


def verify_once(
    rev: str, against: str | None, wanted: Wanted, spread: Spread, watch: Watch
) -> tuple[Bench, Verification]:
    """Verify an attempt or a seed, against its parent or `against`, and keep that as a note.

    Raises `MachineFailed` where this machine cannot say.
    """
    lineage = Lineage.open(wanted.lineage)
    run = lineage.find_run(wanted.run) if wanted.run or lineage.runs() else None
    attempt = lineage.attempt(lineage.resolve(rev, run))
    base = lineage.resolve(against, run) if against else _compared_with(lineage, attempt)
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


def _compared_with(lineage: Lineage, attempt: Attempt) -> str:
    """The commit that an attempt's gain is over; its trailer is text like any other."""
    said = attempt.trailers.get("Against")
    if said is None:
        return attempt.parent or attempt.commit
    if _COMMIT.fullmatch(said) is None or lineage.repo.rev_parse(said) is None:
        raise BadInput(
            f"{attempt.commit[:10]} says it was compared with {said[:60]!a}, which is no commit of "
            "this lineage: give --against REV"
        )
    return said


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
    like = lineage.tree(base) == lineage.tree(_compared_with(lineage, attempt))
    was = recorded_gain(attempt) if like else None
    start = Verification(attempt, verdict, artifact, base, was, "", ())
    remarks = (*differences(attempt, rebuilt, bench), *measurement(start, bench))
    why = not_the_same(start, rebuilt, bench)
    why = why or (not_as_good(start, like) if bench.rig else another_estimate(start, like, bench))
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
    lineage.add_note(found.attempt.commit, text)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))[:500]


_COMMIT = re.compile(r"[0-9a-f]{40}")
