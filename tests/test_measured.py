"""The measured score from candidate to verdict: real builds, a rig whose GPU is simulated."""

import ast
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from avo_cute import beyond, inert
from avo_cute import measured as measured_module
from avo_cute.errors import MachineFailed, Stopped
from avo_cute.measure.answer import Unbelievable, read_answer
from avo_cute.measure.request import Result, write
from avo_cute.records import Failure, Status
from avo_cute.sanitize import Sanitized
from avo_cute.score import evaluate, standing_of
from avo_cute.target import find_target
from avo_cute.task import Task, find_task

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

    def run(rig, changes=None, seen=None, incumbent=None, **settings):
        bench = replace(softmax_bench, rig=rig, **settings)
        baseline = evaluate(write_candidate(tmp_path / "baseline", {}), bench, None)
        standing = standing_of(baseline, baseline, seen or {})
        if incumbent is not None:
            standing = replace(standing, incumbent=replace(standing.incumbent, tree=incumbent))
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


# A measuring process is not believed.


class Bent(SimulatedRig):
    """A rig whose processes report something else than they were asked for."""

    def bend(self, samples, request):
        return samples

    def measure(self, request):
        result = super().measure(request)
        return replace(result, samples=tuple(self.bend(s, request) for s in result.samples))


def bent(change):
    rig = Bent(gain=1.03)
    rig.bend = change
    return rig


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s, r: replace(s, process=7), "by another process"),
        (lambda s, r: replace(s, workload="other"), "which nobody asked for"),
        (lambda s, r: replace(s, role="public" if s.role == "hidden" else "hidden"), "nobody"),
        (lambda s, r: replace(s, mode="best"), "another process"),
        (lambda s, r: replace(s, times={**s.times, "cudnn": s.times["candidate"]}), "unknown arm"),
    ],
)
def test_samples_that_nobody_asked_for_are_a_crash(measured, change, says):
    verdict = measured(bent(change))
    assert verdict.status is Status.CRASHED and says in verdict.reason


@pytest.mark.parametrize("bad", [0.0, -1e-6, math.nan, math.inf])
def test_times_that_are_no_times_are_no_evidence(measured, bad):
    def change(s, request):
        return replace(s, times={**s.times, "candidate": (bad,) * len(s.void)})

    verdict = measured(bent(change))
    assert verdict.status in (Status.REJECTED, Status.CRASHED) and verdict.gain is None
    assert not verdict.measured.seconds


def test_a_hidden_workload_faster_than_physics_is_rejected(measured):
    def change(s, request):
        if s.role != "hidden":
            return s
        return replace(s, times={**s.times, "candidate": (1e-12,) * len(s.void)})

    verdict = measured(bent(change))
    assert verdict.status is Status.REJECTED and "physical floor" in verdict.reason


def test_nothing_is_accepted_without_the_seed_beside_it(measured):
    """The incumbent's object is another than the seed's, and no process timed the seed."""
    rig = bent(lambda s, r: replace(s, times={a: t for a, t in s.times.items() if a != "seed"}))
    link, calls = rig.link, []

    def relink(objects):
        calls.append(objects)
        return {n: f"{library}{len(calls)}" for n, library in link(objects).items()}

    rig.link = relink
    verdict = measured(rig)
    assert verdict.status is Status.INFRA_ERROR and "seed was not timed" in verdict.reason


@pytest.mark.parametrize("status", ["accepted", "equal", "no-change", "splendid"])
def test_no_process_says_that_a_candidate_is_better(measured, status):
    rig = SimulatedRig(gain=1.03, endings={1: Result(status=status, reason="so it is")})
    verdict = measured(rig)
    assert verdict.status is Status.CRASHED and "not a process's to give" in verdict.reason


def test_samples_that_come_twice_are_a_crash(measured):
    class Twice(SimulatedRig):
        def measure(self, request):
            result = super().measure(request)
            return replace(result, samples=result.samples * 2)

    verdict = measured(Twice(gain=1.03))
    assert verdict.status is Status.CRASHED and "twice" in verdict.reason


# What is accepted but for the sanitizer; and inert rebuilds, which decide nothing.


def test_what_the_sanitizer_finds_is_not_accepted(measured, monkeypatch):
    found = Sanitized("memcheck does not get through a", ("memcheck of a: did not get through",))
    monkeypatch.setattr(measured_module, "sanitize", lambda *sides: found)
    verdict = measured(SimulatedRig(gain=1.03))
    assert verdict.status is Status.INCORRECT and "does not get through" in verdict.reason
    assert found.told[0] in verdict.signals and verdict.score is None


@pytest.fixture
def rebuilt(monkeypatch):
    """Three inert versions of either side, with the objects of the candidate."""

    def variants(trial, directory):
        return [{w.name: trial.verdict.objects[w.name] for w in trial.bench.workloads}] * 3

    monkeypatch.setattr(inert, "_variants", variants)


