"""The single-turn operator: one question, one answer, one change or none."""

import random
import re

import pytest

from avo_cute.errors import BadInput, Exhausted
from avo_cute.model import Reply, Turn, Usage
from avo_cute.operators.single import CHANGE_CHARACTERS, IDLE, SingleTurn, proposal, sampled
from avo_cute.records import Attempt, Status
from avo_cute.session import SESSION_ATTEMPTS

from ..agents import Office, begun_run
from ..conftest import KERNEL
from ..messages_server import Answer, Thinking, in_turn, overloaded, texts, tier_spent

FILES = {"a.py": b"one\ntwo\ntwo\n", "b/c.py": b"three\n", "README": b"four\n"}
EDITABLE = ("*.py", "b/*.py")


@pytest.fixture
def office(softmax_bench, tmp_path, monkeypatch):
    return Office(begun_run(softmax_bench, tmp_path), monkeypatch)


def work(office, agent, seed=0, **how):
    return office.work(agent, lambda model: SingleTurn(model, seed), **how)


def block(path, old, new):
    return f"FILE {path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


ROW = """    4096: {
        "threads_per_row": 128,
        "rows_per_cta": 1,
        "vector": 8,"""
WHY = "Subject: {}\nHypothesis: Fewer bytes.\nPrediction: All gain 1 %.\n\n"


def change(number):
    """An answer that sets the short rows' vector to a width of its own."""
    return WHY.format(f"Try {number}") + block(KERNEL, ROW, ROW.replace(": 8,", f": {number},"))


# In a session.


def test_a_usable_answer_becomes_an_attempt(office):
    session = work(office, in_turn(Answer(Thinking(), change(4))))
    (attempt,) = session.tried
    assert attempt.status == "accepted" and attempt.gain > 1
    assert attempt.subject == "[CuTe,Softmax,Sm100] Try 4"
    assert attempt.body.startswith(" Hypothesis: Fewer bytes.\n\n Prediction: All gain 1 %.")
    assert attempt.trailers["Operator"] == "single-turn claude-opus-5-5"
    assert '"vector": 4' in session.version("1")[KERNEL].decode()
    assert len(office.requests) == 1
    office.assert_counted()


def test_the_question_has_the_source_and_no_tools(office):
    def agent(request):
        assert "tools" not in request or request["tools"] == []
        assert "Row softmax" in request["system"][0]["text"]
        (asked,) = texts(request)
        _, _, after = asked.partition(f'FILE {KERNEL}\n<data from="source">\n')
        assert ROW in after.partition("\n</data>")[0]
        return Answer(change(4))

    work(office, agent)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer("I would load less."), "no SEARCH/REPLACE block"),
        (Answer(""), "no SEARCH/REPLACE block"),
        (Answer(), "no SEARCH/REPLACE block"),
        (Answer(Thinking()), "no SEARCH/REPLACE block"),
        (Answer(block(KERNEL, '        "vector": 8,', "x")), "occurs 2 times in " + KERNEL),
        (Answer(block(KERNEL, "nowhere", "x")), "occurs 0 times in " + KERNEL),
        (Answer(block("other.py", ROW, "x")), "'other.py' is no file of the candidate"),
        (Answer(block("../seed.py", ROW, "x")), "is no file of the candidate"),
        (Answer(change(4), stop="max_tokens"), "ended with max_tokens"),
        (Answer(change(4)[:-20], stop="max_tokens"), "ended with max_tokens"),
        (Answer(change(4)[:-20]), "no SEARCH/REPLACE block"),
        (Answer("No.", stop="refusal", refusal=("cyber", "odd")), "ended with refusal"),
    ],
    ids=range(12),
)
def test_an_unusable_answer_changes_nothing_and_is_paid_for(office, answer, why):
    session = work(office, lambda request: answer)
    assert len(office.requests) == IDLE, "so many in a row end the session"
    assert not session.tried and not session.over()
    reasons = [text for name, text in office.files.items() if name.endswith("-unusable.txt")]
    assert "unjudged.patch" not in office.files
    assert len(reasons) == IDLE and all(why in reason for reason in reasons)
    office.assert_counted()


def test_a_usable_answer_begins_the_count_again(office):
    no, yes = Answer("Hm."), Answer(change(8).replace("8,\n>", "8, # x\n>"))
    session = work(office, in_turn(no, no, yes, no, no, no))
    assert len(office.requests) == 6 and len(session.tried) == 1
    assert session.tried[0].status == "no-change"


def test_each_answer_is_a_change_of_the_parent_and_not_of_the_answer_before(office):
    def agent(request):
        number = len(office.requests)
        line = f"# {number}\n"
        old = '"""Row softmax'
        first = office.session.parent.files[KERNEL].decode().splitlines()[0]
        assert "# 1" not in texts(request)[0].partition("An earlier change")[0], old
        return Answer(WHY.format(f"Line {number}") + block(KERNEL, first, line + first))

    session = work(office, agent, stop=lambda: len(office.requests) >= 3)
    texts_ = [session.version(str(n))[KERNEL].decode() for n in (1, 2, 3)]
    assert [[f"# {n}\n" in text for n in (1, 2, 3)] for text in texts_] == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]


