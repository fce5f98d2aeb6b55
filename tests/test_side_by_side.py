"""Several candidates of one run in hand at once: real builds and commits, a simulated GPU."""

import os
import signal
import threading
import time

import pytest

from avo_cute.budget import Budget
from avo_cute.errors import MachineFailed
from avo_cute.evolve import Limits, evolve
from avo_cute.measure.request import Result
from avo_cute.operators import Proposal
from avo_cute.records import Status

from .conftest import KERNEL, kernel_source
from .simulated_rig import BYPASS, EDITS, LOADS, PATIENCE_S, ROWS, STREAM, SimulatedRig


@pytest.fixture
def start(begin_run, libraries, tmp_path):
    """start(rig, speeds, names) -> a run of width 2, its operator, and what it says."""

    def make(rig, speeds, names, width=2):
        known = {libraries[name]: speed for name, speed in speeds.items()}
        rig.speed = lambda library: known.get(library, 1.0)
        return begin_run(tmp_path / "lineage.git", rig, names, width)

    return make


def is_of(request, library) -> bool:
    """Whether a process judges this candidate at the level that accepts."""
    last = not any(p.role == "correctness-only" for p in request.points)
    return last and request.kernels["candidate"]["softmax-2k"] == library


def sound(run):
    """What holds of every run's history, whatever happened."""
    attempts = run.lineage.attempts("r")
    assert [a.number for a in attempts] == list(range(len(attempts))), "every number once"
    accepted = [a for a in attempts if a.status is Status.ACCEPTED]
    parents = [run.lineage.seed("softmax"), *(a.commit for a in accepted)]
    assert [a.parent for a in accepted] == parents[:-1], "accepted ones stand on each other"
    assert run.lineage.head("r") == parents[-1]
    assert len(run.lineage.repo.refs("refs/attempts/r")) == len(attempts) - len(accepted)
    return {a.subject.partition("] ")[2]: a for a in attempts if a.number}


def overtaking(rig, events, slow):
    """The candidate in library `slow` waits with its last process until another was recorded."""

    def during(request):
        if is_of(request, slow) and not events.attempts:
            events.wait(lambda e: e.attempts)

    rig.during = during


def test_two_are_in_hand_at_once(start, libraries):
    rig, together = SimulatedRig(), threading.Barrier(2, timeout=PATIENCE_S)
    run, operator, _ = start(rig, {ROWS: 0.9, LOADS: 0.9}, [ROWS, LOADS])
    mine = {libraries[ROWS], libraries[LOADS]}

    def during(request):
        if request.kernels["candidate"]["softmax-2k"] in mine:
            together.wait()  # passes only while both are being measured

    rig.during = during
    assert evolve(run, operator, Limits()).startswith("nothing left")
    found = sound(run)
    assert {a.status for a in found.values()} == {Status.REJECTED} and len(found) == 2
    assert rig.closed == 1


def test_one_that_was_overtaken_is_judged_again_and_refused(start, libraries):
    rig = SimulatedRig()
    run, operator, events = start(rig, {ROWS: 1.04, LOADS: 1.02}, [ROWS, LOADS])
    overtaking(rig, events, libraries[LOADS])
    evolve(run, operator, Limits(Budget(attempts=2)))
    found = sound(run)
    assert found[ROWS].status is Status.ACCEPTED
    assert found[LOADS].status is Status.REJECTED, found[LOADS].body
    assert 0.97 < found[LOADS].gain < 0.99, "against the new incumbent"
    told = found[LOADS].trailers
    assert told["Against"] == found[ROWS].commit != found[LOADS].parent
    assert "Gains" not in told, "those speak of the parent"
    assert "Against" not in found[ROWS].trailers and "Gains" in found[ROWS].trailers
    again = [r for r in rig.asked if r.kernels["candidate"]["softmax-2k"] == libraries[LOADS]]
    assert {r.kernels["incumbent"]["softmax-2k"] for r in again} > {libraries[ROWS]}


def test_one_that_is_better_still_stands_on_the_new_incumbent(start, libraries):
    rig = SimulatedRig()
    run, operator, events = start(rig, {ROWS: 1.02, LOADS: 1.05}, [ROWS, LOADS])
    overtaking(rig, events, libraries[LOADS])
    evolve(run, operator, Limits(Budget(attempts=2)))
    found = sound(run)
    assert found[ROWS].status is found[LOADS].status is Status.ACCEPTED
    assert found[LOADS].parent == found[ROWS].commit
    assert 1.02 < found[LOADS].gain < 1.04 and 1.04 < found[LOADS].score < 1.06
    assert f"Rested on {found[ROWS].commit[:10]}" in found[LOADS].body
    assert run.standing.score == pytest.approx(found[LOADS].score, abs=1e-6)


