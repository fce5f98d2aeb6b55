"""Runs in which a model or a command varies, from the command line: what ends them, what they cost,
what a killed one leaves, who redirects them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from .conftest import KERNEL, kernel_source
from .messages_server import (
    MODELS,
    Answer,
    Use,
    called,
    credit_spent,
    rate_limited,
    results,
    serving,
    texts,
)
from .simulated_rig import EDITS, LOADS, ROWS, STREAM

AVO = str(Path(sys.executable).with_name("avo-cute"))
SUPERVISING = "You supervise a long run"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def avo(cache, tmp_path):
    """avo(server, …) evolves the row softmax in a folder of its own, against that server."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("AVO_CUTE_", "ANTHROPIC_"))}
    keep |= {"AVO_CUTE_CACHE": str(cache), "NO_COLOR": "1"}

    def start(server, *words, **more):
        key = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "test"} if server else {}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = keep | key | more
        return subprocess.Popen([AVO, *map(str, words)], cwd=tmp_path, env=env, **streams)

    def run(server, *words, code=0, **more):
        process = start(server, *words, **more)
        out, err = process.communicate(timeout=240)
        assert process.returncode == code, (process.returncode, out, err)
        assert "Traceback" not in err
        return subprocess.CompletedProcess(words, code, out, err)

    def evolve(server, *words, code=0, **more):
        start = ("evolve", "--task", "softmax", "--target", "b200", "--workloads", "softmax-2k")
        return run(server, *start, "--run", "r", "--json", *words, code=code, **more)

    run.evolve, run.start, run.home = evolve, start, tmp_path
    return run


