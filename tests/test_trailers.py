"""Whatever subject and body say, git reads back exactly our trailers."""

import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from avo_cute.trailers import SUBJECT_LENGTH, compose, parse

SCISSORS = "# ------------------------ >8 ------------------------"
NASTY = [
    "---", "--- a/x", "----", "---\t", "diff --git a/x b/x", "diff -u", "Index: x", "Score: 99",
    "Score : 99", "Score:99", " Score: 99", "\tScore: 99", "Signed-off-by: a <b@c>", "#", "# x",
    SCISSORS, "; " + SCISSORS[2:], "From 0123 Mon Sep 17 00:00:00 2001", "From: x <x@y>",
    "(cherry picked from commit 0123)", "Conflicts:", "\tfile", "", " ", "\t", "\r", "a\rScore: 1",
    "x\u2028Score: 1", "x\x0bScore: 1", "x\x00y", "\x1b[31mred", "Übung: ja", "\u00a0---", "-- ",
    "http://x", "\ud800", "\u202egnp.exe",
]  # fmt: skip
WORDS = st.sampled_from(NASTY) | st.text(max_size=12)
TEXT = st.lists(WORDS, max_size=6).map("\n".join)
OURS = {"Run": "fa4-b200-20261130", "Attempt": "17", "Status": "rejected", "Score": "1.0312"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    path = tmp_path_factory.mktemp("trailers") / "x.git"
    subprocess.run(["git", "init", "-q", "--bare", path], check=True)
    return path


def git(bare, *arguments, text=""):
    env = {
        "GIT_DIR": str(bare), "GIT_CONFIG_GLOBAL": "/dev/null", "PATH": "/usr/bin:/bin",
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a",
    }  # fmt: skip
    done = subprocess.run(["git", *arguments], input=text.encode(), env=env, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def pairs(text):
    return dict(line.split(": ", 1) for line in text.splitlines())


@settings(max_examples=100, deadline=None)
@given(TEXT, TEXT)
@example("a", SCISSORS)
@example(SCISSORS, "x")
@example("---", "---")
@example("Score: 99", "Score: 99")
@example("a\n\nScore: 99", "b")
@example("x", "(cherry picked from commit 0)\nScore: 99\n\n\n")
def test_git_reads_exactly_our_trailers(bare, subject, body):
    message = compose(subject, body, OURS)
    assert pairs(git(bare, "interpret-trailers", "--parse", text=message)) == OURS
    tree = git(bare, "mktree").strip()
    commit = git(bare, "commit-tree", tree, text=message).strip()
    shown = git(bare, "log", "-1", "--format=%(trailers:only,unfold)", commit)
    assert pairs(shown.strip("\n")) == OURS
    form = "--format=%(trailers:key=Score,valueonly)"
    assert git(bare, "log", "-1", form, commit).strip("\n") == OURS["Score"]


@settings(max_examples=60, deadline=None)
@given(TEXT, TEXT)
def test_without_trailers_git_finds_none(bare, subject, body):
    message = compose(subject, body, {})
    assert git(bare, "interpret-trailers", "--parse", text=message) == ""


@given(TEXT, TEXT, st.dictionaries(st.sampled_from(["Run", "Gain", "X-1", "a"]), TEXT))
def test_parse_inverts_compose(subject, body, values):
    message = compose(subject, body, values)
    got_subject, got_body, got = parse(message)
    cleaned = {key: " ".join(value.split()) for key, value in got.items()}
    assert got == cleaned
    assert got.keys() <= values.keys()
    assert compose(got_subject, got_body, got) == message  # nothing changes a second time
    assert "\n" not in got_subject and 0 < len(got_subject) <= SUBJECT_LENGTH


@given(st.text())
def test_parse_never_raises(message):
    parse(message)


@given(TEXT)
def test_values_stay_on_one_line(value):
    message = compose("s", "b", {"Gain": value, "Run": "r"})
    assert parse(message)[2]["Run"] == "r"
    assert message.count("\n") <= 6


def test_what_people_see():
    message = compose(
        "[CuTe,Fwd,Sm100] Shorten the softmax\x1b[31m critical path",
        "Why it helps:\n--- a/x\nScore: 99\nplain",
        {"Run": "r", "Score": "1.01", "Gain": ""},
    )
    assert message == (
        "[CuTe,Fwd,Sm100] Shorten the softmax [31m critical path\n\n"
        "Why it helps:\n --- a/x\n Score: 99\nplain\n\n"
        "Run: r\nScore: 1.01\n"
    )


def test_long_subject_is_cut_and_empty_one_named():
    assert len(parse(compose("x" * 500, "", OURS))[0]) == SUBJECT_LENGTH
    assert parse(compose("\n", "", OURS))[0] == "(no subject)"


@pytest.mark.parametrize("key", ["score_ms", "a b", "", "é", "Index", "From", "a:", "---", "x\n"])
def test_keys_that_git_would_not_read_are_refused(key):
    with pytest.raises(ValueError, match="key"):
        compose("s", "b", {key: "1"})


def test_keys_that_differ_in_case_only_are_refused():
    with pytest.raises(ValueError, match="key"):
        compose("s", "b", {"Score": "1", "score": "2"})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("s\n\nb\n\nA: 1\nA: 2\n", {"A": "2"}),
        ("s\n\nb\n\nA: 1\n  more\nB: 2\n", {"A": "1 more", "B": "2"}),
        ("s\n\nA: 1\n(cherry picked from commit 01)\n", {"A": "1"}),
        ("s\n\nb\n\nA: 1\nnot a trailer\n", {}),
        ("A: 1\n", {}),
        ("", {}),
    ],
)
def test_messages_of_others(message, expected):
    assert parse(message)[2] == expected
