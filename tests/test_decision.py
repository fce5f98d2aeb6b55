"""The measured decision: each condition alone turns an acceptance into something else."""

import importlib.util
import math
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avo_cute.decision import RULE, Case, compare, decide, screen
from avo_cute.errors import BadInput
from avo_cute.records import Samples, Status
from avo_cute.stats import Calibration

PUBLIC, HIDDEN = ("a", "b", "c"), ("h", "i")
CASE = Case(PUBLIC, HIDDEN, baseline="incumbent")
QUIET = Calibration((0.0005, -0.0005, 0.0005), 0.001)  # a margin of 0.15 %


def process(number, gains=None, rounds=20, noise=0.0005, **arms):
    """One fresh process. `gains` and `arms` give true log-ratios: a number, or by workload."""
    rng = random.Random(number)
    names = {**dict.fromkeys(PUBLIC, "public"), **dict.fromkeys(HIDDEN, "hidden")}
    return [
        timed(number, name, role, rounds, rng, noise, {"incumbent": gains or 0.0, **arms})
        for name, role in names.items()
    ]


def timed(number, name, role, rounds, rng, noise, arms):
    base = [1e-3 * (1 + 0.1 * rng.random()) for _ in range(rounds)]  # drift that all arms share
    times = {"candidate": tuple(base)}
    for arm, gain in arms.items():
        true = gain.get(name, 0.0) if isinstance(gain, dict) else gain
        times[arm] = tuple(t * math.exp(true + rng.gauss(0, noise)) for t in base)
    return Samples(name, role, "sustained", number, times, {}, ("",) * rounds)


def three(gains=0.005, **kwargs):
    return [process(n, gains, **kwargs) for n in (1, 2, 3)]


def ruled(processes, case=CASE, calibration=QUIET, rule=RULE):
    return decide(processes, case, calibration, rule)


def changed(processes, where, name, change):
    """The processes with one sample replaced, removed (None) or doubled (a list)."""
    result = [list(p) for p in processes]
    index = next(n for n, s in enumerate(result[where]) if s.workload == name)
    new = change(result[where][index])
    result[where][index : index + 1] = new if isinstance(new, list) else [new] if new else []
    return result


def test_a_real_gain_is_accepted_with_its_numbers():
    ruling = ruled(three(seed=0.02, cudnn=-0.1), Case(PUBLIC, HIDDEN))
    assert ruling.status is Status.ACCEPTED
    assert ruling.gain.value == pytest.approx(math.exp(0.005), abs=2e-4)
    assert ruling.gain.low > math.exp(ruling.margin)
    assert ruling.margin == pytest.approx(0.0015)
    assert ruling.score.value == pytest.approx(math.exp(0.02), abs=2e-4)
    assert ruling.overall["cudnn"].value == pytest.approx(math.exp(-0.1), abs=2e-4)
    assert set(ruling.workloads) == {"incumbent", "seed", "cudnn"}
    assert set(ruling.workloads["cudnn"]) == set(PUBLIC)
    assert (len(ruling.processes), ruling.rounds, ruling.hidden_count) == (3, 60, 2)
    assert ruling.hidden.value == pytest.approx(math.exp(0.005), abs=3e-4)
    assert (ruling.voids, ruling.flags) == ({}, ())
    assert "+0.5" in ruling.reason and "0.15%" in ruling.reason


def test_condition_1_the_bound_must_exceed_the_margin():
    wide = Calibration((0.002, -0.002, 0.002), 0.001)
    ruling = ruled(three(), calibration=wide)
    assert ruling.status is Status.EQUAL
    assert "within the margin of 0.60%" in ruling.reason
    assert ruled(three(0.0015)).status is Status.EQUAL  # at the margin, not above it


def test_a_gain_that_is_not_established_is_equal_and_a_loss_is_rejected():
    ruling = ruled(three(0.00165, noise=0.002))
    assert ruling.gain.low < math.exp(ruling.margin) < ruling.gain.value
    assert ruling.status is Status.EQUAL
    assert "its bound is not above the margin" in ruling.reason
    assert ruled(three(0.0)).status is Status.EQUAL
    ruling = ruled(three(-0.004))
    assert ruling.status is Status.REJECTED
    assert "not better" in ruling.reason


def test_condition_2_no_public_workload_loses_more_than_one_percent():
    ruling = ruled(three({"a": 0.03, "b": 0.03, "c": -0.012, "h": 0.01, "i": 0.01}))
    assert ruling.status is Status.REJECTED
    assert "c loses more than 1.0%: -1.1" in ruling.reason
    near = ruled(three({"a": 0.03, "b": 0.03, "c": -0.0098, "h": 0.01, "i": 0.01}, noise=0.002))
    assert near.status is Status.ACCEPTED
    assert any(flag.startswith("c may lose more than 1.0%") for flag in near.flags)


