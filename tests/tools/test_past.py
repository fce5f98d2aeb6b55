"""The lineage's tools over a run with a past, and those of the knowledge base."""

import pytest

from avo_cute.transcripts import NOTES, read, sessions

from ..simulated_rig import LOADS, ROWS
from .conftest import Base, Bench
from .test_files import quoted_part


def lines_of(text):
    return quoted_part(text).splitlines()


def test_the_log_tells_every_attempt_newest_first(use):
    numbers = [int(line.partition(" ")[0][1:]) for line in lines_of(use("lineage_log"))]
    assert numbers == sorted(numbers, reverse=True) and numbers[-1] == 0
    tail = lines_of(use("lineage_log", before=4))
    assert [line.partition(" |")[0] for line in tail] == [
        "#3 accepted 1.0018 +0.18%",
        "#2 build-failed",
        "#1 rejected 0.9978 -0.22%",
        "#0 no-change 1.0000 +0.00%",
    ]
    assert ROWS in tail[2] and "| rejected: -0.22%" in tail[2]


def test_the_log_of_one_status(use):
    (line,) = lines_of(use("lineage_log", status="accepted"))
    assert line.startswith("#3 accepted")
    assert use("lineage_log", status="crashed") == "no such attempts"
    text = use.refused("lineage_log", status="lost")
    assert "'lost'" in text and "build-failed" in text


def test_an_attempt_is_shown_whole(use):
    text = quoted_part(use("lineage_show", rev="1"))
    assert text.startswith(f"[CuTe,Softmax,Sm100] {ROWS}\n\n Hypothesis: Fewer waits.")
    assert "What was seen: rejected" in text and text.splitlines()[-1].startswith("Session: ")
    assert LOADS in use("lineage_show", rev="best") == use("lineage_show", rev="parent")
    assert "Upstream: " in use("lineage_show", rev="seed/softmax")


def test_a_diff_is_against_what_the_attempt_started_from(use):
    text = quoted_part(use("lineage_diff", rev="1"))
    assert "-    " in text and '"rows_per_cta": 2' in text and '"vector"' not in added(text)
    both = added(quoted_part(use("lineage_diff", rev="3", against="1")))
    assert '"vector": 4' in both and '"rows_per_cta": 1' in both
    assert use("lineage_diff", rev="3", against="best") == "the two have the same source"
    assert "new file mode" in use("lineage_diff", rev="seed/softmax")


def added(diff):
    return "\n".join(line for line in diff.splitlines() if line.startswith("+"))


def test_messages_and_changes_of_failed_attempts_are_found(use):
    assert lines_of(use("lineage_search", text="two ROWS"))[-1].startswith("r #1 ")
    found = use("lineage_search", text='"rows_per_cta": 2', where="changes")
    assert [line.partition(" |")[0] for line in lines_of(found)] == ["r #1 rejected 0.9978 -0.22%"]
    found = lines_of(use("lineage_search", text="def broken(:", where="changes"))
    assert any(line.startswith("r #2 build-failed") for line in found)
    assert use("lineage_search", text="never said by anybody") == "no such attempts"
    assert use("lineage_search", text="cute", where="changes")


ODD = ["--output=x", "-S", "--all", "^HEAD", "..", "HEAD...", ".*", "a\nb", "é'\"\\", "x" * 200]


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("where", ["messages", "changes"])
def test_a_search_takes_a_text_as_it_is(use, run, text, where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = use.tools.use("lineage_search", {"text": text, "where": where})
    assert not answer.error, answer.text
    assert not list(tmp_path.iterdir()) and not (run.lineage.path / "x").exists()


@pytest.mark.parametrize("name", ["lineage_show", "lineage_diff"])
@pytest.mark.parametrize(
    "rev",
    ["999", "--output=x", "-1", "^HEAD", "best..HEAD", "HEAD:row_softmax", "x" * 200, "@{-1}"],
)
def test_a_revision_that_is_none(use, run, name, rev, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no revision" in use.refused(name, rev=rev)
    assert not list(tmp_path.iterdir()) and not (run.lineage.path / "x").exists()


def test_without_a_knowledge_base_nothing_is_offered(use):
    assert "knowledge_search" not in use.tools.names
    assert "there is no tool 'knowledge_search'" in use.refused("knowledge_search", query="waits")


def test_a_knowledge_base_is_searched_and_read(run):
    with run.session("tests", lambda: False) as session:
        use = Bench(session, Base())
        lines = lines_of(use("knowledge_search", query="barriers"))
        assert lines[:2] == ["[p0] notes: On barriers", "    Barriers cost a wait."]
        assert "nothing found" in use("knowledge_search", query="nothing")
        assert quoted_part(use("knowledge_read", passage="p0")) == "Barriers cost a wait."
        assert "'p9'" in use.refused("knowledge_read", passage="p9")


def test_a_note_is_in_git_at_once(run):
    with run.session("tests", lambda: False) as session:
        use = Bench(session)
        assert use("note", text="Narrow loads help.") == "noted"
        use("note", text="  Two rows do not.\nThe registers.  ")
        kept = next(k for k in sessions(run.lineage.repo, "r") if k.number == session.number)
        text = read(run.lineage.repo, kept, NOTES)
    assert text == "* Narrow loads help.\n\n* Two rows do not.\nThe registers.\n"
