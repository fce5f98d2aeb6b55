"""The sweep on a landscape like an H200's: how many attempts until +3 %, and what it must avoid."""

import ast
import importlib.util
import math
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

import pytest

from avo_cute.history import SEEN
from avo_cute.knobs import read
from avo_cute.operators import Candidate
from avo_cute.operators.evidence import change_of
from avo_cute.operators.search import SearchOperator
from avo_cute.records import Attempt, Status
from avo_cute.target import find_target
from avo_cute.task import find_task

TASK = find_task("fa4")
H200 = find_target("h200")
MHA = TASK.select("mha")
KNOBS = tuple(k for k in TASK.knobs.KNOBS if k.applies(H200, MHA) and "stages" not in k.name)
LENGTHS = ("4k", "8k", "16k", "32k")

# Gain in percent over 128 x 128 by length. Causal: measured on one H200; full: made up around its
# best (2.2 / 7.3 / 6.4 / 6.6) and the few that were measured.
CAUSAL = {
    "(192, 128, False, True)": (-1.9, 3.9, 3.6, 4.6),
    "(128, 192, True, True)": (-1.0, 2.2, 4.3, 4.5),
    "(192, 128, True, False)": (-3.3, 2.3, 2.5, 3.8),
    "(128, 144, True, True)": (-1.0, 1.4, 2.8, 3.5),
    "(128, 176, True, True)": (-2.2, 0.8, 2.3, 3.4),
    "(128, 160, True, True)": (-1.5, 0.8, 2.1, 2.6),
    "(192, 80, True, True)": (-2.9, 1.4, 1.3, 2.6),
    "(128, 128, False, True)": (-0.4, 0.1, 0.8, 1.1),
    "(128, 112, True, True)": (-1.8, -0.2, 0.5, 1.0),
    "(192, 96, False, True)": (-3.6, 0.0, -0.5, 0.3),
    "(128, 96, True, True)": (-3.0, -2.4, -2.3, -2.3),
    "(128, 128, True, True)": (0.0, 0.0, 0.0, 0.0),
}
FULL = {
    "(192, 128, False, True)": (2.2, 7.3, 6.4, 6.6),
    "(192, 128, True, False)": (1.0, 5.1, 4.8, 5.2),
    "(192, 112, False, True)": (0.8, 4.1, 3.9, 4.0),
    "(192, 80, True, True)": (-0.4, 2.0, 1.7, 2.4),
    "(192, 96, False, True)": (-0.9, 1.3, 1.0, 1.6),
    "(128, 128, False, True)": (0.1, 0.3, 0.2, 0.4),
    "(128, 112, True, True)": (-1.2, -0.7, -0.4, 0.0),
    "(128, 176, True, True)": (-3.1, -2.2, -1.5, -1.1),
    "(128, 144, True, True)": (-2.3, -1.9, -1.6, -1.5),
    "(128, 192, True, True)": (-4.1, -2.5, -1.7, -1.6),
    "(128, 96, True, True)": (-4.2, -4.0, -3.9, -3.7),
    "(128, 128, True, True)": (0.0, 0.0, 0.0, 0.0),
}
LPT = (3.9, 3.1, 2.4, 2.0)


@pytest.fixture(scope="module")
def seed() -> dict[str, bytes]:
    """The functions of the released source that the knobs stand in; the rest costs time only."""
    package = importlib.util.find_spec("flash_attn")
    assert package is not None and package.submodule_search_locations
    root = Path(package.submodule_search_locations[0]).parent
    wanted: dict[str, set[str]] = {}
    for knob in KNOBS:
        scopes = (knob.site.scope, *(supply.site.scope for supply in knob.supplies))
        wanted.setdefault(knob.file, set()).update(scope.partition(".")[0] for scope in scopes)
    files = {}
    for file, names in wanted.items():
        text = (root / file).read_text("utf-8")
        parts = [n for n in ast.parse(text).body if getattr(n, "name", "") in names]
        cut = "\n\n\n".join(ast.get_source_segment(text, part) or "" for part in parts)
        files[file] = cut.encode()
    assert set(read(KNOBS, files)) == {knob.name for knob in KNOBS}
    return files


def truth(values: dict[str, str]) -> list[float]:
    """Log of the speed-up over the seed by workload."""
    gains = []
    for mask, table in (("causal", CAUSAL), ("full", FULL)):
        for n, length in enumerate(LENGTHS):
            tile = values[f"sm90_tile_{mask}_{length}"].removeprefix("FwdConfig")
            gain = table.get(tile, (-3.0,) * 4)[n]
            if mask == "full" and values["sm90_scheduler_full"] == "SingleTileLPTScheduler":
                gain += LPT[n] if gain < 1 else LPT[n] / 3  # both save the same misses
            gain -= 1.5 * (values["sm90_turns"] == "False")
            gain -= 8 * (values["sm90_rescale_first"] == "self.intra_wg_overlap")
            gains.append(gain / 100)
    return gains


