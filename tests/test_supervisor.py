"""The supervisor: it rings when a run goes in circles, only then, and says nothing twice."""

import random
import time
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avo_cute.catalogue import Direction
from avo_cute.errors import BadRequest, Exhausted, ModelFailed, UnknownModel, WrongKey
from avo_cute.memory import Note
from avo_cute.model import Anthropic, Ask, Patience, Reply, Turn
from avo_cute.records import Attempt, Status, Usage
from avo_cute.supervisor import DIRECTIONS, MOST, Supervisor, alarm, answered
from avo_cute.supervisor.alarms import RETURNS, SAME_ARTIFACT, SAME_FAILURE, SAME_REASON, STALLED
from avo_cute.trailers import compose, parse

from .messages_server import Answer, Fault, credit_spent, serving

QUICK = Patience(tries=2, first_s=0.01, longest_s=0.02, asked_s=2.0, silence_s=5.0)
FAILED = [
    Status.BUILD_FAILED,
    Status.AUDIT_FAILED,
    Status.INCORRECT,
    Status.CRASHED,
    Status.TIMED_OUT,
    Status.NO_CHANGE,
]
ENDED = [*FAILED, Status.REJECTED, Status.EQUAL]
ROOM = min(STALLED, SAME_FAILURE, SAME_REASON, SAME_ARTIFACT, RETURNS + 2)


def attempt(number, status=Status.REJECTED, artifact="", reason="", subject="Try it", **trailers):
    told = {key.replace("_", "-"): value for key, value in trailers.items()}
    if artifact:
        told["Artifact"] = artifact
    gain = 0.999 if status is Status.REJECTED else None
    body = f"Why.\n\nWhat was seen: {status}: {reason or f'reason {chr(97 + number % 26)}'}"
    tree = artifact or f"tree {number}"
    return Attempt(f"c{number}", tree, "p", "r", number, status, subject, body, 0, told, 1.0, gain)


def mixed(numbers):
    """Attempts that failed, each in its own way and each another version."""
    return [attempt(n, ENDED[n % len(ENDED)], f"artifact {n}") for n in numbers]


START = attempt(0, Status.NO_CHANGE, "start")


# When it rings.


@given(
    statuses=st.lists(st.sampled_from(ENDED), max_size=200),
    artifacts=st.integers(1, 3),
    since=st.integers(0, 50),
)
def test_no_alarm_on_a_run_that_makes_progress(statuses, artifacts, since):
    run = [START]
    for status in statuses:
        number = len(run)
        status = Status.ACCEPTED if number % ROOM == 0 else status
        run.append(attempt(number, status, f"artifact {number % artifacts}", "the same"))
    for n in range(len(run) + 1):
        assert alarm(run[:n], since) is None


def test_no_alarm_while_attempts_differ_and_a_mark_comes_in_time():
    run = [START]
    for _ in range(4):
        run += mixed(range(len(run), len(run) + STALLED - 1))
        assert alarm(run) is None
        run.append(attempt(len(run), Status.ACCEPTED, "new", f"{len(run)}"))
    assert alarm(run) is None


def test_stalled():
    run = [START, *mixed(range(1, 6)), attempt(6, Status.ACCEPTED)]
    run += mixed(range(7, 7 + STALLED))
    assert alarm(run[:-1]) is None
    found = alarm(run)
    assert found.kind == "stalled"
    assert found.attempts == tuple(range(7, 7 + STALLED))
    assert found.text == f"no new high-water mark in the last {STALLED} attempts"


@pytest.mark.parametrize("status", FAILED)
def test_the_same_failure_again_and_again(status):
    run = [*mixed(range(1, 9)), attempt(9, Status.EQUAL)]
    run += [
        attempt(n, status, reason=f"reason {chr(n + 90)}") for n in range(10, 10 + SAME_FAILURE)
    ]
    assert alarm(run[:-1]) is None
    found = alarm(run)
    assert found.kind == "same-failure"
    assert found.attempts == tuple(range(10, 10 + SAME_FAILURE))
    assert found.text == f"the last {SAME_FAILURE} attempts all ended {status}"


