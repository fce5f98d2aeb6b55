"""Judging one candidate by hand, exactly as the engine does: `evaluate` and `record`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from . import workspace
from .bench import Bench, Spread, Standing
from .errors import BadInput
from .lineage import Lineage
from .operators import Proposal
from .plan import Wanted, default_target, make_bench, only_task, resume
from .readiness import make_ready
from .records import Attempt, Status, Verdict
from .run import Run, Watch
from .score import judge_tree, standing_of
from .target import find_target
from .task import Task, find_task

FAILED = (
    Status.BUILD_FAILED,
    Status.AUDIT_FAILED,
    Status.INCORRECT,
    Status.CRASHED,
    Status.TIMED_OUT,
)
COLD_LAUNCHES = 10  # isolated launches per workload and arm in `evaluate`


def evaluate_once(
    candidate: str, against: str | None, wanted: Wanted, spread: Spread, watch: Watch
) -> tuple[Bench, Verdict]:
    """The verdict on a revision or a folder, against the incumbent or `against`."""
    lineage = Lineage.open(wanted.lineage)
    name = lineage.find_run(wanted.run) if wanted.run or lineage.runs() else None
    facts = lineage.run_facts(name) if name else {}
    task = find_task(wanted.task or facts.get("Task") or only_task(lineage))
    target = find_target(wanted.target or facts.get("Target") or default_target())
    group = wanted.workloads or facts.get("Workloads") or task.settings.default_group
    bench = make_bench(task, target, group, wanted, spread, watch)
    with closing(bench):
        seed = lineage.seed(task.name)
        tree = _tree_of(candidate, lineage, name, bench, seed)
        base = lineage.head(name) if name else seed
        if against:
            base = _passed(lineage, lineage.resolve(against, name), against)
        standing = standing_against(lineage, seed, base, bench, watch)
        if bench.rig is not None:
            watch.phase("self-test and calibration of this machine")
            make_ready(lineage.repo, bench, standing.seed)
        watch.phase(f"judging {candidate}")
        bench = thorough(bench)
        return bench, judge_tree(lineage.repo, tree, bench, standing)


def thorough(bench: Bench) -> Bench:
    """A bench that measures everything, the task's baselines included; as it is without a GPU."""
    if bench.rig is None:
        return bench
    return replace(bench, thorough=True, baselines=baselines_of(bench.task), cold=COLD_LAUNCHES)


def standing_against(
    lineage: Lineage, seed: str, base: str, bench: Bench, watch: Watch
) -> Standing:
    """What a candidate is compared with: the seed commit, and `base` as the incumbent."""
    watch.phase(f"judging the seed for {bench.target.title}")
    baseline = _must_judge(lineage, seed, bench, None)
    standing = standing_of(baseline, baseline)
    if lineage.tree(base) == lineage.tree(seed):
        return standing
    watch.phase("judging what it is compared with")
    compared = standing if bench.rig is None else None
    return standing_of(baseline, _must_judge(lineage, base, bench, compared))


def baselines_of(task: Task) -> tuple[str, ...]:
    """The libraries that a task is compared with."""
    return () if task.baselines is None else tuple(task.baselines.NAMES)


def record_once(
    directory: Path, message: str, wanted: Wanted, spread: Spread, watch: Watch
) -> Attempt:
    """Evaluate a folder as an attempt of the run and commit it with its verdict."""
    lineage = Lineage.open(wanted.lineage)
    name = lineage.find_run(wanted.run)
    subject, _, body = message.strip().partition("\n")
    if not subject:
        raise BadInput("the message is empty: say what changed and why")
    run = resume(lineage, name, wanted, spread, watch)
    with lineage.lock(), closing(run.bench):
        run.begin()
        return _record(run, directory, Proposal(subject, body, {}))


def _record(run: Run, directory: Path, proposal: Proposal) -> Attempt:
    head = run.lineage.head(run.name)
    tree = _read_back(run.lineage, head, directory, run.bench)
    run.watch.phase(f"attempt {run.lineage.next_number(run.name)}: {proposal.subject}")
    attempt, _ = run.attempt(head, tree, proposal, "manual")
    return attempt


def _tree_of(candidate: str, lineage: Lineage, run: str | None, bench: Bench, seed: str) -> str:
    """A folder's files as a tree, or the tree of a revision."""
    if Path(candidate).is_dir():
        return _read_back(lineage, lineage.head(run) if run else seed, Path(candidate), bench)
    return lineage.tree(lineage.resolve(candidate, run))


def _read_back(lineage: Lineage, base: str, directory: Path, bench: Bench) -> str:
    settings = bench.task.settings
    return workspace.read_back(
        lineage.repo, lineage.tree(base), directory, settings.editable, settings.max_file_bytes
    ).tree


def _passed(lineage: Lineage, commit: str, asked: str) -> str:
    """The commit, unless it is of an attempt that did not pass."""
    status = lineage.attempt(commit).status
    if status in FAILED:
        raise BadInput(f"{asked} ({commit[:10]}) is {status}: compare with a version that passed")
    return commit


def _must_judge(lineage: Lineage, commit: str, bench: Bench, standing: Standing | None) -> Verdict:
    verdict = judge_tree(lineage.repo, lineage.tree(commit), bench, standing)
    if not verdict.estimates:
        raise BadInput(f"{commit[:10]}, to compare with, does not pass: {verdict.reason}")
    return verdict