class Lab:
    """Measures proposals with noise and decides as the engine does; runs a search on them."""

    def __init__(self, files, knobs=KNOBS, number=0, **options):
        kind = "static" if options.get("trailers") is static else "measured"
        rules = (knobs, TASK.knobs.check, H200, MHA)
        self.make = lambda: SearchOperator(*rules, "sweep", number, kind)
        self.search, self.random = self.make(), random.Random(number)
        self.parent, self.head = Candidate("seed", files), "seed"
        self.values = read(knobs, files)
        self.history: list[Attempt] = []
        self.trailers = options.pop("trailers", measured)
        self.broken = options.pop("broken", lambda values: "")
        assert not options

    @property
    def gain(self) -> float:
        """Percent, geometric mean over the seed, of the incumbent; without noise."""
        return 100 * math.expm1(fmean(truth(self.values)))

    def step(self) -> Attempt:
        proposal = self.search.propose(self.parent, self.history)
        assert proposal is not None
        attempt = self.judge(proposal)
        if attempt.status is Status.ACCEPTED:
            self.accept(proposal, attempt)
        self.history.append(attempt)
        return attempt

    def accept(self, proposal, attempt) -> None:
        self.parent = Candidate("t", {**self.parent.files, **proposal.files})
        self.values = {**self.values, **change_of(proposal.body).new}
        self.head = attempt.commit

    def judge(self, proposal) -> Attempt:
        new = {**self.values, **change_of(proposal.body).new}
        old, gains = truth(self.values), truth(new)
        seen = [b - a + self.random.gauss(0, 0.0015) for a, b in zip(old, gains, strict=True)]
        better = fmean(seen) > 0.001 and min(seen) > -0.01
        status, score = Status.ACCEPTED if better else Status.REJECTED, math.exp(fmean(gains))
        trailers = self.trailers(seen, gains)
        body = f"{proposal.body}\n\n{SEEN}{status}: whatever"
        if said := self.broken(new):
            status, score, trailers = Status.BUILD_FAILED, None, {}
            body = f"{proposal.body}\n\n{SEEN}{status}: {said}"
        number = len(self.history) + 1
        return Attempt(
            f"c{number}", "t", self.head, "r", number, status, proposal.subject, body, number,
            trailers, score,
        )  # fmt: skip

    def until(self, percent: float, most: int = 40) -> int:
        while self.gain < percent and len(self.history) < most:
            self.step()
        return len(self.history)

    @property
    def seconds(self) -> int:
        return sum(75 if a.status is Status.ACCEPTED else 23 for a in self.history)


def measured(seen, gains) -> dict[str, str]:
    told = " ".join(f"{math.exp(g):.4f}" for g in seen)
    return {"Score-kind": "measured", "Gains": told, "Workloads": "mha"}


def static(seen, gains) -> dict[str, str]:
    return {"Score-kind": "static", "Cycles": " ".join(f"{1e9 * math.exp(-g):.0f}" for g in gains)}


def shuffled(number: int):
    """The knobs with their expectations dealt out anew: of each mask in another order."""
    rng, dealt = random.Random(number), {}
    knobs = []
    for knob in KNOBS:
        gains = [gain for _, gain in knob.expect]
        key = (knob.idea, knob.expect)
        order = dealt.setdefault(key, rng.sample(gains, len(gains)))
        expect = tuple((c, g) for (c, _), g in zip(knob.expect, order, strict=True))
        knobs.append(replace(knob, expect=expect))
    return tuple(knobs)


def test_three_percent_within_fifteen_attempts_whatever_the_order(seed):
    labs = [Lab(seed, number=n) for n in range(20)]
    assert {lab.until(3.0) for lab in labs} == {2}  # what was measured elsewhere holds here
    labs = [Lab(seed, shuffled(n), n) for n in range(20)]
    attempts = sorted(lab.until(3.0) for lab in labs)
    assert attempts[-1] <= 15 and median(attempts) <= 9, attempts
    assert max(lab.seconds for lab in labs) <= 480


def test_the_one_that_fails_is_tried_alone_if_the_other_is_no_better(seed):
    bad = "FwdConfig(192, 128, False, True)"

    def broken(values):
        return "ptxas" if bad in (values[f"sm90_tile_full_{n}"] for n in LENGTHS) else ""

    lab = Lab(seed, broken=broken)
    lab.until(1.5)
    changes = [change_of(a.body) for a in lab.history if a.status is Status.BUILD_FAILED]
    assert [len(change.new) for change in changes] == [8, 4]
    assert bad in lab.values["sm90_tile_causal_8k"]


def test_an_attempt_carries_an_idea_per_mask_and_a_combination_the_best_of_each(seed):
    lab = Lab(seed)
    first = change_of(lab.step().body)
    assert set(first.new) == {
        f"sm90_tile_{mask}_{length}" for mask in ("causal", "full") for length in LENGTHS
    }
    assert not first.combined
    attempt = lab.step()
    second = change_of(attempt.body)
    assert second.combined and attempt.status is Status.ACCEPTED
    assert set(first.new) - set(second.new) == {"sm90_tile_causal_4k"}  # where it loses
    assert attempt.subject == "Choose causal tile by seqlen, full tile to 192x128 SS"
    assert "mha-full-8k +7." in attempt.body and "mha-causal-4k +0.0%" in attempt.body
    assert read(KNOBS, lab.parent.files) == lab.values