def test_condition_2_hidden_workloads_may_not_lose_half_a_percent():
    gains = {**dict.fromkeys(PUBLIC, 0.01), "h": -0.006, "i": -0.006}
    ruling = ruled(three(gains))
    assert ruling.status is Status.REJECTED
    assert "hidden workloads -0.6" in ruling.reason
    assert ruled(three({**gains, "h": -0.003, "i": -0.003})).status is Status.ACCEPTED
    unsure = ruled(three({**gains, "h": -0.0045, "i": -0.0045}, noise=0.003))
    assert unsure.hidden.low < 0.995 < unsure.hidden.value
    assert unsure.status is Status.REJECTED


def test_condition_2_hidden_workloads_may_be_spread_over_the_processes():
    processes = changed(changed(three(), 0, "h", lambda s: None), 1, "i", lambda s: None)
    assert ruled(processes).status is Status.ACCEPTED


@pytest.mark.parametrize("name", ["b", "h"])
def test_a_missing_workload_refutes(name):
    processes = three()
    for where in range(3 if name == "h" else 1):
        processes = changed(processes, where, name, lambda s: None)
    ruling = ruled(processes)
    assert ruling.status is Status.REJECTED
    assert ruling.flags == ("unsound",)
    assert name in ruling.reason and "no measurement" in ruling.reason
    assert ruling.gain is None


def test_condition_3_every_process_must_show_the_bound_alone():
    processes = [process(1, 0.009), process(2, 0.009), process(3, 0.001)]
    ruling = ruled(processes)
    assert ruling.gain.low > math.exp(ruling.margin)  # condition 1 holds
    assert ruling.status is Status.EQUAL
    assert "one process alone gives +0.0" in ruling.reason
    assert any(f.startswith("processes 0.8") for f in ruling.flags)


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1e-3, math.inf])
@pytest.mark.parametrize("arm", ["candidate", "incumbent"])
@pytest.mark.parametrize("name", ["a", "h"])
def test_an_impossible_time_is_rejected_by_both(bad, arm, name):
    def spoil(s):
        return replace(s, times={**s.times, arm: (bad, *s.times[arm][1:])})

    processes = changed(three(0.2), 0, name, spoil)
    ruling = ruled(processes)
    assert (ruling.status, ruling.flags) == (Status.REJECTED, ("unsound",))
    if name == "a":
        assert screen(processes[0], CASE, QUIET).status is Status.REJECTED
    excused = changed(processes, 0, name, lambda s: replace(s, void=("fault", *s.void[1:])))
    assert ruled(excused).status is Status.ACCEPTED
    assert ruled(excused).voids == {"fault": 1}


@pytest.mark.parametrize("name", ["a", "h"])
@pytest.mark.parametrize(("valid", "of"), [(4, 6), (9, 20)])
def test_too_few_valid_rounds_is_nobodys_fault(name, valid, of):
    def mostly_void(s):
        void = ("throttled",) * (of - valid) + ("",) * valid
        return replace(s, void=void, times={a: t[:of] for a, t in s.times.items()})

    processes = changed(three(rounds=40), 1, name, mostly_void)
    ruling = ruled(processes)
    assert (ruling.status, ruling.flags) == (Status.INFRA_ERROR, ("undecided",))
    assert f"{name} has {valid} valid rounds of {of}" in ruling.reason
    assert f"{of - valid} x throttled" in ruling.reason


def test_too_little_effort_is_undecided():
    assert ruled(three(rounds=40)[:2]).status is Status.INFRA_ERROR
    assert ruled(three(rounds=19)).status is Status.INFRA_ERROR


def test_one_process_given_twice_is_an_error_of_the_caller():
    fresh = three()
    with pytest.raises(BadInput):
        ruled([fresh[0], fresh[0], fresh[1]])
    with pytest.raises(BadInput):
        ruled([[*fresh[0][:2], *process(4, 0.005)[2:]], *fresh[1:]])
    with pytest.raises(BadInput):
        Case(("a", "b"), ("a",))
    with pytest.raises(BadInput):
        Case(())


def test_a_workload_timed_twice_is_unsound():
    twice = ruled(changed(three(), 0, "a", lambda s: [s, s]))
    assert (twice.status, twice.flags) == (Status.REJECTED, ("unsound",))


def test_cold_samples_decide_nothing_and_can_be_compared():
    cold = [[*p, *(replace(s, mode="cold") for s in process(9, -0.2))] for p in three()]
    for number, p in enumerate(cold, 1):
        p[:] = [replace(s, process=number) for s in p]
    assert ruled(cold).status is Status.ACCEPTED
    assert compare(cold, PUBLIC, mode="cold").gain.value == pytest.approx(math.exp(-0.2), rel=1e-3)
    assert compare(cold, ("a", "unknown")) is None
    assert compare(cold, ()) is None


