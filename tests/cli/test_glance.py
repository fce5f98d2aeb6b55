"""A run at a glance: what is shown of it, and which attempts are asked for."""

import pytest

from avo_cute.cli.glance import Wish, bounds, gain_on, running_best, sparkline, why
from avo_cute.errors import BadInput
from avo_cute.records import Attempt, Status

NAMES = ["short", "long"]


def attempt(number=1, status="accepted", score=None, subject="", body="", **trailers):
    told = {key.replace("_", "-").capitalize(): value for key, value in trailers.items()}
    return Attempt("c", "t", "p", "r", number, Status(status), subject, body, 0, told, score)


def test_a_sparkline_has_the_lowest_and_the_highest():
    assert sparkline([1.0, 1.02, 1.01]) == "▁█▅"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([]) == ""
    many = sparkline(list(range(1000)), width=10)
    assert len(many) == 10 and many[-1] == "█" and list(many) == sorted(many)


def test_the_best_so_far_never_falls_and_mixes_no_kinds():
    made = [
        attempt(1, "rejected", 1.2),
        attempt(2, "accepted", 1.3, score_kind="static"),
        attempt(3, "accepted", 1.1, score_kind="measured"),
        attempt(4, "accepted", 1.05, score_kind="measured"),
    ]
    assert running_best(made) == [1.0, 1.0, 1.1, 1.1]
    assert running_best(made[:2]) == [1.0, 1.3]


@pytest.mark.parametrize(
    ("wish", "numbers"),
    [
        (Wish(), [1, 2, 3, 4]),
        (Wish(statuses=("accepted", "crashed")), [1, 3]),
        (Wish(operator="agent"), [1]),
        (Wish(operator="age"), []),
        (Wish(text="TMEM"), [2, 4]),
        (Wish(workload="long"), [3]),
        (Wish(last=2), [3, 4]),
        (Wish(statuses=("rejected",), last=1), [4]),
    ],
)
def test_what_is_asked_for_is_found(wish, numbers):
    made = [
        attempt(1, operator="agent some-model"),
        attempt(2, "equal", subject="P in tmem", operator="search"),
        attempt(3, "crashed", gains="1.01 0.99"),
        attempt(4, "rejected", body="because of Tmem", gains="1.01"),
    ]
    assert [a.number for a in wish.of(made, NAMES)] == numbers


def test_a_workload_of_another_run_is_refused():
    with pytest.raises(BadInput, match="no workload gqa in this run: short, long"):
        Wish(workload="gqa").of([], NAMES)


@pytest.mark.parametrize("gains", ["", "x y", "1.0", "1 2 3"])
def test_damaged_gains_are_none(gains):
    assert gain_on(attempt(gains=gains), "long", NAMES) is None


def test_a_gain_on_a_workload_and_its_bounds():
    assert gain_on(attempt(gains="1.01 0.98"), "long", NAMES) == 0.98
    assert bounds(attempt(gain="1.04 1.03 1.05")) == "  [+3.00%, +5.00%]"
    for damaged in ("", "1.04", "1.04 x y", "1 2 3 4"):
        assert bounds(attempt(gain=damaged)) == ""


def test_why_is_one_line_without_the_status():
    body = "Hypothesis: x\n\nWhat was seen: rejected: slower\tby \x1b[31m far"
    line = why(attempt(2, "rejected", body=body))
    assert line.strip().startswith("slower by") and "\x1b" not in line
    assert len(why(attempt(2, "rejected", body="What was seen: rejected: " + "y" * 500))) < 130
