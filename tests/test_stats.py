"""Statistics: properties that hold for every input, and a few values known by heart."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avo_cute.stats import geomean, ranks, spearman

positive = st.floats(1e-3, 1e3)
numbers = st.integers(-50, 50).map(float)


@given(st.lists(positive, min_size=1, max_size=30), positive)
def test_geomean_scales_and_lies_between_the_extremes(values, factor):
    mean = geomean(values)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert geomean([v * factor for v in values]) == pytest.approx(mean * factor)


@given(st.lists(positive, min_size=1, max_size=30))
def test_geomean_of_inverses_is_the_inverse(values):
    assert geomean([1 / v for v in values]) == pytest.approx(1 / geomean(values))


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -2.0], [math.nan]])
def test_geomean_refuses_what_has_none(values):
    with pytest.raises(ValueError):
        geomean(values)


@given(st.lists(numbers, min_size=2, max_size=30).filter(lambda v: len(set(v)) > 1))
def test_spearman_sees_order_only(x):
    assert spearman(x, [math.exp(v / 10) for v in x]) == pytest.approx(1.0)
    assert spearman(x, [-v for v in x]) == pytest.approx(-1.0)


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=30))
def test_spearman_is_symmetric_and_bounded(pairs):
    x, y = ([p[k] for p in pairs] for k in (0, 1))
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert spearman(x, y) == pytest.approx(spearman(y, x))
        assert -1.0 <= spearman(x, y) <= 1.0


def test_spearman_of_a_textbook_table():
    # Without ties rho = 1 - 6 sum d^2 / (n (n^2 - 1)); here sum d^2 = 194, n = 10.
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(1 - 6 * 194 / 990)


def test_ties_share_their_mean_rank():
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]


@pytest.mark.parametrize(
    ("x", "y"), [([1], [1]), ([1, 2], [1, 2, 3]), ([1, 1], [1, 2]), ([1, math.nan], [1, 2])]
)
def test_spearman_refuses_what_has_no_rank_correlation(x, y):
    with pytest.raises(ValueError):
        spearman(x, y)
