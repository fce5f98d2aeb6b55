"""Measured: what a GPU says about a candidate that was built and audited.

    screening   one process, few rounds, few families of inputs: may only reject
    commit      three fresh processes or more: full correctness, hidden workloads drawn after the
                candidate was frozen, head to head with incumbent and seed; only this accepts

What samples mean is `decision`'s to say; what they are is in `measure/`.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .bench import Bench, Side, Standing
from .build import Source
from .build.analyse import ClassResult, judge_class
from .decision import Case, Ruling, decide, screen
from .inert import inert_gains
from .measure.request import Effort, MeasureRequest, Point, Result
from .measure.rig import Rig, fresh_seed
from .records import Failure, Status, Verdict, Workload
from .sandbox import Pool
from .sanitize import sanitize
from .stats import Calibration, inert_note
from .summary import floors, summary

Export = Callable[[str, Path], None]
Kernels = Mapping[str, Mapping[str, Path]]  # arm -> workload -> object

SCREENING = Effort(warm_s=0.15, rounds=12, families="few", large=False)
CONFIRMING = Effort(warm_s=0.4, rounds=20, families="none", large=False)
FIRST = replace(CONFIRMING, families="all", large=True)  # of the commit level: all correctness
HIDDEN_COUNT = 4
CONTROL_BELOW = 1.02  # gains under 2 % get inert rebuilds of both sides beside them
SCREENED_CHECKS = 5  # correctness-only workloads per class in screening
UNMEASURED = Calibration((0.01 / 3,) * 3, 0.001)  # a machine without calibration: margin 1 %


def measure(
    verdict: Verdict, source: Source, bench: Bench, standing: Standing, export: Export
) -> Verdict:
    """The measured verdict on a candidate whose static `verdict` has nothing against it.

    Raises `MachineFailed` where this machine, or the seed on it, is at fault.
    """
    assert bench.rig is not None
    verdict = replace(verdict, kind="measured", reason="")
    trial = Trial(bench, bench.rig, standing, source, verdict, export)
    with bench.rig.held():
        screened = None if bench.thorough else trial.screening()
        return screened or trial.confirmation()


@dataclass
class Trial:
    """One candidate on its way through both levels."""

    bench: Bench
    rig: Rig
    standing: Standing
    source: Source
    verdict: Verdict
    export: Export
    results: list[Result] = field(default_factory=list)

    def screening(self) -> Verdict | None:
        """The verdict if it ends here; None to go on."""
        checks = [c for c in self.bench.beside if c.name in self.verdict.objects]
        chosen = _some_of_each(checks, SCREENED_CHECKS)
        result = self.run(self.points(chosen, []), self.kernels(), SCREENING)
        if result.status:
            return self.failed(result, "screening")
        ruling = screen(result.samples, self.case(), self.calibration)
        if ruling.status is None:
            return None
        return self.ruled(ruling, "screening")

    def confirmation(self) -> Verdict:
        """The commit level: everything, in fresh processes."""
        self.results.clear()
        seed = fresh_seed()
        with Pool(1, "build") as pool:
            later = pool.submit(self.build_more, seed)
            first = self.run(self.points(self.bench.beside, []), self.kernels(), self.first)
            if first.status:
                later.cancel()
                return self.failed(first, "commit")
            more = later.result()
        if isinstance(more, Failure):
            return self.refused(more)
        second = self.run(self.points(more.checks, more.hidden), more.kernels, self.second)
        if second.status:
            return replace(self.failed(second, "commit"), beyond=True)
        third = self.run(self.points([], []), self.kernels(), CONFIRMING)
        if third.status:
            return self.failed(third, "commit")
        case = replace(self.case(), hidden=tuple(w.name for w in more.hidden))
        return self.decided(case, more)

    def decided(self, case: Case, more: _More) -> Verdict:
        """The rule; what is too good is first looked at again, with full correctness."""
        ruling = decide([r.samples for r in self.results], case, self.calibration)
        if "quarantined" in ruling.flags:
            again = self.run(self.points(self.bench.beside, []), self.kernels(), FIRST)
            if again.status:
                return self.failed(again, "commit")
            case = replace(case, rechecked=True)
            ruling = decide([r.samples for r in self.results], case, self.calibration)
        verdict = self.ruled(ruling, "commit")
        if verdict.status is not Status.ACCEPTED or ruling.gain is None:
            return verdict
        if ruling.gain.value < CONTROL_BELOW:
            verdict = self.controlled(verdict, ruling.gain.value)
        return self.sanitized(verdict)

    def sanitized(self, verdict: Verdict) -> Verdict:
        """What would be accepted, under compute-sanitizer where there is one."""
        mine = Side(verdict.tree, verdict.objects)
        found = sanitize(mine, self.standing.seed, self.bench)
        verdict = replace(verdict, signals=(*verdict.signals, *found.told))
        if not found.failure:
            return verdict
        reason = f"compute-sanitizer: {found.failure}"
        return replace(verdict, status=Status.INCORRECT, reason=reason, score=None, gain=None)

    def controlled(self, verdict: Verdict, gain: float) -> Verdict:
        """Say how many inert rebuilds of both sides keep a small gain's sign; gates nothing."""
        note = inert_note(gain, inert_gains(self))
        return replace(verdict, reason=f"{verdict.reason}; {note}") if note else verdict

    # What is asked of a measuring process.

    @property
    def first(self) -> Effort:
        return replace(FIRST, cold=self.bench.cold)

    @property
    def second(self) -> Effort:
        return replace(CONFIRMING, families="few")

    @property
    def calibration(self) -> Calibration:
        return self.rig.calibration or UNMEASURED

    def case(self) -> Case:
        names = [w.name for w in self.bench.workloads]
        seed, incumbent = (
            self.rig.link({n: side.objects[n] for n in names})
            for side in (self.standing.seed, self.standing.incumbent)
        )
        return Case(
            public=tuple(w.name for w in self.bench.workloads),
            floors={name: f.impossible for name, f in floors(self.bench).items()},
            baseline="incumbent" if seed == incumbent else "seed",
            seed=fresh_seed() % 2**32,
        )

    def kernels(self) -> Kernels:
        return {
            "candidate": self.verdict.objects,
            "incumbent": self.standing.incumbent.objects,
            "seed": self.standing.seed.objects,
        }

    def points(self, checks: Sequence[Workload], hidden: Sequence[Workload]) -> tuple[Point, ...]:
        roles = ((self.bench.workloads, "public"), (hidden, "hidden"), (checks, _CHECK))
        return tuple(Point(w.name, dict(w.params), role) for group, role in roles for w in group)

    def run(self, points: tuple[Point, ...], kernels: Kernels, effort: Effort) -> Result:
        """One fresh process; its result is kept."""
        names = {p.name for p in points}
        linked = {
            arm: self.rig.link({n: path for n, path in objects.items() if n in names})
            for arm, objects in kernels.items()
        }
        request = MeasureRequest(
            task=str(self.bench.task.directory),
            target=self.bench.target.name,
            seed=fresh_seed(),
            points=points,
            kernels=linked,
            effort=effort,
            baselines=self.bench.baselines,
        )
        result = self.rig.measure(request)
        self.results.append(result)
        return result

    # What else is built, once screening has passed.

    def build_more(self, seed: int) -> _More | Failure:
        """Hidden workloads, and checks of other kernels, for all arms. What the seed itself cannot
        build is left out."""
        bench = self.bench
        drawn = bench.task.reference.hidden(seed, [w.params for w in bench.workloads], HIDDEN_COUNT)
        hidden = [Workload(name, of, (), params) for name, of, params in drawn]
        others = [c for c in bench.checks if c not in bench.beside]
        wanted = [*hidden, *others]
        with Pool(3, "side") as pool:
            sides = {s.tree: s for s in (self.standing.seed, self.standing.incumbent)}
            theirs = {t: pool.submit(self.build_side, s, wanted) for t, s in sides.items()}
            mine = pool.submit(self.build, self.source, wanted)
        found = theirs[self.standing.seed.tree].result()
        incumbent = theirs[self.standing.incumbent.tree].result()
        built = [w for w in wanted if w.name in found and w.name in incumbent]
        objects = self.build(self.source, built) if len(built) < len(wanted) else mine.result()
        if isinstance(objects, Failure):
            return objects
        kernels = {
            "candidate": {**self.verdict.objects, **objects},
            "incumbent": {**self.standing.incumbent.objects, **incumbent},
            "seed": {**self.standing.seed.objects, **found},
        }
        names = {w.name for w in hidden}
        return _More(
            tuple(w for w in built if w.name in names),
            tuple(w for w in built if w.name not in names),
            kernels,
        )

    def build_side(self, side: Side, workloads: Sequence[Workload]) -> dict[str, Path]:
        """The objects of an arm that is no candidate: whatever of it builds."""
        with tempfile.TemporaryDirectory(prefix="avo-cute-side-") as folder:
            self.export(side.tree, Path(folder))
            source = Source(side.tree, Path(folder))
            requests = self.bench.requests(source, workloads)
            return {
                a.workload.name: a.object_path
                for r in self.bench.spread(judge_class, requests)
                if isinstance(r, ClassResult)
                for a in r.artifacts
            }

    def build(self, source: Source, workloads: Sequence[Workload]) -> dict[str, Path] | Failure:
        """The candidate's objects, or why there is one missing."""
        built: dict[str, Path] = {}
        for r in self.bench.spread(judge_class, self.bench.requests(source, workloads)):
            if isinstance(r, Failure):
                return r
            built |= {a.workload.name: a.object_path for a in r.artifacts}
        return built

    # Endings.

    def failed(self, result: Result, level: str) -> Verdict:
        """A candidate that did not come to the end of a process."""
        status = Status(result.status)
        told = summary(self.results, None, level, self.bench)
        return replace(
            self.verdict,
            status=status,
            reason=result.reason,
            detail=result.detail,
            measured=told,
        )

    def refused(self, failure: Failure) -> Verdict:
        """A candidate that cannot be built for a workload that it could not know."""
        reason = f"on a workload outside the public ones: {failure.reason}"
        told = summary(self.results, None, "commit", self.bench)
        return replace(
            self.verdict,
            status=failure.status,
            reason=reason,
            detail=failure.detail,
            measured=told,
            beyond=True,
        )

    def ruled(self, ruling: Ruling, level: str) -> Verdict:
        assert ruling.status is not None
        return replace(
            self.verdict,
            status=ruling.status,
            reason=ruling.reason,
            score=None if ruling.score is None else ruling.score.value,
            gain=None if ruling.gain is None else ruling.gain.value,
            signals=(*self.verdict.signals, *(f for f in ruling.flags if " " in f)),
            measured=summary(self.results, ruling, level, self.bench),
        )


@dataclass(frozen=True, slots=True)
class _More:
    """What was built for the commit level, besides the public workloads."""

    hidden: tuple[Workload, ...]
    checks: tuple[Workload, ...]
    kernels: Kernels


def _some_of_each(checks: Sequence[Workload], count: int) -> list[Workload]:
    """A few of each class, by chance."""
    classes: dict[str, list[Workload]] = {}
    for check in checks:
        classes.setdefault(check.class_name, []).append(check)
    rng = random.Random(fresh_seed())
    return [w for of in classes.values() for w in rng.sample(of, min(count, len(of)))]


_CHECK = "correctness-only"