def test_below_the_physical_floor_is_unsound():
    ruling = ruled(three(), replace(CASE, floors={"a": 0.9e-3, "b": 2e-3}))
    assert (ruling.status, ruling.flags) == (Status.REJECTED, ("unsound",))
    assert "b took" in ruling.reason and "floor of 2000.0 µs" in ruling.reason


@pytest.mark.parametrize("gains", [0.3, {"a": 0.3, "b": 0.0, "c": 0.0}])
def test_more_than_is_believed_waits_for_a_second_check(gains):
    ruling = ruled(three(gains))
    assert ruling.status is Status.REJECTED
    assert "quarantined" in ruling.flags and "quarantined" in ruling.reason
    again = ruled(three(gains), replace(CASE, rechecked=True))
    assert (again.status, "quarantined" in again.flags) == (Status.ACCEPTED, True)


def test_a_baseline_that_refuses_a_workload_is_compared_on_the_others():
    def without(s):
        return replace(s, times={**s.times, "cudnn": (math.nan,) * 20})

    processes = three(cudnn=0.1)
    for where in range(3):
        processes = changed(processes, where, "b", without)
    ruling = ruled(processes)
    assert ruling.status is Status.ACCEPTED
    assert set(ruling.workloads["cudnn"]) == {"a", "c"}
    assert "cudnn" not in ruling.overall
    assert ruling.score == ruling.gain


def test_without_the_seed_beside_it_there_is_no_score_and_no_acceptance():
    ruling = ruled(three(), Case(PUBLIC, HIDDEN))
    assert (ruling.status, ruling.score) == (Status.INFRA_ERROR, None)
    assert "the seed was not timed" in ruling.reason


def test_no_hidden_workloads_is_a_case_too():
    ruling = ruled(three(), Case(PUBLIC, baseline="incumbent"))
    assert (ruling.status, ruling.hidden, ruling.hidden_count) == (Status.ACCEPTED, None, 0)


