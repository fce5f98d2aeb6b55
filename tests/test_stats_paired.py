"""Statistics of paired rounds: properties that hold for every input, and known answers."""

import itertools
import json
import math
import statistics
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avo_cute.records import Samples
from avo_cute.stats import (
    Calibration,
    Cell,
    bootstrap_medians,
    bounds,
    calibrate,
    calibration_of,
    floor_share,
    inert_note,
    is_sound,
    log_ratios,
    robust_sd,
    stratified,
    tflops,
)

ratio = st.floats(-0.5, 0.5)
times = st.floats(1e-6, 1.0)
rounds = st.lists(st.tuples(times, times), min_size=1, max_size=12)


def sample(candidate, incumbent, void=None, **fields):
    arms = {"candidate": tuple(candidate), "incumbent": tuple(incumbent)}
    facts = {"workload": "w", "role": "public", "mode": "sustained", "process": 1, **fields}
    return Samples(
        times=arms, clocks={}, void=tuple(void or [""] * len(arms["candidate"])), **facts
    )


def test_a_log_ratio_is_positive_where_the_arm_is_faster_and_void_rounds_are_dropped():
    s = sample([1.0, 2.0, math.nan], [2.0, 2.0, 1.0], ["", "", "throttled"])
    assert log_ratios(s, "candidate", "incumbent") == [math.log(2), 0.0]


@given(rounds, st.lists(st.floats(0.5, 2.0), min_size=12, max_size=12))
def test_drift_that_both_arms_share_cancels(pairs, drift):
    ours, theirs = zip(*pairs, strict=True)
    plain = log_ratios(sample(ours, theirs), "candidate", "incumbent")
    moved = [[t * d for t, d in zip(arm, drift, strict=False)] for arm in (ours, theirs)]
    assert log_ratios(sample(*moved), "candidate", "incumbent") == pytest.approx(plain, abs=1e-12)


@given(rounds)
def test_swapping_the_arms_turns_the_sign(pairs):
    s = sample(*zip(*pairs, strict=True))
    there, back = (log_ratios(s, *arms) for arms in itertools.permutations(s.times))
    assert there == pytest.approx([-r for r in back], abs=1e-12)


@given(
    rounds, st.sampled_from([math.nan, 0.0, -1.0, math.inf, -math.inf]), st.booleans(), st.data()
)
def test_an_impossible_time_is_never_evidence(pairs, bad, in_candidate, data):
    arms = [list(arm) for arm in zip(*pairs, strict=True)]
    where = data.draw(st.integers(0, len(pairs) - 1))
    arms[0 if in_candidate else 1][where] = bad
    s = sample(*arms)
    assert not is_sound(s, ("candidate", "incumbent"))
    with pytest.raises(ValueError):
        log_ratios(s, "candidate", "incumbent")


def test_an_arm_that_is_missing_or_short_is_not_sound():
    assert not is_sound(sample([1.0], [1.0]), ("candidate", "seed"))
    assert not is_sound(sample([1.0, 1.0], [1.0]), ("candidate", "incumbent"))


@pytest.mark.parametrize("values", [[1.0, 5.0, 2.0], [4.0, 1.0, 3.0, 9.0], [7.0], [2.0, 3.0]])
def test_bootstrap_has_exactly_the_distribution_of_resampling(values):
    """Every resample of a small group, enumerated, against the shares that were drawn."""
    every = Counter(statistics.median(c) for c in itertools.product(values, repeat=len(values)))
    drawn = Counter(bootstrap_medians([values], seed=3, resamples=200_000)[:, 0].tolist())
    assert set(drawn) == set(every)
    for value, count in every.items():
        share = count / len(values) ** len(values)
        assert drawn[value] / 200_000 == pytest.approx(share, abs=0.005)


@given(st.lists(ratio, min_size=1, max_size=15), st.integers(0, 2**32))
@settings(max_examples=50)
def test_bootstrap_of_the_negatives_is_the_negative(values, seed):
    there = bootstrap_medians([values], seed, 200)[:, 0]
    back = bootstrap_medians([[-v for v in values]], seed, 200)[:, 0]
    assert sorted(there) == sorted(-back)


@given(st.permutations([0.1, -0.2, 0.05, 0.0, 0.3, 0.11]))
@settings(max_examples=20)
def test_the_order_of_rounds_does_not_matter(values):
    first = bootstrap_medians([sorted(values)], 1, 200)
    assert (bootstrap_medians([values], 1, 200) == first).all()


def test_the_seed_decides_the_draws():
    values = [[float(n) for n in range(20)]]
    assert (bootstrap_medians(values, 5) == bootstrap_medians(values, 5)).all()
    assert (bootstrap_medians(values, 5) != bootstrap_medians(values, 6)).any()


@pytest.mark.parametrize("groups", [[[]], [[1.0, math.nan]], [[math.inf]]])
def test_bootstrap_refuses_what_is_no_number(groups):
    with pytest.raises(ValueError):
        bootstrap_medians(groups, 1)


def test_bounds_leave_the_stated_share_outside():
    draws = np.random.default_rng(0).permutation(1000).astype(float)[:, None]
    assert bounds(draws, 0.995) == (5.0, 994.0)
    assert bounds(draws, 0.99) == (10.0, 989.0)


def test_bounds_of_a_normal_sample_cover_as_often_as_they_say():
    """A one-sided 95 % bound on medians of 40 rounds holds in about 95 of 100 trials."""
    random, above = np.random.default_rng(11), 0
    for trial in range(400):
        cells = [Cell(f"w{n}", 0, tuple(random.normal(0.01, 0.002, 40))) for n in range(4)]
        above += stratified(cells, 0.95, trial, 1000).gain.low > math.exp(0.01)
    assert 0.02 <= above / 400 <= 0.09