def git(avo, *words) -> str:
    command = ["git", "--git-dir", str(avo.home / "lineage.git"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def sessions(avo, run="r") -> list[str]:
    return git(avo, "for-each-ref", "--format=%(refname)", f"refs/sessions/{run}").split()


def told(done) -> dict:
    return json.loads(done.stdout)


def change(name):
    """An edit of the table of tunings."""
    table = kernel_source().partition("_TUNING = ")[2].partition("_LOAD = ")[0]
    return Use("str_replace", {"path": KERNEL, "old": table, "new": table.replace(*EDITS[name])})


def evaluate(subject="Change a line"):
    why = {"hypothesis": "Fewer waits.", "prediction": "+1 %", "change": "One line."}
    return Use("evaluate", {"subject": subject, **why})


# The supervisor.


def test_a_stalled_run_is_redirected_and_the_next_session_follows(avo):
    """The agent evaluates the seed again and again; the supervisor's model names a direction that
    the agent knows how to take."""
    heard = []

    def agent(request):
        if request["system"][0]["text"].startswith(SUPERVISING):
            heard.append("\n".join(texts(request)))
            return Answer(
                "Direction: narrow-loads\nWhy: the loads are wider than a row needs\n"
                "How: set vector to 4 in the table\nExpect: +1 % on short rows"
            )
        opening = texts(request)[0]
        if "narrow-loads" in opening:
            heard.append(opening)
            return Answer(change(LOADS), evaluate("Take narrow-loads"))
        if len(called(request)) >= 4:
            return Answer("I am done.")
        return Answer(*[evaluate(f"Try nothing, time {n}") for n in range(4)])

    with serving(agent) as server:
        done = told(avo.evolve(server, "--operator", "agent", "--attempts", "5"))
    assert [a["status"] for a in done["attempts"]] == ["no-change"] * 4 + ["accepted"]
    asked, opening = heard
    assert "4 of the last 4 attempts were the same machine code" in asked
    assert "begin with one" in opening and "set vector to 4 in the table" in opening
    assert done["attempts"][-1]["directive"].startswith("same-artifact: narrow-loads")
    first, second = sessions(avo)
    assert "narrow-loads" in git(avo, "show", f"{second}:directive.md")
    assert "Directive: same-artifact" in git(avo, "log", "-1", "--format=%B", second)
    form = "--format=%(trailers:key=Tokens,valueonly)"
    spent = [git(avo, "log", "-1", form, session) for session in (first, second)]
    counted = sum(int(n) for n in re.findall(r"=(\d+)", " ".join(spent)))
    assert counted == done["spent"]["tokens"], "the supervisor's answer is paid by its session"


def test_without_a_model_the_catalogue_redirects(avo, tmp_path):
    """The `command` operator has no model: its directive is the catalogue's."""
    script = _script(
        tmp_path,
        f"""
        printf 'import nothing_of_that_name_%s\\n' $(date +%N) >> {KERNEL}
        cp "$1" "$2/last-prompt.md"
        """,
    )
    command = f"{shlex.quote(str(script))} {{prompt}} {shlex.quote(str(tmp_path))}"
    done = told(avo.evolve(None, "--command", command, "--attempts", "17"))
    assert {a["status"] for a in done["attempts"]} == {"build-failed"}
    assert "directive" not in done["attempts"][0]
    assert done["attempts"][-1]["directive"].startswith("same-failure")
    assert "The supervisor's directions" in (tmp_path / "last-prompt.md").read_text()


def test_no_supervisor_leaves_a_stalled_run_alone(avo):
    def agent(request):
        assert not request["system"][0]["text"].startswith(SUPERVISING)
        return Answer(*[evaluate(f"Try nothing, time {n}") for n in range(3)])

    with serving(agent) as server:
        done = told(
            avo.evolve(server, "--no-supervisor", "--operator", "agent", "--attempts", "18")
        )
    assert len(done["attempts"]) == 18
    assert all("directive" not in a for a in done["attempts"])


# What ends a run.


def test_a_spent_quota_ends_the_run_with_what_was_done(avo):
    def agent(request):
        if not called(request):
            return Answer(evaluate("Try nothing"))
        return credit_spent()

    with serving(agent) as server:
        done = avo.evolve(server, "--operator", "agent", code=1)
    assert done.stderr.strip().splitlines()[-1].startswith("avo-cute: ")
    assert "credit" in done.stderr.splitlines()[-1]
    (attempt,) = told(done)["attempts"]
    assert attempt["status"] == "no-change" and told(done)["ended"].startswith("stopped: ")
    assert len(server.requests) == 2, "asked once more after the attempt, and not again"
    assert sessions(avo)
    # with another model, and another budget, the same run goes on
    with serving(lambda request: Answer(evaluate("Go on")), models=MODELS) as server:
        more = avo.evolve(server, "--model", "claude-haiku-4-5", "--attempts", "1",
                          "--operator", "agent")  # fmt: skip
    (second,) = told(more)["attempts"]
    assert second["operator"] == "agent claude-haiku-4-5" and second["attempt"] == 2
    assert "Try nothing" in "\n".join(texts(server.requests[0]))


def test_a_rate_limit_is_no_end(avo):
    faults = [rate_limited(0.2), rate_limited(0.2)]
    script = [Answer(evaluate("Try nothing"))]

    def agent(request):
        return faults.pop() if faults else script[0]

    with serving(agent) as server:
        done = avo.evolve(server, "--operator", "agent", "--attempts", "1")
    assert len(told(done)["attempts"]) == 1 and len(server.requests) == 3


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        (("--budget-tokens", "1"), "tokens used"),
        (("--budget-usd", "0.000001"), "USD spent"),
        (("--attempts", "1"), "1 attempt done"),
        (("--hours", "0.0001"), "hours are over"),
    ],
)
def test_a_budget_ends_a_run_at_the_next_step(avo, words, ended):
    with serving(lambda request: Answer(change(STREAM), evaluate("Stream"))) as server:
        done = told(avo.evolve(server, "--operator", "agent", *words))
    assert ended in done["ended"]
    assert len(server.requests) <= 1
    if server.requests:  # what was paid for is kept, judged or not
        (ref,) = sessions(avo)
        assert "turns/0002.json" in git(avo, "ls-tree", "-r", "--name-only", ref)
        if not done["attempts"]:
            results_kept = git(avo, "show", f"{ref}:turns/0003.json")
            assert "not done: the session is over" in results_kept


def test_sessions_without_an_attempt_end_a_run(avo):
    with serving(lambda request: Answer("It is perfect already.")) as server:
        done = told(avo.evolve(server, "--operator", "agent"))
    assert done["ended"] == "3 sessions in a row made no attempt" and not done["attempts"]
    assert len(sessions(avo)) == 3
    assert len(server.requests) == 9


