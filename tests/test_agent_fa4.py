"""An agent evolves FlashAttention-4 from the command line: real source, compiles and HTTP.

The scripted agent has no knowledge of the source but what the prompt and its tools tell it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .messages_server import Answer, Thinking, Use, called, refused, results, serving, texts

KERNEL = "flash_attn/cute/flash_fwd_sm100.py"


@pytest.fixture(scope="module")
def avo(tmp_path_factory):
    """avo(server, "evolve", …) runs the installed command in one folder, against that server."""
    home = tmp_path_factory.mktemp("agent-fa4")
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("AVO_CUTE_", "ANTHROPIC_"))}
    keep |= {"AVO_CUTE_CACHE": str(tmp_path_factory.mktemp("cache")), "NO_COLOR": "1"}

    def run(server, *words, code=0):
        key = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "test"} if server else {}
        command = [str(Path(sys.executable).with_name("avo-cute")), *words]
        done = subprocess.run(
            command, cwd=home, env=keep | key, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    run.home = home
    return run


class Engineer:
    """Finds the emulation of exp2 in the tuning table, breaks the edit, repairs it, evaluates."""

    def __init__(self):
        self.wrong = ""

    def __call__(self, request):
        try:
            return self.next(request)
        except (AssertionError, AttributeError, TypeError) as error:
            self.wrong = repr(error)
            return refused(self.wrong)

    def next(self, request):
        last = "\n".join(results(request))
        names = [name for name, _ in called(request)]
        step = len(names)
        if step == 0:
            assert "not tried" in "\n".join(texts(request))  # what the lineage remembers
            return Answer(
                Thinking(),
                "First what is known, and what was tried.",
                Use("knowledge_search", {"query": "ex2 emulation polynomial MUFU"}),
                Use("lineage_log", {}),
            )
        if step == 2:
            return Answer(
                Use("search_files", {"expression": 'ex2_emu_start_frg": ?1', "pattern": KERNEL})
            )
        if step == 3:
            self.row = re.search(r"(\d+): +(\(True, False, 128, False\): .*)", last)
            return Answer(
                Use(
                    "view",
                    {"path": KERNEL, "first": int(self.row[1]) - 2, "last": int(self.row[1]) + 2},
                )
            )
        if step == 4:  # a wrong edit: the text stands there more than once
            return Answer(
                Use(
                    "str_replace",
                    {
                        "path": KERNEL,
                        "old": '"ex2_emu_start_frg": 1',
                        "new": '"ex2_emu_start_frg": 0',
                    },
                )
            )
        old = self.row[2]
        broken = old.replace('"ex2_emu_start_frg": 1', '"ex2_emu_start_frg": ')
        right = old.replace('"ex2_emu_start_frg": 1', '"ex2_emu_start_frg": 0')
        if step == 5:
            assert "times" in last and "give more of it" in last
            return Answer(Use("str_replace", {"path": KERNEL, "old": old, "new": broken}))
        if step == 6:
            return Answer(Use("build", {}))
        if step == 7:
            assert "build-failed" in last and "SyntaxError" in last
            self.line = int(re.search(r"line (\d+)", last)[1])
            return Answer(Use("view", {"path": KERNEL, "first": self.line, "last": self.line}))
        if step == 8:
            assert broken.strip() in last  # the compiler named the right line
            return Answer(Use("str_replace", {"path": KERNEL, "old": broken, "new": right}))
        if step == 9:
            return Answer(Use("build", {}))
        if step == 10:
            assert "it builds" in last and "incumbent:" in last
            return Answer(
                Use(
                    "note",
                    {"text": "Fragment 0 takes load off MUFU; try the causal row too."},
                ),
                Use(
                    "evaluate",
                    {
                        "subject": "Emulate exp2 from the first fragment",
                        "hypothesis": "MUFU is the busiest unit of the softmax without masks.",
                        "prediction": "The full workloads gain about 2 %, causal ones nothing.",
                        "change": "ex2-emulation begins at fragment 0 for head dimension 128.",
                    },
                ),
            )
        raise AssertionError(f"the session should have ended: {last}")


@pytest.fixture(scope="module")
def worked(avo):
    """One session of the engineer, and the server that it talked to."""
    agent = Engineer()
    with serving(agent) as server:
        done = avo(server, "evolve", "--operator", "agent", "--target", "b200", "--run", "r",
                   "--attempts", "1", "--budget-usd", "5", "--json")  # fmt: skip
    return json.loads(done.stdout), done, server, agent


def git(avo, *words) -> str:
    command = ["git", "--git-dir", str(avo.home / "lineage.git"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_change_in_many_steps_is_accepted(worked):
    told, _, _, agent = worked
    assert not agent.wrong
    (attempt,) = told["attempts"]
    assert attempt["status"] == "accepted", attempt
    assert attempt["gain"] > 1.005
    assert attempt["operator"] == "agent claude-opus-5-5"
    for part in (
        "Hypothesis: MUFU is the busiest",
        "Prediction: The full workloads",
        "What was seen: accepted: ",
    ):
        assert part in attempt["body"].replace("\n", " ")
    assert told["spent"]["tokens"] > 10_000 and told["spent"]["usd"] > 0


def test_everything_billed_is_in_the_lineage(worked, avo):
    told, _, server, _ = worked
    billed = sum(sum(v for k, v in u.items() if k.endswith("_tokens")) for u in server.usages)
    (ref,) = git(avo, "for-each-ref", "--format=%(refname)", "refs/sessions/r").split()
    tokens = git(avo, "log", "-1", "--format=%(trailers:key=Tokens,valueonly)", ref)
    counted = sum(int(part.partition("=")[2]) for part in tokens.split())
    assert counted == told["spent"]["tokens"] == billed
    cost = float(git(avo, "log", "-1", "--format=%(trailers:key=Cost-usd,valueonly)", ref))
    assert cost == pytest.approx(told["spent"]["usd"], abs=1e-4)


def test_the_transcript_has_every_turn_and_the_note(worked, avo):
    _, _, server, _ = worked
    (ref,) = git(avo, "for-each-ref", "--format=%(refname)", "refs/sessions/r").split()
    names = git(avo, "ls-tree", "-r", "--name-only", ref).split()
    turns = [n for n in names if n.startswith("turns/")]
    assert len(turns) == 2 * len(server.requests) + 1
    assert "MUFU; try the causal row" in git(avo, "show", f"{ref}:notes.md")
    assert "Emulate exp2" in git(avo, "show", f"{ref}:{turns[-2]}")


def test_the_prefix_is_cached(worked):
    """Each question begins with the one before it, byte for byte."""
    _, _, server, _ = worked
    for before, after in zip(server.requests, server.requests[1:], strict=False):
        assert after["system"] == before["system"] and after["tools"] == before["tools"]
        kept = len(before["messages"])
        plain = [json.dumps(_unmarked(m), sort_keys=True) for m in after["messages"][:kept]]
        assert plain == [json.dumps(_unmarked(m), sort_keys=True) for m in before["messages"]]
    assert server.usages[-1]["cache_read_input_tokens"] > 0


def test_the_next_session_knows_what_this_one_learnt(worked, avo):
    heard = []

    def agent(request):
        heard.append("\n".join(texts(request)))
        return Answer("I have nothing to add.")

    with serving(agent) as server:
        avo(server, "evolve", "--operator", "agent", "--run", "r", "--attempts", "1")
    assert "Emulate exp2 from the first fragment" in heard[0]
    assert "try the causal row too" in heard[0]
    assert "Nothing counts before `evaluate`" in heard[1]


def _unmarked(message):
    if isinstance(message["content"], str):
        return message
    blocks = [{k: v for k, v in b.items() if k != "cache_control"} for b in message["content"]]
    return {**message, "content": blocks}