def test_the_same_objects_twice_at_once_get_one_verdict(start, libraries):
    """The second would be accepted too, and is not better than itself."""
    rig = SimulatedRig()
    run, operator, _ = start(rig, {ROWS: 1.04}, [ROWS, f"{ROWS} #2"])
    met = threading.Barrier(2, timeout=PATIENCE_S)
    count = iter(range(100))

    def during(request):
        if request.kernels["candidate"]["softmax-2k"] == libraries[ROWS] and next(count) < 2:
            met.wait()

    rig.during = during
    evolve(run, operator, Limits(Budget(attempts=2)))
    sound(run)
    statuses = sorted(a.status for a in run.lineage.attempts("r") if a.number)
    assert statuses == [Status.ACCEPTED, Status.NO_CHANGE]


def test_no_more_are_begun_than_were_asked_for(start):
    """The count is taken when a candidate is, not when a thread comes to it."""
    run, operator, _ = start(SimulatedRig(), {}, list(EDITS), width=4)
    assert evolve(run, operator, Limits(Budget(attempts=1))) == "1 attempt done"
    assert len(sound(run)) == 1


def test_a_failing_machine_ends_the_run_and_loses_nothing_that_ended(start, libraries):
    rig = SimulatedRig()
    run, operator, events = start(rig, {ROWS: 1.04}, [ROWS, LOADS, BYPASS])

    def during(request):
        if request.kernels["candidate"]["softmax-2k"] == libraries[LOADS]:
            raise MachineFailed("the GPU fell off the bus")
        if is_of(request, libraries[ROWS]):
            events.wait(lambda e: len(rig.asked) > 2)  # while the other one fails

    rig.during = during
    with pytest.raises(MachineFailed, match="off the bus"):
        evolve(run, operator, Limits())
    found = sound(run)
    assert found[ROWS].status is Status.ACCEPTED and LOADS not in found
    assert run.lineage.repo.refs("refs/sessions/r"), "what was tried is kept"
    tried = [r for r in rig.asked if r.kernels["candidate"]["softmax-2k"] == libraries[LOADS]]
    assert len(tried) == 2, "a machine gets a second chance, then the run ends"
    assert rig.closed == 1


def test_a_void_measurement_is_no_verdict_on_the_objects(start, libraries):
    rig = SimulatedRig(endings={})
    run, operator, _ = start(rig, {ROWS: 1.04}, [ROWS, f"{ROWS} #2"], width=1)
    bad = Result(status=Status.INFRA_ERROR, reason="clocks apart")
    first = []

    def during(request):
        if request.kernels["candidate"]["softmax-2k"] == libraries[ROWS] and not first:
            first.append(len(rig.asked))
            rig.endings[len(rig.asked)] = bad

    rig.during = during
    evolve(run, operator, Limits(Budget(attempts=2)))
    statuses = [a.status for a in run.lineage.attempts("r") if a.number]
    assert statuses == [Status.INFRA_ERROR, Status.ACCEPTED], "it is measured again"


def test_ctrl_c_once_finishes_what_is_in_hand(start, libraries):
    rig = SimulatedRig()
    run, operator, events = start(rig, {}, [ROWS, LOADS, BYPASS, STREAM])

    def during(request):
        if request.kernels["candidate"]["softmax-2k"] in libraries.values() and not rig.closed:
            pressed.wait(PATIENCE_S)

    rig.during, pressed = during, threading.Event()

    def press():
        events.wait(lambda e: sum(p.startswith("evaluating") for p in e.phases) == 2)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        pressed.set()

    thread = threading.Thread(target=press)
    thread.start()
    ended = evolve(run, operator, Limits())
    thread.join()
    assert ended.startswith("interrupted")
    assert set(sound(run)) == {ROWS, LOADS}


def test_ctrl_c_twice_stops_children_and_records_nothing_of_them(start, libraries):
    """A build that was killed is no crash of its candidate."""
    slow = "\nimport time\ntime.sleep(60)\n"
    rig = SimulatedRig()
    run, operator, events = start(rig, {}, [])
    texts = [kernel_source() + slow + f"# {n}\n" for n in range(2)]
    operator._proposer.propose = lambda parent, history: (
        Proposal("Sleep", "", {KERNEL: texts.pop().encode()}) if texts else None
    )

    pressed = []

    def press():
        events.wait(lambda e: sum(p.startswith("evaluating") for p in e.phases) == 2)
        time.sleep(1.0)
        for _ in range(2):
            time.sleep(0.2)
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        evolve(run, operator, Limits())
    assert time.monotonic() - pressed[1] < 2
    thread.join()
    assert sound(run) == {}