def test_an_unknown_price_is_said_and_tokens_are_counted(avo):
    models = {**MODELS, "claude-from-tomorrow": True}
    with serving(lambda request: Answer(evaluate("Try nothing")), models=models) as server:
        words = ("--operator", "agent", "--model", "claude-from-tomorrow", "--attempts", "1")
        refused = avo.evolve(server, *words, "--budget-usd", "1", code=1)
        assert "no price is known for claude-from-tomorrow" in refused.stderr
        assert not server.requests
        done = told(avo.evolve(server, *words, "--budget-tokens", "1000000"))
    assert done["spent"]["tokens"] > 0 and not done["spent"]["priced"]
    assert "cost_usd" not in done["attempts"][0] and "tokens" in done["attempts"][0]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--operator", "agent"), "set ANTHROPIC_API_KEY"),
        (("--operator", "single-turn"), "set ANTHROPIC_API_KEY"),
        (("--operator", "command"), "--command"),
        (("--operator", "search", "--no-memory"), "--no-memory has no effect on --operator search"),
        (("--operator", "search", "--effort", "low"), "--effort has no effect"),
        (("--command", "echo 'x"), "--command"),
        (("--command", ""), "--command is empty"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(avo, words, says):
    done = avo.evolve(None, *words, code=1)
    assert says in done.stderr.strip().splitlines()[-1]


def test_a_wrong_key_and_an_unknown_model_are_said(avo):
    with serving(lambda request: Answer("?"), key="another") as server:
        done = avo.evolve(server, "--operator", "agent", code=1)
        assert "key" in done.stderr.splitlines()[-1]
    with serving(lambda request: Answer("?")) as server:
        done = avo.evolve(server, "--operator", "agent", "--model", "claude-none", code=1)
        assert "claude-none" in done.stderr.splitlines()[-1]


# What is left of a killed one.


def test_a_run_killed_in_mid_session_goes_on_from_its_lineage(avo):
    stopped, go = threading.Event(), threading.Event()

    def agent(request):
        step = len(called(request))
        if step == 0:
            return Answer(change(ROWS), Use("note", {"text": "Two rows were my idea."}))
        stopped.set()
        go.wait(30)
        return Answer("too late")

    with serving(agent) as server:
        words = ("evolve", "--task", "softmax", "--target", "b200", "--workloads", "softmax-2k")
        process = avo.start(server, *words, "--run", "r", "--operator", "agent")
        assert stopped.wait(120)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)
        go.set()
    (ref,) = sessions(avo)
    names = git(avo, "ls-tree", "-r", "--name-only", ref).split()
    assert names == ["notes.md", "turns/0001.json", "turns/0002.json", "turns/0003.json"]
    before = git(avo, "log", "-1", "--format=%(trailers:key=Tokens,valueonly)", ref)
    billed = sum(v for k, v in server.usages[0].items() if k.endswith("_tokens"))
    assert sum(int(n) for n in re.findall(r"=(\d+)", before)) == billed
    opened = []

    def second(request):
        opened.append(texts(request)[0])
        return Answer(change(LOADS), evaluate("Load four at once"))

    with serving(second) as server:
        done = told(avo.evolve(server, "--operator", "agent", "--attempts", "1"))
    assert done["attempts"][0]["session"] == "2" and done["attempts"][0]["status"] == "accepted"
    assert "Two rows were my idea." in opened[0]
    assert len(sessions(avo)) == 2


def test_ctrl_c_finishes_the_step_in_hand(avo):
    asked = threading.Event()

    def agent(request):
        asked.set()
        return Answer(evaluate(f"Try nothing, time {len(called(request))}"))

    with serving(agent) as server:
        words = ("evolve", "--task", "softmax", "--target", "b200", "--workloads", "softmax-2k")
        process = avo.start(server, *words, "--run", "r", "--operator", "agent", "--json")
        assert asked.wait(120)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    done = json.loads(out)
    assert done["ended"].startswith("interrupted") and len(done["attempts"]) <= 1


@pytest.mark.parametrize("how", ["ctrl-c", "hours"])
def test_who_waits_for_the_api_stops_waiting(avo, how):
    asked = threading.Event()

    def agent(request):
        asked.set()
        return rate_limited(600)

    words = ("evolve", "--task", "softmax", "--target", "b200", "--workloads", "softmax-2k")
    more = ("--hours", "0.002") if how == "hours" else ()
    with serving(agent) as server:
        process = avo.start(server, *words, "--run", "r", "--operator", "agent", "--json", *more)
        assert asked.wait(120)
        if how == "ctrl-c":
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["ended"].startswith("interrupted" if how == "ctrl-c" else "0.002 hours")


# A command of the user's own.


def _script(folder, text) -> Path:
    path = folder / "my agent.sh"
    path.write_text("#!/bin/sh\nset -e\n" + text)
    path.chmod(0o755)
    return path


def test_a_shell_script_is_an_agent(avo, tmp_path):
    """It reads how its last attempt ended, and then has another idea."""
    old, new = EDITS[LOADS]
    script = _script(
        tmp_path,
        f"""
        cd "$AVO_CUTE_WORKSPACE"
        test "$PWD" -ef "$1"
        if grep -q 'How the last attempt ended' "$2"; then
            sed -i 's/{old}/{new}/' {KERNEL}
            printf 'Load four at once\\n\\nHypothesis: eight are too many.\\n' > "$3"
        else
            echo '# nothing' >> {KERNEL}
            printf 'Say nothing\\n\\nStatus: accepted\\n' > "$AVO_CUTE_MESSAGE_FILE"
        fi
        git --git-dir "$AVO_CUTE_LINEAGE" log -1 --format=%s "lineage/$AVO_CUTE_RUN"
        """,
    )
    command = f"{shlex.quote(str(script))} {{workspace}} {{prompt}} {{message}}"
    done = told(avo.evolve(None, "--operator", "command", "--command", command, "--attempts", "2"))
    first, second = done["attempts"]
    assert (first["status"], second["status"]) == ("no-change", "accepted")
    assert first["subject"].endswith("Say nothing")
    assert second["subject"].endswith("Load four at once")
    assert "Hypothesis: eight are too many." in second["body"]
    assert second["operator"] == "command my agent.sh"
    (ref,) = sessions(avo)
    said = git(avo, "show", f"{ref}:calls/0001.txt").splitlines()
    assert said[0] == "exit status 0" and said[1].startswith("Import ")


