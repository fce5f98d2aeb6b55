"""The red team on a real GPU: every case built, audited and judged by the engine's own steps.

A wrong candidate is asked what the commit level asks first: all families of inputs on all checks of
its kernels, and the judged workloads at full size. Nothing is accepted without passing that, so no
case can be saved, or excused, by being slow. Cases share the GPU side by side, each in a process of
its own; those that hang or crash come last. What correctness lets through goes through the whole
evaluation, alone on the GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from proof_ground import Ground, load, passed, relabelled, say
from tests.redteam.gpu.cases import CASES, HONEST
from tests.redteam.gpu.edits import Case, tree_of

from avo_cute import measured
from avo_cute.bench import Bench
from avo_cute.build import Source
from avo_cute.decision import Case as Decided
from avo_cute.decision import screen
from avo_cute.errors import AvoError, MachineFailed
from avo_cute.measure.devices import Devices
from avo_cute.measure.request import Effort
from avo_cute.measure.rig import Rig
from avo_cute.records import Status, Verdict, Workload
from avo_cute.score import evaluate, known, standing_of
from avo_cute.stats import Calibration

LANES, HANG_LIMIT_S = 4, 30.0
JUDGING = replace(measured.FIRST, warm_s=0.1, rounds=4)
SPEED = Effort(warm_s=0.3, rounds=8, families="none", large=False)
LAST = (Status.CRASHED, Status.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Built:
    """A case after build and audit."""

    case: Case
    source: Source
    bench: Bench
    verdict: Verdict
    seconds: float


@dataclass
class RedTeam:
    """All cases: builds begin at once, in the background."""

    ground: Ground
    cases: Sequence[Case] = (*CASES, *HONEST)
    lane: Callable[[Rig, int, float], Rig] = field(default_factory=lambda: lane_of)
    until: float = math.inf  # by `passed`: no case is begun after that
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    built: dict[str, Future[Built]] = field(default_factory=dict)
    earlier: dict[str, list[str]] = field(default_factory=dict, init=False)
    faults: list[str] = field(default_factory=list, init=False)
    planned: list[str] = field(default_factory=list, init=False)
    before: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """What ended as expected in an earlier run into the same folder is kept; how the others
        ended there stays with them, so that trying again hides nothing."""
        known = load(self.ground.out, "redteam") or {"cases": []}
        self.rows = {row["case"]: row for row in known["cases"] if row["as_expected"]}
        self.before = {r["case"]: r for r in known["cases"] if not r["as_expected"]}
        self.earlier = {
            name: [*row.get("earlier", []), row.get("then", row["status"])]
            for name, row in self.before.items()
        }
        self.planned = [c.name for c in self.cases]
        self.cases = [c for c in self.cases if c.name not in self.rows]

    def start(self, pool: ThreadPoolExecutor) -> None:
        for classes in dict.fromkeys(case.classes for case in self.cases):
            case = next(c for c in self.cases if c.classes == classes)
            pool.submit(self.ground.seed, self.ground.bench(self._workloads(case), alone=True))
        for case in self.cases:
            self.built[case.name] = pool.submit(self.build, case)

    def build(self, case: Case) -> Built:
        began = time.monotonic()
        bench = self.ground.bench(self._workloads(case), alone=True)
        source = self.ground.source(tree_of(case, self.ground.files), case.name)
        verdict = evaluate(source, bench, None)
        return Built(case, source, bench, verdict, time.monotonic() - began)

    def _workloads(self, case: Case) -> list[Workload]:
        """The shortest public workload of each class that the case changes."""
        found: dict[str, Workload] = {}
        for w in self.ground.task.workloads:
            if w.class_name in case.classes:
                found.setdefault(w.class_name, w)
        return list(found.values())

    def run(self) -> dict[str, Any]:
        """Judge everything; the order is by what may happen to the GPU.

        Raises `MachineFailed` in the end where something could not be judged; the rest is kept.
        """
        self.ground.save("redteam", self.told())
        quiet = [c for c in self.cases if c.ends not in LAST]
        self._side_by_side(quiet, self.ground.rig.setting.limit_s)
        self._side_by_side([c for c in self.cases if c.ends in LAST], HANG_LIMIT_S)
        for future in self.built.values():
            future.cancel()
        honest = {c.name for c in HONEST}
        judged = [c for c in self.cases if c.name in self.rows]
        for case in judged:
            row = self.rows[case.name]
            if case.name not in honest and row["status"] == PASSES and passed() < self.until:
                self._to_the_end(case)
        try:
            self._speeds([c for c in judged if c.name in honest])
        except AvoError as error:
            self.faults.append(f"speeds of honest variants: {error}")
        if self.faults:
            raise MachineFailed("; ".join(self.faults))
        return self.told()

    def told(self) -> dict[str, Any]:
        common = {"planned": self.planned, "lanes": LANES, "hang_limit_s": HANG_LIMIT_S}
        rows = {**self.before, **self.rows}  # what is not judged again keeps its bad end
        return {"cases": list(rows.values()), **common}

    def _side_by_side(self, cases: Sequence[Case], limit_s: float) -> None:
        """In several lanes, each with processes of its own on the same GPU."""
        lanes: SimpleQueue[Rig] = SimpleQueue()
        rigs = [self.lane(self.ground.rig, n, limit_s) for n in range(min(LANES, len(cases)))]
        for rig in rigs:
            lanes.put(rig)

        def one(case: Case) -> None:
            built = self.built[case.name]
            while not built.done() and passed() < self.until:
                time.sleep(0.05)
            rig = lanes.get()
            try:
                if built.done() and passed() < self.until:
                    self._judge(case, built, rig)
            finally:
                lanes.put(rig)

        with ThreadPoolExecutor(len(rigs) or 1) as pool:
            done = [pool.submit(one, case) for case in cases]
        for rig in rigs:
            rig.close()
        for case, future in zip(cases, done, strict=True):
            if (error := future.exception()) is not None:
                self.faults.append(f"{case.name}: {type(error).__name__}: {error}")
                say(self.faults[-1])

    def _judge(self, case: Case, future: Future[Built], rig: Rig) -> None:
        began = time.monotonic()
        try:
            status, reason, checks = self._asked(future.result(), rig)
        except AvoError as error:
            status, reason, checks = str(Status.INFRA_ERROR), str(error), 0
        seconds = time.monotonic() - began
        wanted = PASSES if case in HONEST and case.ends != Status.NO_CHANGE else str(case.ends)
        self.rows[case.name] = {
            "case": case.name,
            "origin": case.origin,
            "does": case.does,
            "classes": case.classes,
            "expected": str(case.ends),
            "honest": case in HONEST,
            "sure": case.sure,
            "status": status,
            "reason": reason,
            "comparisons": checks,
            "as_expected": status == wanted,
            "seconds": seconds,
            "earlier": self.earlier.get(case.name, []),
        }
        self.ground.save("redteam", self.told())
        mark = "" if status == wanted else f"  EXPECTED {wanted}"
        say(f"{case.name:24}{status:14}{seconds:5.1f} s  {reason[:70]}{mark}")

    def _asked(self, built: Built, rig: Rig) -> tuple[str, str, int]:
        """Status, reason, and how many comparisons with the reference were made."""
        verdict, bench = built.verdict, replace(built.bench, rig=rig)
        if not verdict.objects:
            return str(verdict.status), verdict.reason, 0
        seed = self.ground.seed(built.bench)
        standing = standing_of(seed, seed)
        verdict = replace(verdict, kind="measured", reason="")
        if (stands := known(verdict, bench, standing)) is not None:
            return str(stands.status), stands.reason, 0
        trial = measured.Trial(bench, rig, standing, built.source, verdict, self.ground.export)
        result = trial.run(trial.points(bench.beside, []), trial.kernels(), JUDGING)
        if not result.status:
            return PASSES, "every comparison with the reference", len(result.findings)
        ended = trial.failed(result, "commit")
        return str(ended.status), ended.reason, len(result.findings)

    def _to_the_end(self, case: Case) -> None:
        """A wrong candidate that correctness did not see: what the whole evaluation says."""
        built, row = self.built[case.name].result(), self.rows[case.name]
        seed = self.ground.seed(built.bench)
        try:
            verdict = evaluate(
                built.source, built.bench, standing_of(seed, seed), self.ground.export
            )
            row["then"], row["then_reason"] = str(verdict.status), verdict.reason
        except AvoError as error:
            row["then"], row["then_reason"] = str(Status.INFRA_ERROR), str(error)
        say(f"{case.name:24}not seen by correctness; in the end {row['then']}")
        self.ground.save("redteam", self.told())

    def _speeds(self, cases: Sequence[Case]) -> None:
        """Honest variants against the seed in the same rounds of one process."""
        right = [c for c in cases if self.rows[c.name]["status"] == PASSES]
        timed = [c for c in right if set(c.classes) == set(right[0].classes)]
        if not timed:
            return
        bench = self.built[timed[0].name].result().bench
        libraries = self.ground.seed_libraries(bench, bench.workloads)
        kernels = dict.fromkeys(("candidate", "incumbent"), libraries)
        for case in timed:
            objects = self.built[case.name].result().verdict.objects
            of = {w.name: objects[w.name] for w in bench.workloads}
            kernels[case.name] = self.ground.rig.link(of)
        result = self.ground.measure(bench.workloads, dict(kernels), SPEED)
        decided = Decided(tuple(w.name for w in bench.workloads), baseline="incumbent")
        calibration = next(iter(self.ground.rig.calibrations.values()), measured.UNMEASURED)
        for case in timed:
            of_case = [relabelled(s, case.name, "incumbent") for s in result.samples]
            self.rows[case.name] |= _speed(of_case, decided, calibration)
        self.ground.save("redteam", self.told())


PASSES = "passes"


def _speed(samples: Sequence[Any], case: Decided, calibration: Calibration) -> dict[str, Any]:
    ruling = screen(samples, case, calibration)
    return {
        "gain": ruling.gain,
        "gains": ruling.workloads.get("incumbent", {}),
        "screening": str(ruling.status or "goes on to the commit level"),
    }


def lane_of(rig: Rig, number: int, limit_s: float) -> Rig:
    """The same GPU once more: with a lock of its own, it does not wait for the other lanes."""
    folder = rig.libraries.parent / f"devices-lane-{number}"
    setting = replace(rig.setting, limit_s=limit_s)
    devices = Devices(rig.gpus, folder)
    return Rig(devices, setting, rig.libraries, rig.confinement, rig.calibrations)
