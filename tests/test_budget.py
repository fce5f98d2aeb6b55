"""What is spent, what it costs, when it ends, and what a budget buys."""

import math
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import avo_cute
from avo_cute.budget import (
    Budget,
    Spent,
    check,
    cost,
    estimate,
    price_of,
    price_source,
    read_trailers,
    run_total,
    spent_on,
    trailers_of,
)
from avo_cute.errors import BadInput
from avo_cute.records import Attempt, Status, Usage
from avo_cute.trailers import compose, parse

OPUS = "claude-opus-5-5"
TABLE = tomllib.loads((Path(avo_cute.__file__).parent / "prices.toml").read_text())
MILLION = 1_000_000


def attempt(number, trailers=None, when=None):
    when = number * 600 if when is None else when
    status, told = Status.REJECTED, trailers or {}
    return Attempt("c", "t", "p", "run", number, status, "Try it", "", when, told)


def paid(number, usd, tokens=1_000, session=0, when=None):
    told = {"Tokens": f"in={tokens} out=0 cache-read=0 cache-write=0", "Cost-usd": f"{usd}"}
    if session:
        told["Session"] = str(session)
    return attempt(number, told, when)


# Prices.


def test_every_kind_of_token_has_its_own_price():
    assert cost(OPUS, Usage(input=MILLION)) == pytest.approx(4.00)
    assert cost(OPUS, Usage(output=MILLION)) == pytest.approx(20.00)
    assert cost(OPUS, Usage(cache_read=MILLION)) == pytest.approx(0.20)
    assert cost(OPUS, Usage(cache_write=MILLION)) == pytest.approx(5.00)
    assert cost(OPUS, Usage(cache_write=MILLION, cache_write_1h=MILLION)) == pytest.approx(8.00)
    whole = Usage(1_000, 2_000, 300_000, 50_000, 20_000)
    assert cost(OPUS, whole) == pytest.approx(0.004 + 0.04 + 0.06 + 0.15 + 0.16)


def test_an_unknown_price_is_none_and_its_tokens_are_counted():
    usage = Usage(1, 2, 3, 4, 4)
    for name in ("claude-mythos-5-2", "claude-opus-5-7", "claude-opus", "my-model", ""):
        assert cost(name, usage) is None
    spent = spent_on("my-model", usage)
    assert (spent.usd, spent.tokens, spent.priced) == (0.0, 10, False)
    assert not (spent + Spent(usd=1.0)).priced
    assert "unpriced" in str(spent)


def test_a_dated_snapshot_costs_what_its_model_costs():
    assert price_of("claude-opus-4-5-20251101") == price_of("claude-opus-4-5")
    assert price_of("claude-opus-5-5") != price_of("claude-opus-5")


def test_a_long_prompt_may_cost_more_for_every_token():
    short = Usage(input=10_000, cache_read=90_000, output=MILLION)
    long = Usage(input=10_001, cache_read=90_000, output=MILLION)
    assert cost("claude-haiku-5-5", short) == pytest.approx(0.001 + 0.0009 + 0.50)
    assert cost("claude-haiku-5-5", long) == pytest.approx(0.0050005 + 0.0045 + 2.50)


def test_the_table_is_dated_sourced_and_plausible():
    assert re.search(r"https://\S+.*read 20\d\d-\d\d-\d\d$", price_source())
    names = [row["model"] for row in TABLE["price"]]
    assert len(names) == len(set(names))
    for name in names:
        price = price_of(name)
        for row in (price, price.long) if price.long else (price,):
            assert 0 < row.cache_read < row.input < row.cache_write < row.cache_write_1h
            # what the API's documentation says of all models
            assert row.cache_write == pytest.approx(1.25 * row.input)
            assert row.cache_write_1h == pytest.approx(2 * row.input)
            assert row.output == pytest.approx(5 * row.input)


# Trailers.


@given(*[st.integers(0, 10**9)] * 4, st.floats(0, 10**6))
def test_what_is_written_is_read_back_from_a_commit(a, b, c, d, usd):
    usage = Usage(a, b, c, d)
    told = parse(compose("Subject", "Body", trailers_of(usage, usd, 12.25)))[2]
    spent = read_trailers(told)
    assert spent.tokens == usage.tokens
    assert spent.gpu_seconds == pytest.approx(12.2, abs=0.1)
    assert spent.priced
    assert spent.usd == pytest.approx(usd if usage.tokens else 0.0, abs=0.0001)


def test_the_form_of_the_trailers():
    told = trailers_of(Usage(12, 34, 56, 78, 78), 1.84)
    assert told == {
        "Tokens": "in=12 out=34 cache-read=56 cache-write=78",
        "Cost-usd": "1.8400",
    }
    assert "Cost-usd" not in trailers_of(Usage(1), None)
    assert trailers_of(Usage(), 0.0) == {}


@pytest.mark.parametrize(
    "tokens, usd, expected",
    [
        ("in=1 out=2", "0.5", Spent(0.5, 3)),
        ("out=2, in=1; cache-write=4 cache-read=8", "0.5", Spent(0.5, 15)),
        ("in=1 future-kind=9 x-in=7", "0.5", Spent(0.5, 1)),
        ("in=-5 out=1e9 in=1.5 in=", "", Spent()),
        ("in=5", "", Spent(tokens=5, priced=False)),
        ("in=5", "nan", Spent(tokens=5, priced=False)),
        ("in=5", "-1", Spent(tokens=5, priced=False)),
        ("in=5", "1e3", Spent(tokens=5, priced=False)),
        ("nonsense", "1.5 USD", Spent()),
        ("in=" + "9" * 400, "9" * 400, Spent()),
    ],
)
def test_trailers_that_others_wrote_are_read_with_care(tokens, usd, expected):
    assert read_trailers({"Tokens": tokens, "Cost-usd": usd}) == expected


