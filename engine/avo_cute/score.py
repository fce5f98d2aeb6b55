"""Score: f of the evolution. A candidate's files go in, a `Verdict` comes out.

Rules are checked first because they cost nothing, then every workload class is built, audited and
estimated (side by side, where the executor can), then one decision is made. On a machine without
the target GPU the score is the static estimate and says so (`kind`).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from . import workspace
from .build import BuildRequest, Source
from .build.analyse import ClassResult, evaluator_id, judge_class
from .build.audit import signals
from .build.toolchain import toolchain
from .errors import MachineFailed
from .knobs import read
from .records import Artifact, Facts, Failure, Status, Target, Verdict, Workload
from .repo import Repo
from .sandbox import describe
from .stats import geomean
from .task import Task

STATIC_MARGIN = 0.0005  # gains below this are `equal`: the estimate resolves no finer
IMPLAUSIBLE = 1.3  # a step beyond this says more about the estimate than about the candidate
WORST_WORKLOAD = 0.99  # no workload may lose more than 1 %

Spread = Callable[
    [Callable[[BuildRequest], ClassResult | Failure], Sequence[BuildRequest]],
    Iterable[ClassResult | Failure],
]


@dataclass(frozen=True, slots=True)
class Bench:
    """How candidates of one run are judged; the same for every candidate of it."""

    task: Task
    target: Target
    workloads: tuple[Workload, ...]
    cache: Path
    layer: str
    spread: Spread
    wall_s: float = 300.0

    @property
    def evaluator(self) -> str:
        return evaluator_id(self.task)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a candidate is compared with: the run's baseline and its high-water mark.

    `seen` maps the artifact of every attempt so far to its number and status.
    """

    baseline: Mapping[str, float]  # workload name -> cycles
    high_water: Mapping[str, float]  # likewise, of the best accepted candidate
    artifact: str  # of the incumbent
    facts: Mapping[str, Facts] = field(default_factory=dict)
    seen: Mapping[str, tuple[int, Status]] = field(default_factory=dict)
    score: float = 1.0  # of the high-water mark, over the baseline


def evaluate(source: Source, bench: Bench, standing: Standing | None) -> Verdict:
    """Judge one candidate. Without a standing it is the baseline: score 1, `no-change`.

    Never raises for what the candidate did; `MachineFailed` where this machine is at fault.
    """
    verdict = _judge(source, bench)
    verdict = replace(verdict, sandbox=describe(bench.layer), toolchain=toolchain())
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
    return replace(decide(verdict, standing), signals=(*verdict.signals, *warnings))


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
    with tempfile.TemporaryDirectory(prefix="avo-cute-candidate-") as folder:
        workspace.export(repo, tree, Path(folder))
        source = Source(tree, Path(folder))
        try:
            return evaluate(source, bench, standing)
        except MachineFailed:
            return evaluate(source, bench, standing)


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
    results = list(bench.spread(judge_class, _requests(source, bench)))
    failures = [r for r in results if isinstance(r, Failure)]
    if failures:
        return Verdict(failures[0].status, failures[0].reason, failures[0].detail)
    passed = [r for r in results if isinstance(r, ClassResult)]
    artifacts = [a for r in passed for a in r.artifacts]
    return Verdict(
        Status.ACCEPTED,
        "",
        artifact=artifact_id(artifacts),
        estimates=tuple(e for r in passed for e in r.estimates),
        facts={a.workload.name: a.facts for a in artifacts},
        launches={a.workload.name: a.launches for a in artifacts},
        signals=tuple(line for r in passed for line in r.signals),
    )


def _requests(source: Source, bench: Bench) -> list[BuildRequest]:
    return [
        BuildRequest(
            source=source,
            task=bench.task.directory,
            target=bench.target,
            workloads=tuple(group),
            layer=bench.layer,
            cache=bench.cache,
            wall_s=bench.wall_s,
        )
        for _, group in groupby(bench.workloads, key=lambda w: w.class_name)
    ]
