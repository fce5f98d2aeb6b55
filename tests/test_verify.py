"""verify: a recorded attempt against its own rebuild, and against a second measurement."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from avo_cute.agreement import recorded_gain, relation
from avo_cute.errors import BadInput, MachineFailed
from avo_cute.evolve import Limits, evolve
from avo_cute.lineage import AttemptDraft, Lineage
from avo_cute.measure.request import Result
from avo_cute.plan import Wanted
from avo_cute.records import Interval, Status, Verdict
from avo_cute.verify import conclude, keep, verify, verify_once

from .simulated_rig import BYPASS, LOADS, ROWS, Events, SimulatedRig


@pytest.fixture(scope="module")
def recorded(begin_run, libraries, tmp_path_factory):
    """A run on a simulated GPU: one accepted, one rejected, one incorrect."""
    rig = SimulatedRig()
    known = {libraries[ROWS]: 1.04, libraries[LOADS]: 0.9}
    rig.speed = lambda library: known.get(library, 1.0)

    def during(request):
        if request.kernels["candidate"].get("softmax-2k") == libraries[BYPASS]:
            rig.endings[len(rig.asked)] = Result(status=Status.INCORRECT, reason="wrong rows")

    rig.during = during
    path = tmp_path_factory.mktemp("verify") / "lineage.git"
    run, operator, _ = begin_run(path, rig, [ROWS, LOADS, BYPASS])
    evolve(run, operator, Limits())
    attempts = {a.subject.partition("] ")[2]: a for a in run.lineage.attempts("r")}
    assert attempts[ROWS].status is Status.ACCEPTED
    assert attempts[LOADS].status is Status.REJECTED
    assert attempts[BYPASS].status is Status.INCORRECT
    return SimpleNamespace(lineage=run.lineage, bench=run.bench, path=path, attempts=attempts)


@pytest.fixture(scope="module")
def rig(libraries):
    """The GPU again, on another day."""
    again = SimulatedRig()
    again.speed = lambda library: 1.04 if library == libraries[ROWS] else 1.0
    return again


@pytest.fixture(scope="module")
def second(recorded, rig):
    """The verification of the accepted one, as it really goes."""
    attempt, bench = recorded.attempts[ROWS], replace(recorded.bench, rig=rig)
    return verify(recorded.lineage, attempt, attempt.parent, bench, Events())


@pytest.fixture
def concluded(recorded, second, rig):
    """concluded(attempt, verdict, …) -> what follows from another record or another verdict."""

    def conclude_(attempt=None, verdict=None, base="", rebuilt=None):
        attempt, bench = attempt or recorded.attempts[ROWS], replace(recorded.bench, rig=rig)
        told = {k: v for k, v in attempt.trailers.items() if k != "Cycles"}  # those of ROWS
        attempt = replace(attempt, trailers=told)
        now = verdict or second.verdict
        built = rebuilt or replace(now, artifact=attempt.trailers.get("Artifact", now.artifact))
        found = (built, built, now)
        return conclude(recorded.lineage, attempt, base or attempt.parent, bench, found)

    return conclude_


def altered(recorded, name, **changes):
    """The attempt as a commit with other trailers would tell it."""
    attempt = recorded.attempts[name]
    facts = {k.replace("_", "-"): v for k, v in changes.items()}
    return replace(attempt, trailers={**attempt.trailers, **facts})


def outcome(second, status, gain=None, reason="because"):
    """The second verdict, had it been another."""
    measured = replace(second.verdict.measured, gain=gain, score=None)
    return replace(second.verdict, status=status, reason=reason, measured=measured)


def test_a_gain_that_is_there_again_holds(second, rig):
    assert second.holds and second.why == "" and second.artifact == "equal"
    assert second.was.low < 1.04 < second.was.high and 1.03 < second.gain.low
    assert any("contains the old gain" in r or "overlap" in r for r in second.remarks)
    assert second.verdict.measured.level == "commit" and len(rig.asked) >= 3
    assert any(p.role == "hidden" for r in rig.asked for p in r.points)


def test_the_rebuild_takes_nothing_from_the_cache(second, recorded):
    cached = {str(p) for p in recorded.bench.cache.rglob("*.o")}
    assert cached and not {str(p) for p in second.verdict.objects.values()} & cached


def test_a_gain_that_is_gone_does_not_hold(concluded, second):
    gone = outcome(second, Status.EQUAL, Interval(1.0, 0.999, 1.001))
    found = concluded(verdict=gone)
    assert "the gain does not hold" in found.why and "bound is not above" in found.why
    assert any("lies below" in r for r in found.remarks)
    lost = outcome(second, Status.REJECTED, Interval(1.04, 1.03, 1.05), "hidden workloads lose")
    assert concluded(verdict=lost).why == "the gain does not hold: hidden workloads lose"


def test_an_accepted_gain_that_is_impossible_now_does_not_hold(concluded, second):
    found = concluded(verdict=outcome(second, Status.REJECTED, None, "impossible: below the floor"))
    assert found.why == "the gain does not hold: impossible: below the floor"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"Gain": "1.140000 1.130000 1.150000"}, "the recorded gain .* is not the gain of now"),
        ({"Score": "1.090000", "Score_interval": "1.08 1.1"}, "the recorded score .* is not"),
        ({"Score": "1.090000"}, "outside of its own interval"),
        ({"Gain": "1.2 1.03 1.05"}, "outside of its own interval"),
        ({"Gain": "1.2"}, "the recorded gain '1.2' has no interval"),
        ({"Score_interval": "nan 2"}, "the recorded score .* has no interval"),
    ],
)
def test_numbers_that_were_edited_do_not_hold(concluded, recorded, changes, says):
    found = concluded(attempt=altered(recorded, ROWS, **changes))
    assert re.search(says, found.why), found.why


def test_another_kind_of_gpu_need_not_give_the_same_numbers(concluded, recorded):
    other = altered(recorded, ROWS, Device="Another GPU", Gain="1.140000 1.130000 1.150000")
    assert concluded(attempt=other).holds


@pytest.mark.parametrize("said", ["--help", "HEAD", "a" * 40, "-n1", "x" * 200])
def test_an_against_that_is_no_commit_is_refused(recorded, concluded, said):
    with pytest.raises(BadInput, match="which is no commit of this lineage"):
        concluded(attempt=altered(recorded, ROWS, Against=said))


def test_a_gain_above_the_margin_holds_even_where_one_process_wavers(concluded, second):
    wavers = outcome(second, Status.EQUAL, Interval(1.04, 1.03, 1.05), "one process alone")
    assert concluded(verdict=wavers).holds


def test_one_that_was_not_accepted_must_not_be_now(concluded, second, recorded):
    rejected = recorded.attempts[LOADS]
    slow = outcome(second, Status.REJECTED, Interval(0.866, 0.865, 0.867))
    assert concluded(rejected, slow).holds
    found = concluded(rejected, outcome(second, Status.ACCEPTED, Interval(1.04, 1.03, 1.05)))
    assert found.why.startswith("recorded as rejected, now ")


def test_an_incorrect_one_must_be_incorrect_again(concluded, second, recorded):
    incorrect = recorded.attempts[BYPASS]
    assert concluded(incorrect).why == "recorded as incorrect, but it passes now"
    assert concluded(incorrect, outcome(second, Status.INCORRECT)).holds
    found = concluded(incorrect, outcome(second, Status.CRASHED))
    assert found.why == "recorded as incorrect, now crashed: because"


def test_an_accepted_one_that_is_incorrect_now_does_not_hold(concluded, second):
    found = concluded(verdict=outcome(second, Status.INCORRECT, None, "wrong rows"))
    assert found.why == "recorded as accepted, now incorrect: wrong rows"


def test_what_a_machine_cannot_say_is_no_verification(recorded):
    bench = replace(recorded.bench, rig=SimulatedRig(voided="clocks apart"))
    attempt = recorded.attempts[ROWS]
    with pytest.raises(MachineFailed, match="clocks apart"):
        verify(recorded.lineage, attempt, attempt.parent, bench, Events())


def test_other_bytes_are_told_and_other_tools_may_be_why(concluded, recorded, second):
    other = altered(recorded, ROWS, Artifact="0" * 64)
    found = concluded(other, rebuilt=second.verdict)
    assert found.artifact == "different"
    assert found.why == "the rebuilt objects are not the recorded ones"
    other = altered(recorded, ROWS, Artifact="0" * 64, Toolchain="nvidia-cutlass-dsl 4.0.0 cu12")
    found = concluded(other, rebuilt=second.verdict)
    assert found.why.endswith("which may be the other toolchain's doing")
    assert any(r.startswith("another toolchain") for r in found.remarks)


def test_the_driver_in_the_toolchain_is_no_difference(concluded, recorded):
    assert "; driver 1.0" in recorded.attempts[ROWS].trailers["Toolchain"]
    assert not any("toolchain" in r for r in concluded().remarks)


def test_one_that_does_not_build_any_more_does_not_hold(concluded):
    broken = Verdict(Status.BUILD_FAILED, "no such function")
    found = concluded(verdict=broken, rebuilt=broken)
    assert found.why == "recorded as accepted, now build-failed: no such function"
    assert found.artifact == "none"


def test_another_opponent_is_no_judge_of_the_recorded_gain(concluded, second, recorded):
    loads = recorded.attempts[LOADS].commit
    found = concluded(verdict=outcome(second, Status.EQUAL, Interval(1, 0.99, 1.01)), base=loads)
    assert found.holds and found.was is None and found.against == loads


# Without a GPU, through the lineage


@pytest.fixture
def anywhere(recorded):
    """anywhere(rev, **wanted) -> a verification on this machine, told not to measure."""

    def run(rev, against=None, **more):
        wanted = Wanted(recorded.path, run="r", devices="none", **more)
        return verify_once(rev, against, wanted, map, Events())

    return run


def test_without_a_gpu_the_rebuild_is_verified_and_nothing_measured(anywhere, recorded):
    bench, found = anywhere("best")
    assert bench.kind == "static" and found.holds and found.artifact == "equal"
    assert any(r.startswith("nothing was measured") for r in found.remarks)
    assert found.gain is None
    note = recorded.lineage.read_note(recorded.attempts[ROWS].commit)
    assert "Holds: yes" in note and "Remark: nothing was measured" in note


def test_a_seed_is_built_twice(anywhere, recorded):
    _, found = anywhere("seed/softmax", workloads="softmax-2k", target="b200")
    assert found.holds and found.artifact == "equal"
    note = recorded.lineage.read_note(recorded.lineage.seed("softmax"))
    assert "Holds: yes" in note


def test_a_static_estimate_that_differs_does_not_hold(recorded):
    bench = replace(recorded.bench, rig=None)
    for evaluator, holds in ((bench.evaluator, False), ("0" * 64, True)):
        other = altered(recorded, ROWS, Cycles="1", Evaluator=evaluator)
        found = verify(recorded.lineage, other, other.parent, bench, Events())
        assert found.holds is holds, found.why
    assert any("another evaluator" in r for r in found.remarks)


def test_a_failed_build_is_built_twice_and_must_fail_alike(recorded):
    lineage, head = recorded.lineage, recorded.attempts[ROWS].commit
    told = {k: recorded.attempts[ROWS].trailers[k] for k in ("Task", "Target", "Workloads")}
    bench = replace(recorded.bench, rig=None)
    draft = AttemptDraft(
        "r", recorded.attempts[LOADS].tree, head, Status.BUILD_FAILED, "Claims to fail", "", told
    )
    attempt = lineage.record(draft)
    found = verify(lineage, attempt, head, bench, Events())
    assert found.why == "recorded as build-failed, but it builds now"


def test_notes_append_and_keep_to_one_line_each(recorded, second, rig):
    found = second
    bench = replace(recorded.bench, rig=rig)
    commit = recorded.attempts[ROWS].commit
    before = recorded.lineage.read_note(commit) or ""
    keep(recorded.lineage, bench, found)
    hostile = replace(found, why="no\nHolds: yes \x1b[31m", remarks=("a\nb",))
    keep(recorded.lineage, bench, hostile)
    note = recorded.lineage.read_note(commit)
    assert note.startswith(before.rstrip())
    assert note.count("Verified: ") == before.count("Verified: ") + 2
    added = note[len(before) :].splitlines()
    for key in ("Gain", "Score-interval", "Hidden", "Device", "Driver", "Toolchain", "Evaluator"):
        assert sum(line.startswith(f"{key}: ") for line in added) == 2, (key, added)
    assert "Holds: no: no Holds: yes" in note and "\x1b" not in note
    assert "Remark: a b" in note


@pytest.mark.parametrize(
    ("rev", "wanted", "says"),
    [
        ("best", {"target": "h200"}, "--target b200"),
        ("best", {"workloads": "all"}, "--workloads softmax-2k"),
        ("best", {"task": "fa4"}, "not of fa4"),
        ("999", {}, "999"),
    ],
)
def test_what_cannot_be_verified_is_refused(anywhere, rev, wanted, says):
    with pytest.raises(BadInput, match=says):
        anywhere(rev, **wanted)


def test_a_commit_that_is_no_attempt_is_refused(recorded):
    lineage = Lineage.open(recorded.path)
    transcript = next(iter(lineage.repo.refs("refs/sessions/r").values()))
    with pytest.raises(BadInput, match="neither an attempt nor a seed"):
        verify_once(transcript, None, Wanted(recorded.path, devices="none"), map, Events())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.02 1.01 1.03", Interval(1.02, 1.01, 1.03)),
        ("1.02", None),
        ("1.02 x 1.03", None),
        ("", None),
    ],
)
def test_a_recorded_gain_is_read_or_not_there(recorded, text, value):
    assert recorded_gain(altered(recorded, ROWS, Gain=text)) == value


def test_how_two_intervals_lie():
    old = Interval(1.02, 1.01, 1.03)
    assert "above" in relation(old, Interval(1.05, 1.04, 1.06))
    assert "below" in relation(old, Interval(1.0, 0.99, 1.005))
    assert "contains" in relation(old, Interval(1.025, 1.015, 1.035))
    assert "overlap" in relation(old, Interval(1.03, 1.025, 1.04))


def test_an_estimate_has_no_recorded_gain(recorded):
    assert recorded_gain(altered(recorded, ROWS, Score_kind="static")) is None