@given(st.text(), st.text(), st.text())
def test_reading_never_fails(tokens, usd, seconds):
    spent = read_trailers({"Tokens": tokens, "Cost-usd": usd, "Gpu-seconds": seconds})
    assert spent.usd >= 0
    assert math.isfinite(spent.usd)
    assert math.isfinite(spent.gpu_seconds)


def test_a_run_counts_nothing_twice_and_forgets_no_session():
    attempts = [
        attempt(0),
        paid(1, 1.0, session=1),
        paid(2, 2.0, session=1),
        paid(3, 4.0, session=2),
    ]
    attempts.append(attempt(4, {"Gpu-seconds": "7.5"}))
    # session 1 has spent more than its attempts say; session 2 left no commit of its own; 3 had
    # no attempt at all
    sessions = {
        1: {"Tokens": "in=5000", "Cost-usd": "3.5"},
        3: {"Tokens": "in=100", "Cost-usd": "0.25"},
    }
    total = run_total(attempts, sessions)
    assert total == Spent(3.5 + 4.0 + 0.25, 5_000 + 1_000 + 100, 7.5, 4)
    assert not run_total(attempts, {**sessions, 3: {"Tokens": "in=100"}}).priced


# Limits.


@pytest.mark.parametrize(
    "budget, spent, elapsed_s, line",
    [
        (Budget(), Spent(1e9, 10**12, 1e9, 10**6), 1e9, ""),
        (Budget(usd=2.0), Spent(usd=1.99), 0, ""),
        (Budget(usd=2.0), Spent(usd=2.004), 0, "2.00 of 2.00 USD spent"),
        (Budget(tokens=5_000), Spent(tokens=5_200), 0, "5,200 of 5,000 tokens used"),
        (Budget(attempts=2), Spent(attempts=1), 0, ""),
        (Budget(attempts=2), Spent(attempts=2), 0, "2 attempts done"),
        (Budget(attempts=1), Spent(attempts=1), 0, "1 attempt done"),
        (Budget(attempts=0), Spent(), 0, "0 attempts done"),
        (Budget(gpu_seconds=60), Spent(gpu_seconds=61.2), 0, "61 GPU seconds used"),
        (Budget(hours=1.5), Spent(), 5_399, ""),
        (Budget(hours=1.5), Spent(), 5_400, "1.5 hours are over"),
        (Budget(usd=9.0, hours=1), Spent(usd=1.0), 3_600, "1 hours are over"),
    ],
)
def test_the_line_that_ends_a_run(budget, spent, elapsed_s, line):
    assert budget.reached(spent, elapsed_s) == line


def test_a_limit_that_cannot_be_kept_is_refused():
    check(Budget(usd=5.0, tokens=10, hours=1, attempts=1, gpu_seconds=1), OPUS)
    check(Budget(tokens=10), "my-model")
    with pytest.raises(BadInput, match=r"no price is known for my-model.*--budget-tokens"):
        check(Budget(usd=5.0), "my-model")
    for bad in (Budget(usd=-1.0), Budget(hours=math.nan), Budget(gpu_seconds=math.inf)):
        with pytest.raises(BadInput, match="is no budget"):
            check(bad, OPUS)


# What a budget buys.


def test_an_estimate_before_the_start():
    history = [attempt(0), *(paid(n, 1.5 + n % 2, tokens=100_000) for n in range(1, 31))]
    assert estimate(Budget(usd=20.0), history) == (
        "about 10 attempts for 20.00 USD, at 2.00 USD each (from the last 30 attempts)"
    )
    told = estimate(Budget(usd=20.0, tokens=500_000, attempts=8), history)
    assert "about 5 attempts for 500,000 tokens, at 100,000 tokens each" in told
    assert "so about 5 attempts in all" in told
    assert estimate(Budget(), history) == ""


def test_an_estimate_looks_at_the_last_attempts_only():
    history = [paid(n, 100.0) for n in range(1, 200)] + [paid(n, 1.0) for n in range(200, 260)]
    assert "about 20 attempts" in estimate(Budget(usd=20.0), history)


def test_a_pause_between_two_runs_is_no_time_an_attempt_took():
    night = 40_000
    history = [paid(n, 1.0, when=n * 360 + (night if n > 5 else 0)) for n in range(1, 11)]
    assert "about 10 attempts for 1.00 hours, at 0.10 hours each" in estimate(
        Budget(hours=1), history
    )


def test_without_a_history_it_says_so():
    told = estimate(Budget(usd=20.0, gpu_seconds=100), [attempt(0)])
    assert told.count("no earlier attempt to estimate from") == 2
    assert estimate(Budget(attempts=3), []) == "3 attempts"


def test_attempts_without_a_price_do_not_make_the_others_cheap():
    unpriced = [attempt(n, {"Tokens": "in=1000"}) for n in range(1, 10)]
    assert "about 10 attempts" in estimate(Budget(usd=20.0), [*unpriced, paid(10, 2.0)])