def test_the_same_reason_again_and_again_whatever_its_numbers():
    run = [attempt(1, Status.EQUAL)]
    run += [
        attempt(n, Status.BUILD_FAILED, reason=f"{n} registers at 0x{n:x}")
        for n in range(2, 2 + SAME_REASON)
    ]
    assert alarm(run[:-1]) is None
    found = alarm(run)
    assert (found.kind, len(found.attempts)) == ("same-failure", SAME_REASON)
    assert found.text.endswith("for the same reason")
    assert alarm([*run, attempt(99, Status.EQUAL)]) is None  # it is over


def test_correct_and_not_better_is_no_failure():
    run = [attempt(n, Status.REJECTED, reason="slower") for n in range(1, STALLED)]
    assert alarm(run) is None


def test_the_same_machine_code_again():
    run = [attempt(n, Status.EQUAL, "same" if n % 4 == 1 else f"a{n}") for n in range(1, 14)]
    assert alarm(run[:-1]) is None
    # back to it each time is oscillation too, once it comes so often
    found = alarm(run)
    assert (found.kind, found.attempts) == ("same-artifact", (1, 5, 9, 13))
    again = [attempt(n, Status.NO_CHANGE, "same") for n in range(1, SAME_ARTIFACT + 1)]
    assert alarm(again[:-1]) is None
    assert alarm(again).kind == "same-artifact"
    staying = [attempt(n, Status.EQUAL, "same") for n in range(1, 3 * RETURNS)]
    assert alarm(staying).kind == "same-artifact"  # nothing was left and come back to


def test_back_and_forth():
    run = [attempt(n, Status.EQUAL, "ab"[n % 2]) for n in range(1, RETURNS + 3)]
    assert alarm(run[:-1]) is None
    found = alarm(run)
    assert (found.kind, found.attempts) == ("oscillation", tuple(range(3, RETURNS + 3)))
    assert found.text.endswith("went back to one of 2 versions")
    broken = [replace(a, trailers={}, status=Status.BUILD_FAILED, body="") for a in run]
    assert alarm(broken).kind == "oscillation"  # by their trees


@given(st.lists(st.sampled_from([Status.INFRA_ERROR, *FAILED]), max_size=30))
def test_what_the_machine_did_is_no_evidence(statuses):
    run = [attempt(n, s, reason="the same") for n, s in enumerate(statuses, 1)]
    heard = [a for a in run if a.status is not Status.INFRA_ERROR]
    assert alarm(run) == alarm(heard)
    assert alarm([attempt(n, Status.INFRA_ERROR) for n in range(1, 100)]) is None


@given(
    st.lists(st.tuples(st.sampled_from(Status), st.sampled_from("abc"), st.sampled_from("xy"))),
    st.integers(0, 40),
)
def test_an_alarm_is_a_function_of_the_run_alone(rows, since):
    run = [attempt(n, *row) for n, row in enumerate(rows, 1)]
    found = alarm(run, since)
    assert found == alarm(list(run), since)
    if found:
        assert found.attempts == tuple(sorted(found.attempts))
        assert since < found.attempts[0] and found.attempts[-1] <= len(run)
        last = max((a.number for a in run if a.status is Status.ACCEPTED), default=0)
        assert found.attempts[0] > last


def test_numbers_that_cannot_be_read_stop_nothing():
    run = [replace(a, number=-1) for a in mixed(range(1, 1 + STALLED))]
    assert alarm(run, 0).kind == "stalled"


# Once for a situation.


