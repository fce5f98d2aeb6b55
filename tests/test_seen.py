"""What a run has seen, and what of it counts for what it judges next."""

from dataclasses import replace

import pytest

from avo_cute.errors import BadInput, MachineFailed
from avo_cute.evolve import Limits, evolve
from avo_cute.measure.request import Result
from avo_cute.operators import OneByOne, Proposal
from avo_cute.records import Attempt, Failure, Status, Verdict
from avo_cute.run import INFRA_ERRORS, Run
from avo_cute.seen import PATIENCE, Seen

from .conftest import KERNEL, kernel_source
from .simulated_rig import BYPASS, LOADS, ROWS, STREAM, Events, Scripted, SimulatedRig, source


def attempt(number, status, artifact="a", tree="t", **trailers):
    told = {"Artifact": artifact} | {k.replace("_", "-"): v for k, v in trailers.items()}
    return Attempt("c", tree, "p", "r", number, status, "Try", "", 0, told)


def test_the_first_attempt_with_an_artifact_is_remembered_and_a_machine_failure_is_not():
    first, again = attempt(1, Status.REJECTED), attempt(2, Status.EQUAL)
    nobody = attempt(3, Status.INFRA_ERROR, "b")
    assert dict(Seen([first, again, nobody])) == {"a": (1, Status.REJECTED)}


@pytest.mark.parametrize("status", [Status.ACCEPTED, Status.EQUAL, Status.REJECTED])
def test_an_estimate_does_not_count_where_candidates_are_measured(status):
    estimated, failed = attempt(1, status), attempt(2, Status.AUDIT_FAILED, "b")
    measured = attempt(3, status, "m", Level="screening")
    assert set(Seen([estimated, failed, measured], measuring=True)) == {"b", "m"}
    assert set(Seen([estimated, failed, measured])) == {"a", "b", "m"}


def test_what_failed_beyond_its_artifact_is_known_by_its_tree_until_patience_ends():
    failed = [attempt(n, Status.INCORRECT, tree=f"t{n}", Beyond="yes") for n in range(1, PATIENCE)]
    assert set(Seen(failed)) == {f"t{n}" for n in range(1, PATIENCE)}
    seen = Seen(failed)
    seen.add(9, Verdict(Status.INCORRECT, "", artifact="a", beyond=True), "t9")
    assert seen["a"] == (9, Status.INCORRECT)


def test_a_run_that_was_estimated_is_measured_again_where_there_is_a_gpu(
    begin_run, libraries, tmp_path
):
    edits = [STREAM, BYPASS, ROWS, LOADS]
    run, operator, _ = begin_run(tmp_path / "l.git", None, edits)
    evolve(run, operator, Limits())
    rig = SimulatedRig()
    rig.speed = lambda library: 1.05 if library == libraries[BYPASS] else 1.0
    again = Run(run.lineage, replace(run.bench, rig=rig), "r", "softmax-2k", Events())
    evolve(again, OneByOne(Scripted(edits)), Limits())
    later = [a for a in run.lineage.attempts("r") if a.number > 4]
    assert later and all(a.trailers["Score-kind"] == "measured" for a in later)
    assert not any("its verdict stands" in a.body for a in later)


@pytest.mark.parametrize("status", [Status.AUDIT_FAILED, Status.REJECTED, Status.INFRA_ERROR])
def test_a_run_starts_from_nothing_that_could_not_be_measured(
    begin_run, libraries, tmp_path, status
):
    run, operator, _ = begin_run(tmp_path / "l.git", None, [BYPASS])
    evolve(run, operator, Limits())
    head = run.lineage.attempts("r")[-1].commit
    rig = SimulatedRig()

    def during(request):
        mine = request.kernels["candidate"].get("softmax-2k") == libraries[BYPASS]
        if mine and request.kernels["seed"] != request.kernels["candidate"]:
            rig.endings[len(rig.asked)] = Result(status=status, reason="impossible")

    rig.during = during
    other = Run(run.lineage, replace(run.bench, rig=rig), "x", "softmax-2k", Events(), head)
    with pytest.raises((BadInput, MachineFailed)):
        other.begin()
    assert run.lineage.runs() == ["r"]


def test_a_run_ends_when_the_machine_fails_again_and_again(begin_run, tmp_path):
    rig = SimulatedRig()
    edits = [f"{ROWS} #{n}" for n in range(3 * INFRA_ERRORS)]
    run, operator, events = begin_run(tmp_path / "l.git", rig, edits)

    def during(request):
        if request.kernels["candidate"] != request.kernels["incumbent"]:
            rig.endings[len(rig.asked)] = Result(status=Status.INFRA_ERROR, reason="fell over")

    rig.during = during
    with pytest.raises(MachineFailed, match=f"failed {INFRA_ERRORS} attempts in a row.*fell over"):
        evolve(run, operator, Limits())
    assert [a.status for a in events.attempts] == [Status.INFRA_ERROR] * INFRA_ERRORS


def test_a_start_that_differs_in_a_comment_alone_still_gives_scores_over_the_seed(
    begin_run, libraries, tmp_path
):
    rig = SimulatedRig()
    rig.speed = lambda library: 1.04 if library == libraries[ROWS] else 1.0
    run, _, _ = begin_run(tmp_path / "l.git", rig, [])
    run.begin()
    with run.session("manual", lambda: False) as session:
        text = (kernel_source() + "\n# as it was\n").encode()
        comment = session.evaluate(Proposal("Say something", "", {KERNEL: text}))
    assert comment.status is Status.NO_CHANGE
    bench = replace(run.bench, rig=rig)
    other = Run(run.lineage, bench, "x", "softmax-2k", Events(), comment.commit)
    evolve(other, OneByOne(Scripted([ROWS])), Limits())
    accepted = other.lineage.attempts("x")[-1]
    assert accepted.status is Status.ACCEPTED and accepted.score == pytest.approx(1.04, abs=0.005)


def test_a_repair_of_what_failed_on_hidden_shapes_is_judged(
    begin_run, libraries, tmp_path, monkeypatch
):
    """The public objects of both are the same; the host code that chooses others is not."""
    from avo_cute import measured

    rig = SimulatedRig()
    rig.speed = lambda library: 1.04 if library == libraries[ROWS] else 1.0
    run, _, _ = begin_run(tmp_path / "l.git", rig, [])
    run.begin()
    real, calls = measured.build_more, []

    def first_fails(trial, seed):
        calls.append(seed)
        failed = Failure(Status.BUILD_FAILED, "for 64 columns")
        return failed if len(calls) == 1 else real(trial, seed)

    monkeypatch.setattr(measured, "build_more", first_fails)
    told = []
    for comment in ("# one\n", "# two\n"):
        with run.session("manual", lambda: False) as session:
            text = (source(ROWS) + comment).encode()
            told.append(session.evaluate(Proposal("Take two rows", "", {KERNEL: text})))
    assert [a.status for a in told] == [Status.BUILD_FAILED, Status.ACCEPTED]
    assert told[0].trailers["Beyond"] == "yes"
