"""Measured: what a GPU says about a candidate that was built and audited.

    screening   one process, few rounds, few families of inputs: may only reject
    commit      three fresh processes or more: full correctness, hidden workloads drawn after the
                candidate was frozen, head to head with incumbent and seed; only this accepts

What samples mean is `decision`'s to say; what they are is in `measure/`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .bench import Bench, Side, Standing
from .beyond import Export, Kernels, build_more
from .build import Source
from .decision import Case, Ruling, decide, screen
from .inert import inert_gains
from .measure.answer import unasked
from .measure.request import Effort, MeasureRequest, Point, Result
from .measure.rig import Rig, fresh_seed
from .records import Failure, Status, Verdict, Workload
from .sandbox import Pool
from .sanitize import sanitize
from .stats import Calibration, inert_note
from .summary import floors, summary

SCREENING = Effort(warm_s=0.15, rounds=12, families="few", large=False)
CONFIRMING = Effort(warm_s=0.4, rounds=20, families="none", large=False)
FIRST = replace(CONFIRMING, families="all", large=True)  # of the commit level: all correctness
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
            later = pool.submit(build_more, self, seed)
            first = self.run(self.points(self.bench.beside, []), self.kernels(), self.first)
            if first.status:
                later.cancel()
                return self.failed(first, "commit")
            more = later.result()
        if isinstance(more, Failure):
            return self.refused(more)
        self.verdict = replace(self.verdict, signals=(*self.verdict.signals, *more.told))
        second = self.run(self.points(more.checks, more.hidden), more.kernels, self.second)
        if second.status:
            return replace(self.failed(second, "commit"), beyond=True)
        third = self.run(self.points([], []), self.kernels(), CONFIRMING)
        if third.status:
            return self.failed(third, "commit")
        limits = {n: f.impossible for n, f in floors(self.bench, more.hidden).items()}
        case = self.case()
        names = tuple(w.name for w in more.hidden)
        case = replace(case, hidden=names, floors={**case.floors, **limits})
        return self.decided(case)

    def decided(self, case: Case) -> Verdict:
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
        if why := unasked(request, result):
            told = f"the measuring process left a malformed result: {why}"
            result = Result(Status.CRASHED, told, facts=result.facts)
        self.results.append(result)
        return result

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


def _some_of_each(checks: Sequence[Workload], count: int) -> list[Workload]:
    """A few of each class, by chance."""
    classes: dict[str, list[Workload]] = {}
    for check in checks:
        classes.setdefault(check.class_name, []).append(check)
    rng = random.Random(fresh_seed())
    return [w for of in classes.values() for w in rng.sample(of, min(count, len(of)))]


_CHECK = "correctness-only"