def test_a_situation_rings_once():
    run = [START, *mixed(range(1, 1 + STALLED))]
    given_ = directive(run)
    assert given_.kind == "stalled"
    run += [replace(a, trailers={**a.trailers, "Directive": given_.trailer, "Session": "4"})
            for a in mixed(range(len(run), len(run) + 16))]  # fmt: skip
    assert alarm(run, 0) is not None
    assert answered(run) == STALLED + 16
    assert alarm(run, answered(run)) is None
    run += mixed(range(len(run), len(run) + STALLED - 1))
    assert alarm(run, answered(run)) is None
    run += mixed(range(len(run), len(run) + 1))
    again = alarm(run, answered(run))
    assert (again.kind, again.attempts[0]) == ("stalled", STALLED + 17)


def test_a_directive_whose_session_made_no_attempt_was_given_all_the_same():
    run = [
        replace(a, trailers={**a.trailers, "Session": "1"}) for a in mixed(range(1, 1 + STALLED))
    ]
    assert answered(run, {1: {"Operator": "agent"}}) == 0
    sessions = {1: {}, 2: {"Directive": "stalled: ex2-emulation", "Tokens": "in=5"}}
    assert alarm(run, answered(run, sessions)) is None
    later = [attempt(900, Status.EQUAL, Session="3"), attempt(901, Status.EQUAL)]
    assert answered([*run, *later], sessions) == STALLED
    assert answered([]) == 0


def test_nothing_is_wrong_and_nothing_is_asked():
    model, bill = Scripted([]), Bill()
    assert Supervisor(model, CATALOGUE).look([START, *mixed(range(1, STALLED))], bill) is None
    assert Supervisor(model, CATALOGUE).look([], bill) is None
    assert not model.asked and not bill


def test_a_supervisor_knows_what_it_gave_though_nothing_came_of_it(stalled):
    supervisor = Supervisor(None, CATALOGUE)
    first = supervisor.look(stalled, Bill())
    assert supervisor.look(stalled, Bill()) is None
    assert supervisor.look(stalled + later(stalled, 1)[:-1], Bill()) is None
    again = supervisor.look(stalled + later(stalled, 1), Bill())
    assert again.kind == "stalled" and f"attempts {STALLED + 1} to {2 * STALLED}" in again.text
    assert len(again.names) == DIRECTIONS and not set(again.names) & set(first.names)


# What it says.

CATALOGUE = tuple(
    Direction(name, name.replace("-", " ").title(), f"Mechanism of {name}.", "Some room.", "+1 %",
              "AVO", "softmax.py", "Edit it.", ("sm100",))
    for name in ("branchless-rescale", "correction-overlap", "ex2-emulation", "lpt-schedule",
                 "two-cta", "register-shift")
)  # fmt: skip


@dataclass
class Scripted:
    """A model that answers with what it was given, errors included."""

    answers: list
    name: str = "scripted"
    asked: list[Ask] = field(default_factory=list)

    def reply(self, ask: Ask) -> Reply:
        self.asked.append(ask)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Reply("end_turn", answer, (), Usage(1000, 50), Turn("assistant", ()))


def said(*names):
    return "\n\n".join(
        f"Direction: {n}\nWhy: because of {n}.\nHow: begin at {n}.\nExpect: +1 % of {n}."
        for n in names
    )


class Bill(list):
    """What was spent: (model, usage) of each answer."""

    def __call__(self, name, usage):
        self.append((name, usage))


def directive(run, model=None, sessions=None, bill=None, notes=()):
    """What a supervisor says that has just been started."""
    spend = Bill() if bill is None else bill
    return Supervisor(model, CATALOGUE, "Attention").look(run, spend, sessions, notes)


def later(run, session):
    """As many attempts more as it takes to stall again."""
    first = run[-1].number + 1
    more = mixed(range(first, first + STALLED))
    return [replace(a, trailers={**a.trailers, "Session": str(session)}) for a in more]


@pytest.fixture
def stalled():
    return [START, *mixed(range(1, 1 + STALLED))]