def test_it_goes_on_to_find_what_helps_beside_the_first_combination(seed):
    lab = Lab(seed)
    lab.until(4.9)
    assert len(lab.history) <= 12
    assert lab.values["sm90_scheduler_full"] == "SingleTileLPTScheduler"
    assert lab.values["sm90_tile_causal_16k"] == "FwdConfig(128, 192, True, True)"
    combined = [change_of(a.body).combined for a in lab.history]
    assert sum(combined) == 2


def test_a_resumed_search_goes_on_as_if_it_had_not_stopped(seed):
    lab = Lab(seed, shuffled(3), 3)
    for _ in range(12):
        lab.step()
        fresh = lab.make().propose(lab.parent, lab.history)
        assert fresh == lab.search.propose(lab.parent, lab.history) is not None
        lab.search = lab.make()


def test_the_one_of_two_ideas_that_fails_is_found_and_kept_out(seed):
    bad = "FwdConfig(192, 128, False, True)"

    def broken(values):
        return "ptxas" if bad in (values[f"sm90_tile_causal_{n}"] for n in LENGTHS) else ""

    lab = Lab(seed, broken=broken)
    lab.until(3.0)
    statuses = [a.status for a in lab.history]
    assert statuses[:2] == [Status.BUILD_FAILED, Status.ACCEPTED]
    assert all("full" in name for name in change_of(lab.history[1].body).new), "one of both, alone"
    assert statuses.count(Status.BUILD_FAILED) == 1, "that it passed says enough of the other"
    assert lab.values["sm90_tile_full_8k"] == bad
    assert bad not in (lab.values[f"sm90_tile_causal_{n}"] for n in LENGTHS)
    assert len(lab.history) <= 15


def test_a_verdict_that_names_a_workload_blames_the_idea_that_it_felt(seed):
    def broken(values):
        wide = values["sm90_tile_full_8k"].startswith("FwdConfig(192")
        return "mha-full: registers spill" if wide else ""

    lab = Lab(seed, broken=broken)
    lab.until(1.5)
    failed = [change_of(a.body) for a in lab.history if a.status is Status.BUILD_FAILED]
    assert all(len(change.new) == 8 for change in failed), "never alone: it is known which it was"
    assert lab.values["sm90_tile_causal_8k"] == "FwdConfig(192, 128, False, True)"


def test_proposals_in_flight_differ_and_are_not_combined_twice(seed):
    lab = Lab(seed)
    proposals = [lab.search.propose(lab.parent, []) for _ in range(3)]
    ideas = [change_of(p.body).new.items() for p in proposals]
    assert not ideas[0] & ideas[1] and not ideas[1] & ideas[2] and not ideas[0] & ideas[2]
    for proposal in proposals:
        lab.history.append(lab.judge(proposal))
        lab.search.observe(lab.history[-1])
    combined = [change_of(lab.search.propose(lab.parent, []).body).combined for _ in range(3)]
    assert combined == [True, False, False]


def test_estimates_serve_as_well_as_measurements(seed):
    lab = Lab(seed, trailers=static)
    start = Attempt(
        "c0", "t", "seed", "r", 0, Status.NO_CHANGE, "", "", 0, static([], [0] * 8), 1.0
    )
    lab.search.observe(start)
    assert lab.until(3.0) == 2
    assert change_of(lab.history[1].body).combined


@pytest.mark.parametrize(
    "told", ["", "1.1", "x " * 8, "nan " * 8, "-1 " * 8, "1.1 " * 9, "1e999 " * 8]
)
def test_without_readable_gains_nothing_is_combined(seed, told):
    lab = Lab(seed, trailers=lambda seen, gains: {"Score-kind": "measured", "Gains": told})
    for _ in range(4):
        lab.step()
    assert not any(change_of(a.body).combined for a in lab.history)


def test_a_gain_that_is_missing_for_one_workload_leaves_that_alone(seed):
    def partly(seen, gains):
        told = measured(seen, gains)["Gains"].split()
        return {"Score-kind": "measured", "Gains": " ".join(["-", *told[1:5], "-", *told[6:]])}

    lab = Lab(seed, trailers=partly)
    lab.step()
    new = change_of(lab.step().body).new
    assert "sm90_tile_full_16k" in new and "sm90_tile_full_8k" not in new


def test_a_refused_combination_is_followed_by_ideas_and_then_by_parts_of_it(seed):
    lab = Lab(seed)
    lab.step()
    whole = lab.search.propose(lab.parent, lab.history)
    refused = replace(lab.judge(whole), status=Status.REJECTED)
    lab.history.append(refused)
    changes = [change_of(lab.step().body) for _ in range(4)]
    assert [c.combined for c in changes] == [False, False, False, True]
    assert changes[3].new != change_of(whole.body).new
