"""The measured score from candidate to verdict: real builds, a rig whose GPU is simulated."""

import json
from dataclasses import replace

import pytest

from avo_cute.measure.request import Result
from avo_cute.records import Status
from avo_cute.score import evaluate, standing_of

from .conftest import KERNEL, kernel_source, write_candidate
from .simulated_rig import SimulatedRig

CHANGED = '"rows_per_cta": 1', '"rows_per_cta": 2'


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