class Failing(SimulatedRig):
    """Fails once, with `error`, when inert rebuilds are compared; `tried` counts these."""

    error: Exception
    tried = 0

    def measure(self, request):
        if request.effort is inert.EFFORT:
            self.tried += 1
            if self.tried == 2:
                raise self.error
        return super().measure(request)


def test_a_machine_that_fails_an_inert_pair_loses_that_pair(measured, rebuilt):
    rig = Failing(gain=1.012)
    rig.error = MachineFailed("measuring failed: a timed launch of incumbent was wrong")
    verdict = measured(rig)
    assert verdict.status is Status.ACCEPTED and rig.tried == 3
    assert "2 of 2" in verdict.reason


def test_an_inert_pair_that_the_engine_ends_ends_the_attempt(measured, rebuilt):
    rig = Failing(gain=1.012)
    rig.error = Stopped("python3 was stopped before it was done")
    with pytest.raises(Stopped):
        measured(rig)
    assert rig.tried == 2


@pytest.mark.parametrize("error", [MachineFailed("no space left"), Stopped("the engine ends")])
def test_a_machine_that_fails_to_build_an_inert_version(measured, monkeypatch, error):
    def fails(trial, files):
        raise error

    monkeypatch.setattr(inert, "_build", fails)
    module = SimpleNamespace(variants=lambda files, family: [{}])
    monkeypatch.setattr(Task, "inert", module)
    if isinstance(error, Stopped):
        with pytest.raises(Stopped):
            measured(SimulatedRig(gain=1.012))
    else:
        assert measured(SimulatedRig(gain=1.012)).status is Status.ACCEPTED


# What the commit level builds besides.


def sides(monkeypatch, outcome):
    """Let builds for hidden workloads of arms that are no candidate end as `outcome` says."""
    real = beyond._side

    def side(trial, which, workloads):
        objects, failures = real(trial, which, workloads)
        return outcome(which.tree, objects, failures)

    monkeypatch.setattr(beyond, "_side", side)


def test_what_the_incumbent_lacks_is_compared_with_the_seed(measured, monkeypatch):
    failed = Failure(Status.TIMED_OUT, "slow")
    sides(monkeypatch, lambda tree, o, f: ({}, (failed,)) if tree == "incumbent" else (o, f))
    rig = SimulatedRig(gain=1.03, hidden_gain=0.98)
    verdict = measured(rig, incumbent="incumbent")
    assert verdict.status is Status.REJECTED and "hidden workloads" in verdict.reason
    told = [s for s in verdict.signals if s.startswith("compared with the seed")]
    assert len(told) == beyond.HIDDEN_COUNT


def test_what_the_seed_refuses_is_said_and_left_out(measured, monkeypatch):
    refused = Failure(Status.BUILD_FAILED, "not this shape")

    def outcome(tree, objects, failures):
        first = min(objects)
        return {n: p for n, p in objects.items() if n != first}, (refused,)

    sides(monkeypatch, outcome)
    verdict = measured(SimulatedRig(gain=1.03))
    assert verdict.status is Status.ACCEPTED
    assert any(s.startswith("unsupported by the seed") for s in verdict.signals)


def test_no_hidden_workload_left_is_no_pass(measured, monkeypatch):
    sides(monkeypatch, lambda tree, o, f: ({}, (Failure(Status.BUILD_FAILED, "not this shape"),)))
    verdict = measured(SimulatedRig(gain=1.03))
    assert verdict.status is Status.INFRA_ERROR and "every hidden workload" in verdict.reason


def test_a_seed_that_does_not_come_to_an_end_is_the_machines(measured, monkeypatch):
    sides(monkeypatch, lambda tree, o, f: ({}, (Failure(Status.TIMED_OUT, "took 300 s"),)))
    with pytest.raises(MachineFailed, match=r"the seed did not build.*took 300 s"):
        measured(SimulatedRig(gain=1.03))


def test_files_that_are_not_python_have_no_inert_versions(tmp_path):
    """Neither by the task, which is asked, nor by a task that raises instead."""
    name = "flash_attn/cute/flash_fwd_sm90.py"
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    fa4 = find_task("fa4").inert
    careless = SimpleNamespace(variants=lambda files, family: [ast.parse(files[name].decode())])
    target = find_target("h200")
    for text in (b"# -*- coding: latin-1 -*-\ncaf\xe9 = 1\n", b"def (:\n", b"x = (" * 5000, b"\0"):
        path.write_bytes(text)
        assert fa4.variants({name: text}, target.family) == []
        for module in (fa4, careless):
            task = SimpleNamespace(inert=module)
            trial = SimpleNamespace(bench=SimpleNamespace(task=task, target=target))
            assert inert._variants(trial, tmp_path) == []


@pytest.mark.parametrize("status", ["accepted", "equal", "no-change", "build-failed", "timed-out"])
def test_a_process_cannot_give_every_status(tmp_path, status):
    write(Result(status=status, reason="so it is"), tmp_path / "result.json")
    with pytest.raises(Unbelievable, match="malformed"):
        read_answer(tmp_path / "result.json", tmp_path / "copy.json")
