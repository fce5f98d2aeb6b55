"""The static decision: accepted only if better than the high-water mark and worse nowhere."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avo_cute.bench import Standing
from avo_cute.records import Estimate, Facts, Status, Verdict
from avo_cute.score import STATIC_MARGIN, decide


def judged(artifact="new", spills=0, **cycles):
    """A verdict as it comes before the decision."""
    facts = replace(FACTS, spill_loads=spills)
    return Verdict(
        Status.ACCEPTED,
        "",
        artifact=artifact,
        estimates=tuple(Estimate(name, value, "tensor", {}) for name, value in cycles.items()),
        facts=dict.fromkeys(cycles, facts),
    )


FACTS = Facts("sm_90a", "", (), 168, (), 0, 0, 0, 0, 0, 0, 0, 0, {})


def standing(high_water=None, **kwargs):
    baseline = {"a": 100.0, "b": 200.0}
    return Standing(baseline, high_water or baseline, "incumbent", **kwargs)


def test_better_is_accepted_and_scored_against_both():
    verdict = decide(judged("new", a=50, b=100), standing({"a": 60.0, "b": 120.0}))
    assert verdict.status is Status.ACCEPTED
    assert verdict.score == pytest.approx(2.0)
    assert verdict.gain == pytest.approx(1.2)


def test_better_than_the_seed_but_not_than_the_best_is_rejected():
    verdict = decide(judged("new", a=90, b=180), standing({"a": 80.0, "b": 160.0}))
    assert verdict.status is Status.REJECTED
    assert verdict.score > 1 > verdict.gain


def test_a_mean_gain_does_not_buy_a_loss_of_more_than_one_percent():
    verdict = decide(judged("new", a=90, b=203), standing())
    assert verdict.status is Status.REJECTED
    assert "b loses 1.5%" in verdict.reason
    assert decide(judged("new", a=90, b=201), standing()).status is Status.ACCEPTED


def test_noise_of_the_model_is_equal():
    assert decide(judged("new", a=99.99, b=199.99), standing()).status is Status.EQUAL


def test_the_same_objects_are_no_change():
    assert decide(judged("incumbent", a=100, b=200), standing()).status is Status.NO_CHANGE


def test_objects_that_failed_keep_their_verdict():
    known = standing(seen={"old": (7, Status.INCORRECT)})
    verdict = decide(judged("old", a=90, b=180), known)
    assert verdict.status is Status.INCORRECT
    assert "attempt 7" in verdict.reason


@pytest.mark.parametrize("recorded", [Status.ACCEPTED, Status.REJECTED, Status.EQUAL])
def test_known_objects_are_never_accepted_again(recorded):
    known = standing(seen={"old": (7, recorded)})
    assert decide(judged("old", a=90, b=180), known).status is Status.EQUAL
    assert decide(judged("old", a=110, b=220), known).status is Status.REJECTED


def test_new_spills_are_not_accepted_on_an_estimate():
    verdict = decide(judged(a=90, b=180, spills=4), standing(facts={"a": FACTS, "b": FACTS}))
    assert verdict.status is Status.REJECTED
    assert "a spills: 4 local-memory instructions, not 0" in verdict.reason
    as_before = dict.fromkeys("ab", replace(FACTS, spill_stores=4))
    verdict = decide(judged(a=90, b=180, spills=4), standing(facts=as_before))
    assert verdict.status is Status.ACCEPTED


def test_a_step_too_good_to_be_true_is_not_accepted():
    """R07: a single step of more than 1.3 x is the model's mistake until something measures it."""
    verdict = decide(judged(a=50, b=100), standing({"a": 70.0, "b": 140.0}))
    assert verdict.status is Status.REJECTED
    assert "more than it can be believed" in verdict.reason
    assert decide(judged(a=55, b=110), standing({"a": 70.0, "b": 140.0})).status is Status.ACCEPTED


cycle_pairs = st.tuples(*[st.floats(1, 1e12)] * 2)


@given(cycle_pairs, cycle_pairs)
def test_accepted_means_a_lower_geometric_mean_and_no_loser(high_water, cycles):
    a, b = cycles
    verdict = decide(judged("new", a=a, b=b), standing(dict(zip("ab", high_water, strict=True))))
    gains = [old / new for old, new in zip(high_water, cycles, strict=True)]
    if verdict.status is Status.ACCEPTED:
        assert math.log(gains[0]) + math.log(gains[1]) > STATIC_MARGIN
        assert min(gains) >= 0.99
    assert verdict.status in (Status.ACCEPTED, Status.REJECTED, Status.EQUAL)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_number_that_is_none_is_never_accepted(bad):
    """R05: NaN, zero or negative time must not be averaged away."""
    verdict = decide(judged("new", a=bad, b=100), standing())
    assert verdict.status is Status.AUDIT_FAILED
    assert verdict.score is None


def test_a_missing_workload_is_never_accepted():
    verdict = decide(judged("new", a=10), standing())
    assert verdict.status is Status.AUDIT_FAILED
    assert "b" in verdict.reason
