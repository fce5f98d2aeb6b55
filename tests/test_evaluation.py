"""One evaluation in the measuring process, on a simulated device: order, endings, what is kept."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from avo_cute.errors import BadInput
from avo_cute.measure import evaluation
from avo_cute.measure.blame import blame
from avo_cute.measure.contents import Contents
from avo_cute.measure.device import DeviceFault
from avo_cute.measure.evaluation import Trial
from avo_cute.measure.job import WrongResult
from avo_cute.measure.request import TURN_BYTES, Effort, MeasureRequest, Point
from avo_cute.measure.simulated import SimulatedArm, SimulatedDevice
from avo_cute.records import Status
from avo_cute.task import find_task

from .attention_arms import Flash

SECONDS = 1e-3
PARAMS = dict(batch=1, seqlen_q=160, seqlen_k=160, heads=2, kv_heads=2, head_dim=128, causal=True)
PUBLIC = Point("public", PARAMS)
CHECK = Point("check", {**PARAMS, "seqlen_q": 67, "seqlen_k": 67}, "correctness-only")
HIDDEN = Point("hidden", {**PARAMS, "seqlen_q": 129}, "hidden")
EFFORT = Effort(warm_s=0.002, rounds=3, visit_s=0.002, families="few", large=False)


@dataclass
class Objects(Trial):
    """A trial whose objects are Python functions, `candidate` being the one on trial."""

    candidate: SimulatedArm | None = None

    def arm(self, name, point):
        if name not in self.request.kernels:
            return None
        honest = SimulatedArm(name, run(Flash()), SECONDS, self.device)
        return self.candidate if name == "candidate" and self.candidate else honest

    def breach(self):
        return ""


def run(flash):
    def function(params, inputs, outputs):
        flash.bind(params, inputs, outputs)()

    return function


def request(**changes):
    names = {p.name: f"{p.name}.so" for p in (PUBLIC, CHECK, HIDDEN)}
    first = MeasureRequest(
        task=str(find_task("fa4").directory),
        target="h200",
        seed=5,
        points=(PUBLIC, HIDDEN, CHECK),
        kernels=dict.fromkeys(("candidate", "incumbent", "seed"), names),
        effort=EFFORT,
    )
    return replace(first, **changes)


def trial(asked, said=None, **candidate):
    device = SimulatedDevice(seed=1)
    told = said if said is not None else []
    made = Objects(asked, device, lambda what, seconds: told.append((what, seconds)))
    if candidate:
        fields = {"function": run(Flash()), "seconds": SECONDS, **candidate}
        made.candidate = SimulatedArm("candidate", device=device, **fields)
    return made


def ended(asked, said=None, **candidate):
    return evaluation.carry_out(trial(asked, said, **candidate))


def test_an_honest_candidate_gets_samples_and_findings():
    said = []
    result = ended(request(), said, seconds=SECONDS / 1.02)
    assert result.status == "" and not result.reason
    assert {(s.workload, s.role, s.mode) for s in result.samples} == {
        ("public", "public", "sustained"),
        ("hidden", "hidden", "sustained"),
    }
    (public,) = (s for s in result.samples if s.role == "public")
    assert set(public.times) == {"candidate", "incumbent"}  # the seed is the incumbent
    assert result.findings and all(f.worst <= 1 for f in result.findings)
    assert 0 < result.busy_s <= result.timed_s
    assert all(what and 0 < seconds <= 900 for what, seconds in said)


def test_the_seed_is_an_arm_of_its_own_where_it_is_not_the_incumbent():
    kernels = {**request().kernels, "incumbent": dict.fromkeys(("public", "hidden"), "other.so")}
    result = ended(request(kernels=kernels))
    assert set(result.samples[0].times) == {"candidate", "incumbent", "seed"}


def test_further_kernels_are_further_arms():
    kernels = {**request().kernels, "loaded-again": dict.fromkeys(("public", "hidden"), "copy.so")}
    result = ended(request(kernels=kernels))
    assert {tuple(s.times) for s in result.samples} == {("candidate", "incumbent", "loaded-again")}


def test_a_wrong_candidate_is_not_timed():
    result = ended(request(), function=run(Flash(skip=lambda keys: keys == 3)))
    assert result.status == Status.INCORRECT and "inputs of check" in result.reason
    assert not result.samples


def test_wrong_only_where_it_is_timed():
    """Right on small workloads: the launches that are timed are looked at too."""
    wrong, right = Flash(skip=lambda keys: keys % 7 == 0), Flash()

    def function(params, inputs, outputs):
        flash = wrong if params["seqlen_q"] == PARAMS["seqlen_q"] else right
        flash.bind(params, inputs, outputs)()

    result = ended(request(), function=function)
    assert result.status == Status.INCORRECT and "sampled rows" in result.reason


def test_full_size_is_checked_where_asked():
    wrong, right = Flash(skip=lambda keys: keys == 5), Flash()

    def function(params, inputs, outputs):
        flash = wrong if params["seqlen_q"] == 129 else right
        flash.bind(params, inputs, outputs)()

    asked = request(effort=replace(EFFORT, families="few", large=True, rounds=0))
    result = ended(asked, function=function)
    assert result.status == Status.INCORRECT and "hidden" in result.reason


def test_faster_than_physics_is_rejected():
    result = ended(request(), seconds=1e-12)
    assert result.status == Status.REJECTED and "impossible" in result.reason


def test_a_fault_of_the_candidate_is_a_crash():
    result = ended(request(), fault="an illegal memory access was encountered")
    assert result.status == Status.CRASHED and "illegal" in result.reason


def test_what_the_incumbent_does_wrong_is_not_the_candidates():
    failure = WrongResult("incumbent", "zeros")
    assert blame(failure)[0] is Status.INFRA_ERROR
    assert blame(DeviceFault("lost", "seed"))[0] is Status.INFRA_ERROR
    assert blame(DeviceFault("lost"))[0] is Status.CRASHED


@pytest.mark.parametrize("delay", [0.01, 0.05])
def test_a_delay_is_seen_as_what_it_is(delay):
    result = ended(request(delay=delay, effort=replace(EFFORT, rounds=15, families="none")))
    (public,) = (s for s in result.samples if s.role == "public")
    mine, theirs = (
        sorted(public.times[a])[len(public.times[a]) // 2] for a in ("candidate", "incumbent")
    )
    assert mine / theirs - 1 == pytest.approx(delay, abs=0.003)


def test_both_modes_where_asked():
    result = ended(request(effort=replace(EFFORT, cold=3, families="none")))
    assert {s.mode for s in result.samples} == {"sustained", "cold"}


def test_the_selftest_runs_first_and_passes():
    asked = request(effort=replace(EFFORT, rounds=0, selftest=True))
    result = ended(asked)
    assert result.status == "" and result.facts["selftest delay"] == pytest.approx(0.02, abs=0.005)


def test_the_worker_announces_phases(tmp_path: Path):
    from avo_cute.measure.worker import say

    say(tmp_path, "timing x", 12.4)
    assert (tmp_path / "phase").read_text() == "12 timing x\n"


def test_the_worker_says_whose_turn_it_is(tmp_path: Path):
    from avo_cute.measure.watch import Watch
    from avo_cute.measure.worker import turns

    watch = Watch(tmp_path, 1.0, 1.0)
    assert watch.other() == "", "nobody has said anything"
    turn = turns(tmp_path)
    assert watch.other() == "", "objects are being loaded"
    for arm, other in (
        ("seed", "seed"),
        ("candidate", ""),
        ("", "our own code"),
        ("incumbent" * 9, ("incumbent" * 9)[:TURN_BYTES]),
    ):
        turn(arm)
        assert watch.other() == other
        assert watch.other(60.0) == "", "not for so long"
    (tmp_path / "turn").write_text("seed")
    assert watch.other() == "", "no whole entry"


def no_room(*given, **more):
    raise torch.OutOfMemoryError("CUDA out of memory: somebody else has it")


@pytest.mark.parametrize("name", ["expected", "case", "sampled"])
def test_a_failure_of_our_own_code_is_not_the_candidates(monkeypatch, name):
    one = trial(request())
    monkeypatch.setattr(one.modules.reference, name, no_room)
    result = evaluation.carry_out(one)
    assert result.status == Status.INFRA_ERROR
    assert "OutOfMemoryError in our own code: CUDA out of memory" in result.reason


@pytest.mark.parametrize("turn", ["candidate", "incumbent"])
def test_no_memory_to_rewrite_inputs_is_not_the_fault_of_whose_turn_it_is(monkeypatch, turn):
    one = trial(request(effort=replace(EFFORT, families="none")))
    refresh = Contents.refresh

    def sometimes(contents, number):
        if one.device.whose == turn:
            no_room()
        refresh(contents, number)

    monkeypatch.setattr(Contents, "refresh", sometimes)
    result = evaluation.carry_out(one)
    assert result.status == Status.INFRA_ERROR and "our own code" in result.reason


@pytest.mark.parametrize(
    "error", [AttributeError("no such name"), OSError("no space left"), BadInput("no such target")]
)
def test_whatever_our_own_code_raises_is_not_the_candidates(monkeypatch, error):
    one = trial(request())

    def fails(*given, **more):
        raise error

    monkeypatch.setattr(one.modules.reference, "expected", fails)
    result = evaluation.carry_out(one)
    assert result.status == Status.INFRA_ERROR and str(error) in result.reason


def test_whose_turn_it_is_is_told_and_ours_while_nothing_is_launched(monkeypatch):
    """Correctness, sustained and isolated rounds: every launch under its own arm's name."""
    seen, ours = set(), set()

    class Noting(SimulatedDevice):
        def launch(self, arm):
            seen.add((arm.name, self.whose))
            super().launch(arm)

    one = trial(request(effort=replace(EFFORT, cold=2)))
    one.device = Noting(seed=1)
    one.candidate = None
    for name in ("expected", "sampled"):
        real = getattr(one.modules.reference, name)
        monkeypatch.setattr(
            one.modules.reference,
            name,
            lambda *given, real=real, **more: ours.add(one.device.whose) or real(*given, **more),
        )
    assert evaluation.carry_out(one).status == ""
    assert seen == {(a, a) for a in ("candidate", "incumbent", "seed")}
    assert ours == {""}


def test_a_device_that_is_broken_by_then_was_broken_by_a_launch(monkeypatch):
    one = trial(request())

    def broken(*given, **more):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(one.modules.reference, "expected", broken)
    monkeypatch.setattr(SimulatedDevice, "synchronize", broken)
    assert evaluation.carry_out(one).status == Status.CRASHED
