"""The measured score from candidate to verdict: real builds, a rig whose GPU is simulated."""

import json
import random
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import pytest

from avo_cute.measure.request import Finding, Result
from avo_cute.records import Samples, Status
from avo_cute.score import evaluate, standing_of
from avo_cute.stats import Calibration

from .conftest import KERNEL, kernel_source, write_candidate

FLOOR_S, SEED_S = 1e-5, 1e-4
CHANGED = '"rows_per_cta": 1', '"rows_per_cta": 2'


@dataclass
class SimulatedRig:
    """Answers like a GPU on which the candidate takes 1/`gain` of the incumbent's time."""

    gain: float = 1.0
    hidden_gain: float = 1.0
    calibration: Calibration | None = Calibration((0.0002, -0.0003, 0.0001), 0.002)
    endings: dict[int, Result] = field(default_factory=dict)  # by number of the process
    asked: list = field(default_factory=list)
    voided: str = ""
    trailer = "measure: simulated"

    def link(self, objects):
        return {
            name: f"{sha256(Path(p).read_bytes()).hexdigest()}.so" for name, p in objects.items()
        }

    def measure(self, request):
        self.asked.append(request)
        if (ending := self.endings.get(len(self.asked))) is not None:
            return ending
        rng = random.Random(request.seed)
        samples = tuple(
            self._samples(request, p, rng) for p in request.points if p.role != "correctness-only"
        )
        finding = Finding("softmax-2k", "normal", 0.4, "relative error of out", 1e-3, 1e-3)
        facts = {"device": "Simulated GPU", "driver": "1.0"}
        return Result(samples=samples, findings=(finding,), facts=facts, busy_s=0.8, timed_s=1.0)

    def held(self):
        return nullcontext()

    def close(self):
        pass

    def _samples(self, request, point, rng):
        gain = self.hidden_gain if point.role == "hidden" else self.gain
        times = {}
        arms = [a for a in ("candidate", "incumbent", "seed") if a in request.kernels]
        rounds = request.effort.rounds
        for arm in arms:
            mean = SEED_S / gain if arm == "candidate" else SEED_S
            times[arm] = tuple(mean * rng.lognormvariate(0, 0.001) for _ in range(rounds))
        clocks = {arm: (1500.0,) * rounds for arm in arms}
        void = (self.voided,) * rounds
        return Samples(point.name, point.role, "sustained", request.seed, times, clocks, void)


@pytest.fixture
def measured(softmax_bench, softmax_baseline, tmp_path):
    """measured(rig, changes) -> Verdict on the softmax with these files changed."""
    seed = tmp_path / "seed-tree"
    write_candidate(seed, {})

    def export(tree, folder):
        write_candidate(folder, {})

    def run(rig, changes=None, seen=None, **settings):
        bench = replace(softmax_bench, rig=rig, **settings)
        baseline = evaluate(write_candidate(tmp_path / "baseline", {}), bench, None)
        standing = standing_of(baseline, baseline, seen or {})
        text = kernel_source().replace(*CHANGED) if changes is None else changes
        source = write_candidate(tmp_path / "candidate", {KERNEL: text})
        return evaluate(source, bench, standing, export)

    return run


def test_a_real_gain_is_accepted_at_the_commit_level(measured):
    rig = SimulatedRig(gain=1.03)
    verdict = measured(rig)
    assert verdict.status is Status.ACCEPTED, verdict
    assert verdict.kind == "measured" and verdict.sandbox.endswith("measure: simulated")
    assert 1.025 < verdict.gain < 1.035
    found = verdict.measured
    assert found.level == "commit" and found.hidden_count == 4 and found.rounds >= 60
    assert found.gain.low > 1.02 and found.device == "Simulated GPU"
    assert len({r.seed for r in rig.asked}) == len(rig.asked) == 4  # screening and three fresh ones
    assert rig.asked[1].effort.families == "all" and rig.asked[1].effort.large
    assert {p.role for p in rig.asked[2].points} >= {"public", "hidden"}
    assert json.loads(found.raw)


def test_no_gain_is_rejected_by_screening_alone(measured):
    rig = SimulatedRig(gain=0.99)
    verdict = measured(rig)
    assert verdict.status is Status.REJECTED and verdict.reason.startswith("screened")
    assert len(rig.asked) == 1 and verdict.measured.level == "screening"


def test_a_loss_on_hidden_workloads_is_rejected(measured):
    verdict = measured(SimulatedRig(gain=1.03, hidden_gain=0.97))
    assert verdict.status is Status.REJECTED and "hidden" in verdict.reason


@pytest.mark.parametrize(
    ("process", "status"),
    [(1, Status.CRASHED), (2, Status.INCORRECT), (3, Status.TIMED_OUT), (4, Status.INCORRECT)],
)
def test_a_failure_in_any_process_ends_it(measured, process, status):
    rig = SimulatedRig(gain=1.03, endings={process: Result(status=status, reason="it failed")})
    verdict = measured(rig)
    assert verdict.status is status and verdict.reason == "it failed"
    assert verdict.score is None and verdict.gain is None
    assert len(rig.asked) == process


def test_a_gain_beyond_belief_is_looked_at_again(measured):
    rig = SimulatedRig(gain=1.5)
    verdict = measured(rig)
    assert rig.asked[-1].effort.families == "all" and len(rig.asked) == 5
    assert verdict.status is Status.ACCEPTED


def test_void_rounds_are_nobodys_fault(measured):
    verdict = measured(SimulatedRig(gain=1.03, voided="clocks apart"))
    assert verdict.status is Status.INFRA_ERROR and "clocks apart" in verdict.reason


def test_the_same_objects_are_not_measured_again(measured):
    rig = SimulatedRig(gain=1.03)
    verdict = measured(rig)
    again = SimulatedRig(gain=1.03)
    seen = {verdict.artifact: (7, Status.REJECTED)}
    assert measured(again, seen=seen).status is Status.REJECTED
    assert not again.asked


def test_the_incumbents_objects_are_no_change(measured):
    rig = SimulatedRig(gain=1.03)
    verdict = measured(rig, kernel_source() + "\n# a comment\n")
    assert verdict.status is Status.NO_CHANGE and not rig.asked


def test_thorough_measures_whatever_it_is(measured):
    rig = SimulatedRig(gain=0.9)
    verdict = measured(rig, thorough=True, baselines=("cudnn",), cold=10)
    assert verdict.status is Status.REJECTED and verdict.measured.level == "commit"
    assert rig.asked[0].effort.cold == 10 and rig.asked[0].baselines == ("cudnn",)
