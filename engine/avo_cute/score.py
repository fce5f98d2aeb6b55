"""Score: f of the evolution. A candidate's files go in, a `Verdict` comes out.

Rules are checked first because they cost nothing, then every workload class is built, audited and
estimated (side by side, where the executor can), then one decision is made: on a machine with the
target GPU from what `measured` found, elsewhere from the static estimate. The verdict's `kind`
says which.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from . import workspace
from .bench import Bench, Side, Standing
from .beyond import Export
from .build import Source
from .build.analyse import ClassResult, judge_class
from .build.audit import signals
from .build.toolchain import toolchain
from .errors import MachineFailed, Stopped
from .knobs import read
from .measured import measure
from .records import Artifact, Failure, Status, Target, Verdict
from .repo import Repo
from .sandbox import describe
from .stats import geomean
from .task import Task

STATIC_MARGIN = 0.0005  # gains below this are `equal`: the estimate resolves no finer
IMPLAUSIBLE = 1.3  # a step beyond this says more about the estimate than about the candidate
WORST_WORKLOAD = 0.99  # no workload may lose more than 1 %


def evaluate(
    source: Source, bench: Bench, standing: Standing | None, export: Export | None = None
) -> Verdict:
    """Judge one candidate. Without a standing it is the baseline: score 1, `no-change`.

    `export` writes a tree of the lineage into a folder; without it nothing is measured. Never
    raises for what the candidate did; `MachineFailed` where this machine is at fault.
    """
    verdict = _judge(source, bench)
    confined = [describe(bench.layer), *([] if bench.rig is None else [bench.rig.trailer])]
    verdict = replace(verdict, sandbox="; ".join(confined), toolchain=toolchain())
    if verdict.status is not Status.ACCEPTED:
        return verdict
    if standing is None:
        reason = "the baseline of this run"
        return replace(verdict, status=Status.NO_CHANGE, reason=reason, score=1.0, gain=1.0)
    warnings = (
        f"{name}: {line}"
        for name, new in verdict.facts.items()
        if name in standing.facts
        for line in signals(new, standing.facts[name])
    )
    verdict = replace(verdict, signals=(*verdict.signals, *warnings))
    if bench.rig is None or export is None:
        return decide(verdict, standing)
    if (stands := known(verdict, bench, standing)) is not None:
        return stands
    return measure(verdict, source, bench, standing, export)


def known(verdict: Verdict, bench: Bench, standing: Standing) -> Verdict | None:
    """The verdict on objects that were measured before: chance gets no second try."""
    verdict = replace(verdict, kind="measured")
    if verdict.artifact == standing.artifact and not bench.thorough:
        reason = "every object is byte-identical to the incumbent's"
        return replace(verdict, status=Status.NO_CHANGE, reason=reason, score=standing.score)
    found = standing.seen.get(verdict.artifact)
    if found is None or bench.thorough:
        return None
    number, before = found
    status = Status.EQUAL if before in (Status.ACCEPTED, Status.NO_CHANGE) else before
    reason = f"the same objects as attempt {number} ({before}): its verdict stands"
    return replace(verdict, status=status, reason=reason)


def decide(verdict: Verdict, standing: Standing) -> Verdict:
    """The static rule: accepted only if better than the high-water mark and worse nowhere.

    Score is the geometric mean over workloads of baseline cycles / candidate cycles, gain the
    same against the high-water mark. A number that cannot be compared is never averaged away.
    """
    cycles = {e.workload: e.cycles for e in verdict.estimates}
    if set(cycles) != set(standing.baseline):
        missing = ", ".join(sorted(set(standing.baseline) ^ set(cycles)))
        return _unsound(verdict, f"no estimate that can be compared for {missing}")
    if unsound := [w for w, c in cycles.items() if not (math.isfinite(c) and c > 0)]:
        return _unsound(verdict, f"an impossible estimate for {', '.join(unsound)}")
    gains = {w: standing.high_water[w] / c for w, c in cycles.items()}
    gain = geomean(list(gains.values()))
    status, reason = _ruling(verdict, gain, gains, standing)
    return replace(
        verdict,
        status=status,
        reason=reason,
        score=geomean([standing.baseline[w] / c for w, c in cycles.items()]),
        gain=gain,
    )


def _ruling(
    verdict: Verdict, gain: float, gains: Mapping[str, float], standing: Standing
) -> tuple[Status, str]:
    if verdict.artifact == standing.artifact:
        return Status.NO_CHANGE, "every object is byte-identical to the incumbent's"
    known = standing.seen.get(verdict.artifact)
    if known is not None and known[1] not in _RANKED:
        return known[1], f"the same objects as attempt {known[0]} ({known[1]}): its verdict stands"
    if abs(math.log(gain)) <= STATIC_MARGIN:
        return Status.EQUAL, f"within {STATIC_MARGIN:.2%} of the high-water mark"
    against = f"{gain - 1:+.2%} against the high-water mark"
    if gain < 1:
        return Status.REJECTED, against
    worst = min(gains, key=gains.__getitem__)
    if gains[worst] < WORST_WORKLOAD:
        lost = f"{worst} loses {1 - gains[worst]:.1%}, more than the 1 % allowed"
        return Status.REJECTED, f"{gain - 1:+.2%} in the mean, but {lost}"
    if gain > IMPLAUSIBLE:
        return Status.REJECTED, f"{against} by the estimate: more than it can be believed with"
    if spilled := _spilled(verdict, standing):
        return Status.REJECTED, f"{against} by the estimate, but {spilled}"
    if known is not None:
        return Status.EQUAL, f"the same objects as attempt {known[0]} ({known[1]}), {against}"
    return Status.ACCEPTED, f"{against}, estimated: nothing was run on a GPU"


# Outcomes that a comparison gave; against a new incumbent it is made again, with the same numbers.
_RANKED = (Status.ACCEPTED, Status.EQUAL, Status.REJECTED, Status.NO_CHANGE)


def _spilled(verdict: Verdict, standing: Standing) -> str:
    """Where the candidate spills more than the incumbent.

    The estimate prices spills in the steady loops only, and every variant of FA4 that was measured
    on an H200 with spills lost 12-65 %: a static score does not decide against that.
    """
    for workload, facts in verdict.facts.items():
        before = standing.facts[workload].spills if workload in standing.facts else 0
        if facts.spills > before:
            return f"{workload} spills: {facts.spills} local-memory instructions, not {before}"
    return ""


def _unsound(verdict: Verdict, reason: str) -> Verdict:
    return replace(verdict, status=Status.AUDIT_FAILED, reason=reason, score=None, gain=None)


def judge_tree(repo: Repo, tree: str, bench: Bench, standing: Standing | None) -> Verdict:
    """Export a tree to a private folder and judge exactly that.

    Tried twice where this machine, not the candidate, failed; then `MachineFailed` is raised.
    """
    export = partial(workspace.export, repo)
    with tempfile.TemporaryDirectory(prefix="avo-cute-candidate-") as folder:
        export(tree, Path(folder))
        source = Source(tree, Path(folder))
        try:
            return evaluate(source, bench, standing, export)
        except Stopped:
            raise
        except MachineFailed:
            return evaluate(source, bench, standing, export)


def standing_of(
    baseline: Verdict, incumbent: Verdict, seen: Mapping[str, tuple[int, Status]] | None = None
) -> Standing:
    """What candidates are compared with, from two verdicts."""
    return Standing(
        baseline={e.workload: e.cycles for e in baseline.estimates},
        high_water={e.workload: e.cycles for e in incumbent.estimates},
        artifact=incumbent.artifact,
        facts=incumbent.facts,
        seen={} if seen is None else seen,
        score=incumbent.score or 1.0,
        seed=Side(baseline.tree, baseline.objects),
        incumbent=Side(incumbent.tree, incumbent.objects),
    )


def check_rules(task: Task, target: Target, directory: Path) -> list[str]:
    """The task's legality rules that the files in `directory` break; costs no build."""
    knobs = task.knobs.KNOBS
    files = {
        name: path.read_bytes()
        for name in sorted({k.file for k in knobs})
        if (path := directory / name).is_file()
    }
    broken: list[str] = task.knobs.check(read(knobs, files), target)
    return broken