# Ablation.


def test_an_ablation_runs_every_arm_under_the_same_budget(avo):
    asked: list[dict] = []
    found: list[str] = []

    def agent(request):
        if not request.get("tools"):
            assert '"vector": 8' in "\n".join(texts(request))
            return Answer("Subject: Do it in one go\nHypothesis: h\nPrediction: p\n\nNo change.")
        asked.append(request)
        if len(called(request)) == 0 and any(
            t["name"] == "lineage_search" for t in request["tools"]
        ):
            return Answer("Found before?", Use("lineage_search", {"text": "Try nothing"}))
        if called(request)[-1:] and called(request)[-1][0] == "lineage_search":
            found.append("\n".join(results(request)))
        return Answer(evaluate("Try nothing"))

    words = ("ablate", "--task", "softmax", "--target", "b200", "--workloads", "softmax-2k")
    words = (*words, "--attempts", "2", "--json")
    with serving(agent) as server:
        arms = {a["arm"]: a for a in told(avo(server, *words))["arms"]}
        assert list(arms) == [
            "agent", "no-knowledge", "no-memory", "no-supervisor", "single-turn", "random",
        ]  # fmt: skip
        assert [a["attempts"] for a in arms.values()] == [2, 2, 2, 2, 0, 2]
        assert arms["single-turn"]["spent"]["tokens"] and not arms["random"]["spent"]["tokens"]
        again = told(avo(server, *words, "--arms", "agent,random"))["arms"]
        table = avo(server, *words[:-1], "--arms", "random").stdout
        wide = (*words[:6], "softmax-32k", *words[7:], "--arms", "agent")
        refused = avo(server, *wide, code=1).stderr
    assert [a["attempts"] for a in again] == [2, 2], "its budget was spent before"
    assert "run ablation-agent has --workloads softmax-2k, not softmax-32k" in refused
    assert "One run of an arm is one draw" in table
    has_base = {any(t["name"] == "knowledge_search" for t in r["tools"]) for r in asked}
    assert has_base == {True, False}
    assert any("No record of earlier attempts" in texts(r)[0] for r in asked)
    assert found and all("no such attempts" in text for text in found), "arms see only themselves"
    names = git(avo, "for-each-ref", "--format=%(refname:lstrip=3)", "refs/heads/lineage").split()
    assert {f"ablation-{a}" for a in arms} == set(names)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--arms", "agent,everything"), "--arms agent,everything: choose from"),
        (("--arms", ""), "choose from"),
        (("--arms", "agent"), "set ANTHROPIC_API_KEY"),
    ],
)
def test_an_ablation_that_cannot_be_is_refused(avo, words, says):
    start = ("ablate", "--task", "softmax", "--target", "b200", "--attempts", "1")
    assert says in avo(None, *start, *words, code=1).stderr.splitlines()[-1]


# The tools over MCP.


def test_a_real_client_evolves_over_the_command(avo, cache):
    import anyio
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    words = ["mcp", "--task", "softmax", "--target", "b200", "--workloads", "softmax-2k"]
    env = {**os.environ, "AVO_CUTE_CACHE": str(cache), "NO_COLOR": "1"}
    server = StdioServerParameters(
        command=AVO, args=[*words, "--run", "r", "--attempts", "1"], env=env, cwd=avo.home
    )
    edit, judge = change(LOADS), evaluate("Load four at once")

    async def talk():
        async with stdio_client(server) as streams, ClientSession(*streams) as client:
            await client.initialize()
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"briefing", "evaluate", "knowledge_search"} <= names
            await client.call_tool(edit.name, edit.input)
            return (await client.call_tool(judge.name, judge.input)).content[0].text

    answer = anyio.run(talk)
    assert "attempt 1: accepted" in answer
    (attempt,) = json.loads(avo(None, "log", "--run", "r", "--json").stdout)
    assert attempt["operator"] == "mcp" and attempt["subject"].endswith("Load four at once")