def test_without_a_model_the_catalogue_gives_several_that_nobody_tried(stalled):
    stalled[5] = replace(stalled[5], subject="[CuTe] Branchless rescale of the row sum")
    found = directive(stalled)
    assert (found.kind, found.source) == ("stalled", "catalogue")
    assert found.names == ("correction-overlap", "ex2-emulation", "lpt-schedule")
    assert found.text.startswith(
        f"The supervisor looked at this run: no new high-water mark in the last {STALLED} attempts "
        f"(attempts 1 to {STALLED}). Leave the line of work"
    )
    assert (
        "\n1. correction-overlap: Correction Overlap. Mechanism of correction-overlap. Needs: "
        in (found.text)
    )
    assert "Published: +1 % (AVO)" in found.text
    assert found == directive(stalled)


def test_a_model_reviews_the_record_and_says_where_to_go(stalled):
    model = Scripted([said("split-the-row", "two-stages", "fuse-the-tail", "longer-tiles")])
    bill = Bill()
    found = directive(stalled, model, bill=bill, notes=[Note(3, "the fence is needed")])
    assert found.source == "model"
    assert bill == [("scripted", Usage(1000, 50))]
    assert found.names == ("split-the-row", "two-stages", "fuse-the-tail", "longer-tiles")
    assert "1. split-the-row: because of split-the-row. How: begin at split-the-row." in found.text
    (ask,) = model.asked
    assert ask.system.startswith("You supervise") and "Attention" in ask.system
    (turn,) = ask.turns
    text = turn.content[0]["text"]
    assert text.startswith(f"no new high-water mark in the last {STALLED} attempts")
    assert "Try it" in text and "the fence is needed" in text and "two-cta" in text
    assert len(text) < 45_000
    assert not ask.tools


def test_nothing_is_given_twice(stalled):
    sessions, names = {}, []
    for n in range(1, 40):
        run = stalled + [replace(a, gain=None) for a in later(stalled, n)]  # no near miss
        found = directive(run, sessions=sessions)
        names += found.names
        message = compose("Transcript", "", {"Run": "r", "Directive": found.trailer})
        sessions[n] = parse(message)[2]
        stalled = [replace(a, trailers={**a.trailers, "Session": str(n)}) for a in run]
    assert len(set(names)) == len(names)
    assert set(names) >= {d.name for d in CATALOGUE}
    assert any(name.startswith("revisit-") for name in names)
    assert found.names == () and "begin with the profile" in found.text
    assert found.trailer == "stalled"


def test_what_a_model_repeats_is_left_out_and_made_up_for(stalled):
    stalled[7] = replace(stalled[7], body="Hypothesis: fuse_the tail.\n\nWhat was seen: equal: no")
    stalled[8] = replace(stalled[8], trailers={"Directive": "stalled: two-stages, x"})
    model = Scripted([said("Two Stages", "fuse-the-tail", "new-one", "New_One", "ex2-emulation")])
    found = directive([*stalled, *later(stalled, 1)], model)
    assert found.names == ("new-one", "ex2-emulation", "branchless-rescale")
    assert found.source == "model"
    asked = model.asked[0].turns[0].content[0]["text"]
    assert "Directions given before: <data" in asked and "two-stages" in asked


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I would leave it.",
        "Direction: half\nWhy: it was cut\nHow: in the mid",
        ModelFailed("the API was silent", Usage(1000, 50)),
        BadRequest("the prompt is too long", Usage(1000, 50)),
    ],
)
def test_a_model_of_no_use_costs_what_it_costs_and_the_catalogue_answers(stalled, answer):
    bill = Bill()
    found = directive(stalled, Scripted([answer]), bill=bill)
    assert found.source == "catalogue"
    assert bill == [("scripted", Usage(1000, 50))]
    assert found.names == ("branchless-rescale", "correction-overlap", "ex2-emulation")


@pytest.mark.parametrize("error", [Exhausted, WrongKey, UnknownModel])
def test_what_the_run_cannot_go_on_with_is_not_hidden_and_not_free(stalled, error):
    bill = Bill()
    with pytest.raises(error):
        directive(stalled, Scripted([error("no", Usage(7, 0))]), bill=bill)
    assert bill == [("scripted", Usage(7, 0))]