@given(st.floats(-0.02, 0.02), st.integers(1, 10**6), st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_a_ruling_does_not_depend_on_units_or_order(gain, number, rng):
    processes = [process(number + n, gain, seed=0.01) for n in range(3)]
    plain = ruled(processes)

    def shuffled(s):
        order = rng.sample(range(20), 20)
        times = {a: tuple(t[n] * 1e3 for n in order) for a, t in s.times.items()}
        return replace(s, times=times)

    moved = [[shuffled(s) for s in rng.sample(p, len(p))] for p in processes]
    other = ruled(moved)
    assert other.status is plain.status
    assert other.gain.value == pytest.approx(plain.gain.value, rel=1e-9)
    assert other.gain.low == pytest.approx(plain.gain.low, rel=1e-9)


@given(st.floats(-0.02, 0.02), st.integers(1, 10**6))
@settings(max_examples=25, deadline=None)
def test_swapping_the_arms_inverts_the_gain(gain, number):
    processes = [process(number + n, gain) for n in range(3)]
    there = compare(processes, PUBLIC).gain
    back = compare(processes, PUBLIC, ("incumbent", "candidate")).gain
    assert (1 / back.value, 1 / back.high, 1 / back.low) == pytest.approx(
        (there.value, there.low, there.high), rel=1e-9
    )


ORDER = [Status.REJECTED, Status.EQUAL, Status.ACCEPTED]


@given(st.floats(-0.009, 0.02), st.floats(0, 0.02), st.integers(1, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_faster_candidate_is_never_ruled_lower(gain, more, number):
    slow, fast = ([process(number + n, g) for n in range(3)] for g in (gain, gain + more))
    assert ORDER.index(ruled(fast).status) >= ORDER.index(ruled(slow).status)


def test_screening_lets_gains_and_doubt_pass_and_rejects_the_rest():
    assert screen(process(1, 0.005, rounds=8), CASE, QUIET).status is None
    few = screen(process(1, 0.0, rounds=2), CASE, QUIET)
    assert (few.status, few.flags) == (None, ("undecided",))
    null = screen(process(1, 0.0, rounds=8), CASE, QUIET)
    assert (null.status, null.reason.startswith("screened: ")) == (Status.EQUAL, True)
    assert screen(process(1, -0.01, rounds=8), CASE, QUIET).status is Status.REJECTED
    losing = screen(process(1, {"a": 0.1, "b": 0.1, "c": -0.03}, rounds=8), CASE, QUIET)
    assert losing.status is Status.REJECTED
    assert "c loses more than 1.0%" in losing.reason


@given(st.floats(-0.02, 0.3), st.integers(1, 10**6), st.integers(3, 12))
@settings(max_examples=25, deadline=None)
def test_screening_never_accepts(gain, number, rounds):
    ruling = screen(process(number, gain, rounds=rounds), CASE, QUIET)
    assert ruling.status in (None, Status.EQUAL, Status.REJECTED)


def test_ten_thousand_resamples_are_quick():
    names = tuple("abcdefgh")
    rng = random.Random(1)
    arms = {"incumbent": 0.005}
    start = time.process_time()
    taken = [[timed(n, w, "public", 20, rng, 0.001, arms) for w in names] for n in (1, 2, 3)]
    assert ruled(taken, Case(names, baseline="incumbent")).status is Status.ACCEPTED
    assert time.process_time() - start < 0.5


BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RECORDED = BENCHMARKS.parent / "docs" / "results" / "h200-earlier" / "aa.json"


@pytest.fixture(scope="module")
def simulation():
    """benchmarks/decision.py, small."""
    sys.path.insert(0, str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("decision_benchmark", BENCHMARKS / "decision.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(BENCHMARKS))


def test_simulated_machine_has_the_spreads_it_claims(simulation):
    """Seen between processes is what the rounds scatter and what the processes add to it."""
    for within, between in ((0.00001, 0.0005), (0.0045, 0.0), (0.0045, 0.0005)):
        noise = replace(simulation.NOISE, within=within, straggling=within, between=between)
        machine = simulation.Machine(noise, 1)
        calibration = simulation.calibrated(machine, simulation.Setting(noise, RULE, 100))
        rounds = within * math.sqrt(math.pi / 2 / simulation.NULL_ROUNDS / len(simulation.PUBLIC))
        assert calibration.spread == pytest.approx(math.hypot(rounds, between), rel=0.15)
        assert calibration.within == pytest.approx(within, rel=0.15)


def test_simulated_rounds_are_void_and_replaced(simulation):
    machine = simulation.Machine(simulation.NOISE, 1)
    samples = machine.process(0.01, machine.pair(), 20, hidden=12)
    wanted = dict.fromkeys(simulation.PUBLIC, 20) | dict.fromkeys(simulation.HIDDEN, 12)
    assert {s.workload: s.void.count("") for s in samples} == wanted
    assert all(s.void[-1] == "" and len(s.void) == len(s.times["candidate"]) for s in samples)
    assert sum(len(s.void) for s in samples) > sum(wanted.values())
    mostly = simulation.Machine(replace(simulation.NOISE, void=0.9), 1)
    counts = [len(s.void) for s in mostly.process(0.0, mostly.pair(), 20)]
    assert set(counts) == {30}


def test_rounds_of_a_real_machine_are_drawn_without_a_lean(simulation):
    from decision_machine import Machine, Noise, recorded

    rounds = recorded(RECORDED)
    assert set(rounds) == set(simulation.PUBLIC)
    for ratios in rounds.values():
        assert sorted(ratios) == pytest.approx(sorted(-ratios), abs=1e-12)
    noise = Noise(between=0.0, recorded=rounds)
    calibration = simulation.calibrated(Machine(noise, 1), simulation.Setting(noise, RULE, 200))
    assert calibration.spread == pytest.approx(0.00037, rel=0.2)
    assert abs(sum(calibration.gains)) / 200 < 4 * calibration.spread / math.sqrt(200)


def test_the_rule_keeps_its_promises_in_a_short_simulation(simulation):
    setting = simulation.Setting(simulation.NOISE, RULE, simulation.CALIBRATION)
    result = simulation.simulate(setting, evolutions=2, candidates=60, trials=20, seed=5)
    assert result["false_accepts"] == 0
    assert result["power"]["0.005"]["accepted"] >= 0.95
    assert result["power"]["0.005"]["passed_screening"] == 1.0
    assert result["power"]["0.002"]["accepted"] < 0.2, "below the margin"
    assert result["best_of_ten"]["accepts"] > 3  # of 60, where none is better
    assert all(met for *_, met in simulation.table(result))


def test_a_quiet_machine_screens_most_null_candidates_out(simulation):
    noise = simulation.Noise(within=0.0009, straggling=0.027, between=0.0005, void=0.02)
    result = simulation.simulate(simulation.Setting(noise, RULE, 5), 2, 60, 0, seed=5)
    assert result["nulls_screened_out"] > 0.8 and result["false_accepts"] == 0


def test_a_rule_without_its_margin_would_be_caught(simulation):
    """The simulation can fail: without a margin the machine's preferences are taken for gains."""
    lax = replace(RULE, margin_factor=0.0, least_margin=-0.01)
    noise = replace(simulation.NOISE, within=0.0009, between=0.0005, persistent=1.0)
    result = simulation.simulate(simulation.Setting(noise, lax, 5), 1, 150, 0, seed=5)
    assert result["false_accepts"] > simulation.LIMITS["false accepts"]