def test_a_session_ends_after_so_many_attempts(office):
    def agent(request):
        first = office.session.parent.files[KERNEL].decode().splitlines()[0]
        return Answer(block(KERNEL, first, f"# {len(office.requests)}\n{first}"))

    session = work(office, agent)
    assert len(session.tried) == len(office.requests) == SESSION_ATTEMPTS
    assert session.tried[0].subject.endswith("Change softmax.py")


def test_earlier_changes_are_shown_and_the_same_ones_for_the_same_seed(
    softmax_bench, tmp_path, monkeypatch
):
    asked = []
    for n, seed in enumerate((7, 7, 8)):
        folder = tmp_path / str(n)
        folder.mkdir()
        office = Office(begun_run(softmax_bench, folder), monkeypatch)

        def agent(request, office=office):
            first = office.session.parent.files[KERNEL].decode().splitlines()[0]
            return Answer(block(KERNEL, first, f"# {len(office.requests)} </data>\n{first}"))

        work(office, agent, seed, stop=lambda office=office: len(office.requests) >= 9)
        asked.append([texts(request)[0] for request in office.requests])
    for prompts in asked:
        assert "An earlier change" not in prompts[0]
        assert prompts[-1].count("An earlier change (no-change, score 1.0000):\n<data ") == 3
        assert prompts[-1].count("</data>") == 2 + 3, "a change cannot close its mark"
    assert asked[0] == asked[1] != asked[2]
    shown = [turn["shown"] for turn in office.turns]
    assert shown[0] == [] and len(set(shown[-1])) == 3 and max(shown[-1]) <= 8


def test_an_overload_is_borne_and_a_spent_quota_ends_the_session(office):
    bad = Answer("Hm.")
    with pytest.raises(Exhausted):
        work(office, in_turn(overloaded(), bad, tier_spent()))
    assert len(office.requests) == 3 and len(office.turns) == 1
    office.assert_counted()


def test_a_session_that_must_stop_asks_nothing(office):
    work(office, in_turn(), stop=lambda: True)
    assert not office.requests


# What an answer says.


def reply(text, stop="end_turn"):
    return Reply(stop, text, (), Usage(), Turn("assistant", ()))


def test_blocks_of_several_files_and_several_of_one_file():
    text = block("a.py", "one", "1") + "and\n" + block("b/c.py", "three", "3")
    text += block("a.py", "two\ntwo", "2").removeprefix("FILE a.py\n").join(["FILE a.py\n", ""])
    made = proposal(reply(text), FILES, EDITABLE)
    assert made.files == {"a.py": b"1\n2\n", "b/c.py": b"3\n"}
    assert made.subject == "Change a.py, c.py" and made.body == ""


def test_a_second_block_may_go_without_the_name_of_its_file():
    text = block("a.py", "one", "1") + block("a.py", "two\ntwo", "2").partition("\n")[2]
    assert proposal(reply(text), FILES, EDITABLE).files == {"a.py": b"1\n2\n"}


def test_a_text_may_be_deleted_down_to_the_last_line():
    text = block("b/c.py", "three", "x").replace("x\n>", ">")
    assert proposal(reply(text), FILES, EDITABLE).files == {"b/c.py": b""}
    with pytest.raises(BadInput, match="occurs 0 times"):
        proposal(reply(text + block("b/c.py", "three", "3")), FILES, EDITABLE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (block("README", "four", "4"), "'README' is no file of the candidate that may change"),
        (block("a.py", " ", "4"), "occurs 0 times"),
        (block("a.py", "", "4"), "occurs"),
        (block("a.py", "one", "1") + "<<<<<<< SEARCH\ntwo\n=======\n", "not complete"),
        (block("a.py", "one", "1").partition("\n")[2], "'' is no file"),
    ],
)
def test_what_cannot_be_used_is_said(text, why):
    with pytest.raises(BadInput, match=re.escape(why)):
        proposal(reply(text), FILES, EDITABLE)


def attempt(number, score):
    return Attempt(
        run="r",
        number=number,
        commit=f"{number:040}",
        tree="",
        parent="",
        status=Status.REJECTED,
        subject="",
        body="",
        trailers={},
        score=score,
        gain=None,
        when=0,
    )


def test_better_changes_are_drawn_more_often_and_none_twice():
    attempts = [attempt(0, 9.0), attempt(1, None), *(attempt(n, 1 + n / 100) for n in range(2, 9))]
    drawn = [sampled(attempts, random.Random(n)) for n in range(300)]
    numbers = [a.number for found in drawn for a in found]
    assert all(len({a.number for a in found}) == 3 for found in drawn)
    assert set(numbers) == set(range(2, 9)), "those with a score, and not the start of the run"
    assert numbers.count(8) > numbers.count(6) > numbers.count(3)
    assert sampled(attempts[:3], random.Random(0)) == [attempts[2]]
    assert sampled([], random.Random(0)) == []


def test_a_long_change_is_cut(office):
    def agent(request):
        first = office.session.parent.files[KERNEL].decode().splitlines()[0]
        return Answer(block(KERNEL, first, "# " + "long " * 4000 + f"\n{first}"))

    work(office, agent, stop=lambda: len(office.requests) >= 2)
    told = texts(office.requests[1])[0].partition("An earlier change")[2]
    assert 0.9 * CHANGE_CHARACTERS < len(told) < 1.1 * CHANGE_CHARACTERS