@pytest.mark.parametrize("mark", ["**{}:** ", "- {}: ", "{}: ", "## {}: ", "__{}__: "])
def test_the_form_of_an_answer_is_read_with_some_patience(stalled, mark):
    fields = ("Direction", "Why", "How", "Expect")
    lines = [f"{mark.format(key)}words of {key}" for key in fields]
    found = directive(stalled, Scripted(["Here:\n\n" + "\n".join(lines) + "\n"]))
    assert found.names[0] == "words-of-direction"
    assert "words of Why How: words of How Expect: words of Expect" in found.text


def test_a_model_that_goes_on_and_on_is_cut(stalled):
    answer = said(*(f"n{n}-{'x' * 100}" for n in range(50))).replace("because", "because " * 5000)
    found = directive(stalled, Scripted([answer + "\x1b[31m"]))
    assert len(found.names) == MOST
    assert max(map(len, found.names)) <= 48
    assert len(found.text) < MOST * 1500 + 500
    assert "\x1b" not in found.text


def test_every_alarm_has_its_advice():
    runs = [
        mixed(range(1, 1 + STALLED)),
        [attempt(n, Status.CRASHED) for n in range(1, 1 + SAME_FAILURE)],
        [attempt(n, Status.NO_CHANGE, "same") for n in range(1, 1 + SAME_ARTIFACT)],
        [attempt(n, Status.EQUAL, "ab"[n % 2]) for n in range(1, 1 + RETURNS + 2)],
    ]
    found = [directive(run) for run in runs]
    assert [d.kind for d in found] == ["stalled", "same-failure", "same-artifact", "oscillation"]
    assert len({d.text.partition("Directions")[0].partition("). ")[2] for d in found}) == 4
    assert all(len(d.names) == DIRECTIONS for d in found)


def test_at_5000_attempts_it_is_quick():
    chance = random.Random(5)
    run = [
        attempt(n, chance.choice(ENDED), f"{n}", subject=f"Try {n % 40} of the barriers")
        for n in range(1, 5001)
    ]
    model = Scripted([said("a-b", "c-d", "e-f")])
    started = time.perf_counter()
    assert directive(run, model).source == "model"
    assert time.perf_counter() - started < 1


def test_an_answer_made_to_be_hard_to_read_is_read_quickly():
    hard = ["Direction: a" + " " * 30_000 + "\n" * 30_000, "_" * 60_000, "Direction: a\n" * 5000]
    run = [START, *mixed(range(1, 1 + STALLED))]
    started = time.perf_counter()
    assert {directive(run, Scripted([text])).source for text in hard} == {"catalogue"}
    assert time.perf_counter() - started < 2


@pytest.fixture
def over_http(monkeypatch):
    """`over_http(run, script)` is what a supervisor with a real client says, and its bill."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def ask(run, script, bill):
        with serving(script) as server:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            model = Anthropic("claude-opus-5-5", patience=QUICK)
            try:
                return directive(run, model, bill=bill)
            finally:
                model.close()

    return ask


def test_over_http(stalled, over_http):
    bill = Bill()
    answer = Answer(said("split-the-row", "two-stages", "fuse-the-tail"))
    found = over_http(stalled, lambda request: answer, bill)
    assert (found.source, found.names[0]) == ("model", "split-the-row")
    assert [name for name, _ in bill] == ["claude-opus-5-5"] and bill[0][1].output > 0
    found = over_http(stalled, lambda request: Fault(status=500), bill)
    assert (found.source, bill[1:]) == ("catalogue", [("claude-opus-5-5", Usage())])
    with pytest.raises(Exhausted):
        over_http(stalled, lambda request: credit_spent(), bill)
    assert bill[2:] == [("claude-opus-5-5", Usage())]