def test_a_comparison_by_hand():
    cells = [
        Cell("a", 0, (0.01, 0.02, 0.03)),
        Cell("a", 1, (0.04, 0.04, 0.04)),
        Cell("b", 0, (0.0, 0.0, 9.0)),
        Cell("b", 1, (-0.02, -0.02, -0.02)),
    ]
    found = stratified(cells, 0.995, 1)
    assert math.log(found.workloads["a"].value) == pytest.approx(0.03)
    assert math.log(found.workloads["b"].value) == pytest.approx(-0.01)
    assert math.log(found.gain.value) == pytest.approx(0.01)
    assert [math.log(p.value) for p in found.processes] == pytest.approx([0.01, 0.01])
    # only the rounds of (a, 0) and (b, 0) can be drawn otherwise: a's cell to 0.01 or 0.03
    assert math.log(found.workloads["a"].low) == pytest.approx(0.025)
    assert math.log(found.workloads["a"].high) == pytest.approx(0.035)


@given(st.lists(st.lists(ratio, min_size=3, max_size=8), min_size=1, max_size=4), st.floats(0, 0.2))
@settings(max_examples=40)
def test_a_comparison_is_antisymmetric_monotone_and_ordered(groups, more):
    def gain(change):
        cells = [Cell(f"w{n}", 0, tuple(map(change, g))) for n, g in enumerate(groups)]
        return stratified(cells, 0.99, 7, 400).gain

    plain, back, better = gain(lambda r: r), gain(lambda r: -r), gain(lambda r: r + more)
    assert plain.low <= plain.value <= plain.high
    assert (1 / back.value, 1 / back.high, 1 / back.low) == pytest.approx(
        (plain.value, plain.low, plain.high)
    )
    grown = math.exp(more)
    assert (better.value, better.low, better.high) == pytest.approx(
        (plain.value * grown, plain.low * grown, plain.high * grown)
    )


def test_spread_is_measured_about_the_truth_and_the_margin_has_a_least():
    calibration = Calibration((0.001, -0.001, 0.001), 0.002)
    assert calibration.spread == pytest.approx(0.001)
    assert calibration.margin() == pytest.approx(0.003)
    assert calibration.margin(2) == pytest.approx(0.002)
    assert Calibration((1e-5, 0.0, -1e-5), 0.0).margin() == 0.001
    leaning = Calibration((0.002, 0.002, 0.002), 0.002)
    assert leaning.spread == pytest.approx(0.002)  # an arm that is always ahead is spread too


@given(st.lists(st.floats(-0.1, 0.1), min_size=3, max_size=9), st.floats(0, 0.1))
def test_a_calibration_survives_its_text(gains, within):
    calibration = Calibration(tuple(gains), within)
    assert calibration_of(calibration.text()) == calibration
    assert "\n" not in calibration.text()
    assert json.loads(calibration.text())["spread"] == calibration.spread


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"gains": [0, 0], "within": 0}',
        '{"gains": 3, "within": 0}',
        '{"gains": [0, 0, NaN], "within": 0}',
        '{"gains": [0, 0, 0], "within": -1}',
    ],
)
def test_a_text_that_is_no_calibration_is_refused(text):
    with pytest.raises(ValueError):
        calibration_of(text)


def test_calibration_from_null_comparisons_by_hand():
    def process(number, a, b):
        pairs = [(name, [math.exp(-r) for r in rs]) for name, rs in (("a", a), ("b", b))]
        return [sample(t, [1.0] * 3, workload=name, process=number) for name, t in pairs]

    processes = [
        process(1, [0.001, 0.002, 0.5], [0.0, 0.0, 0.0]),
        process(2, [-0.001] * 3, [-0.001] * 3),
        process(3, [0.0] * 3, [0.004] * 3),
    ]
    calibration = calibrate(processes)
    assert calibration.gains == pytest.approx((0.001, -0.001, 0.002))
    assert calibration.spread == pytest.approx(math.sqrt(2e-6))
    cold = [sample([1.0], [9.0], workload="a", mode="cold", process=n) for n in (1, 2, 3)]
    also = calibrate([[*p, c] for p, c in zip(processes, cold, strict=True)])
    assert also == calibration
    for wrong in (processes[:2], [processes[0]] * 3, [*processes[:2], processes[2][:1]]):
        with pytest.raises(ValueError):
            calibrate(wrong)


def test_robust_spread_ignores_stragglers():
    values = np.random.default_rng(2).normal(0, 0.001, 400)
    values[::10] += 0.5
    assert robust_sd(values.tolist()) == pytest.approx(0.001, rel=0.3)


def test_tflops_and_share_of_the_floor():
    # 4 x 8 x 16 x 4096^2 x 128 / 2 operations in 0.9 ms
    assert tflops(4 * 8 * 16 * 4096**2 * 128 / 2, 0.9e-3) == pytest.approx(610.8, abs=0.1)
    assert floor_share(0.5e-3, 1e-3) == 0.5
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError):
            tflops(1e12, wrong)
        with pytest.raises(ValueError):
            floor_share(1e-3, wrong)


def test_the_note_on_inert_rebuilds_counts_signs():
    note = inert_note(1.005, [1.004, 0.999, 1.007, 1.0])
    assert note == "2 of 4 pairs of inert rebuilds keep the sign (-0.10% … +0.70%)."
    assert inert_note(0.995, [0.99, 1.01]).startswith("1 of 2")
    assert inert_note(1.03, [0.9]) == ""
    assert "Not compared" in inert_note(1.01, [])