def artifact_id(artifacts: Iterable[Artifact]) -> str:
    """`Artifact:` of a verdict: sha256 over the objects of all judged workloads."""
    lines = sorted(f"{a.workload.name} {a.object_sha256}" for a in artifacts)
    return sha256("\n".join(lines).encode()).hexdigest()


def _judge(source: Source, bench: Bench) -> Verdict:
    if broken := check_rules(bench.task, bench.target, source.directory):
        reason = f"refused before building: {broken[0]}"
        return Verdict(Status.BUILD_FAILED, reason, "\n".join(broken))
    wanted = (*bench.workloads, *bench.beside)
    results = list(bench.spread(judge_class, bench.requests(source, wanted)))
    failures = [r for r in results if isinstance(r, Failure)]
    if failures:
        return Verdict(failures[0].status, failures[0].reason, failures[0].detail)
    passed = [r for r in results if isinstance(r, ClassResult)]
    built = {a.workload.name: a for r in passed for a in r.artifacts}
    estimates = {e.workload: e for r in passed for e in r.estimates}
    artifacts = [built[w.name] for w in bench.workloads]
    return Verdict(
        Status.ACCEPTED,
        "",
        artifact=artifact_id(artifacts),
        estimates=tuple(estimates[w.name] for w in bench.workloads),
        facts={a.workload.name: a.facts for a in artifacts},
        launches={a.workload.name: a.launches for a in artifacts},
        signals=tuple(dict.fromkeys(line for r in passed for line in r.signals)),
        tree=source.tree,
        objects={name: a.object_path for name, a in built.items()},
    )
