"""The tools over the Model Context Protocol: a real client, in this process and over stdio."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from avo_cute.errors import BadInput, Busy, MachineFailed
from avo_cute.lineage import Lineage
from avo_cute.mcp_server import OPERATOR, Sessions, server
from avo_cute.plan import init, seed_of
from avo_cute.repo import RefUpdate
from avo_cute.run import Run
from avo_cute.task import find_task
from avo_cute.tools import toolbox
from avo_cute.transcripts import read, sessions

from .conftest import KERNEL, kernel_source
from .simulated_rig import EDITS, LOADS, STREAM, Events

ROOT = Path(__file__).parent.parent
SERVING = Path(__file__).parent / "mcp_serving.py"
SAID = {"hypothesis": "Fewer waits.", "prediction": "+1 %", "change": "One line."}


@pytest.fixture
def run(softmax_bench, tmp_path):
    task = find_task("softmax")
    lineage = init(tmp_path / "lineage.git", task, seed_of(task))
    start = lineage.seed("softmax")
    made = Run(lineage, replace(softmax_bench), "r", "softmax-2k", Events(), start)
    made.begin()
    return made


@pytest.fixture
def stopped():
    """Append to it: the run must stop."""
    return []


@pytest.fixture
def opened(run, stopped):
    """The sessions of a server of this process."""
    with Sessions(run, None, lambda: bool(stopped)) as made:
        yield made


def talk(opened, conversation):
    """Hold a conversation with a server of this process."""

    async def hold():
        async with Client(server(opened)) as client:
            return await conversation(client)

    return anyio.run(hold)


def said(result):
    (content,) = result.content
    return content.text


def edit(name):
    """An edit of the table of tunings, as a client sends it."""
    table = kernel_source().partition("_TUNING = ")[2].partition("_LOAD = ")[0]
    return {"path": KERNEL, "old": table, "new": table.replace(*EDITS[name])}


def test_a_client_is_offered_the_agent_s_tools(opened):
    async def ask(client):
        return client.instructions, (await client.list_tools()).tools

    about, offered = talk(opened, ask)
    tools = toolbox(opened.session, None)
    assert [t.name for t in offered] == [*tools.names, "briefing"]
    for tool in offered[:-1]:
        assert tool.description == tools.description(tool.name)
        assert tool.input_schema == tools.schema(tool.name)
    assert "Call this first" in offered[-1].description
    assert "row_softmax/*.py" in about


def test_errors_are_marked_and_name_the_argument(opened):
    async def ask(client):
        return [(await client.call_tool(name, given), word) for name, given, word in calls]

    calls = (
        ("view", {"path": "nowhere.py"}, "nowhere.py"),
        ("view", {"path": 7}, "path: "),
        ("view", {"path": KERNEL, "first": "2"}, "first: "),
        ("view", {}, "path: "),
        ("fly", {}, "'fly'"),
        ("build", {"fast": True}, "fast: "),
        ("briefing", {"long": True}, "long: "),
    )
    for result, word in talk(opened, ask):
        assert result.is_error and word in said(result)


def test_calls_at_once_are_answered_one_after_the_other(opened, run):
    async def ask(client):
        results = {}

        async def call(number):
            text = f"x = {number}\n"
            given = {"path": KERNEL, "after": 0, "text": text}
            results[number] = await client.call_tool("insert", given)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(call, number)
        return results

    results = talk(opened, ask)
    assert not any(result.is_error for result in results.values())
    lines = (opened.session.folder / KERNEL).read_text().split("\n")
    assert sorted(lines[:20]) == sorted(f"x = {n}" for n in range(20))
    assert "\n".join(lines[20:]) == kernel_source()


def test_an_accepted_candidate_opens_the_next_session(opened, run):
    async def ask(client):
        await client.call_tool("str_replace", edit(LOADS))
        return [
            await client.call_tool("build"),
            await client.call_tool("evaluate", {"subject": LOADS, **SAID}),
            await client.call_tool("view", {"path": KERNEL}),
            await client.call_tool("briefing"),
            await client.call_tool("build"),
        ]

    first = opened.session
    built, judged, _, told, again = talk(opened, ask)
    assert said(built).startswith("it builds") and "incumbent: registers" in said(built)
    assert not judged.is_error and "attempt 1: accepted" in said(judged)
    attempt = run.lineage.attempt(run.lineage.head("r"))
    assert "A new session is open" in said(judged) and attempt.commit[:10] in said(judged)
    assert attempt.trailers["Operator"] == OPERATOR
    assert opened.session is not first and opened.session.number == first.number + 1
    assert not first.folder.exists() and opened.session.folder.is_dir()
    assert '"vector": 4' in (opened.session.folder / KERNEL).read_text()
    assert "incumbent: the same machine code" in said(again)
    assert LOADS in said(told)
    kept = sessions(run.lineage.repo, "r")
    assert LOADS in read(run.lineage.repo, kept[0], "transcript.jsonl")


def test_the_end_of_the_budget_is_said_and_nothing_is_judged_any_more(opened, run, stopped):
    async def ask(client):
        await client.call_tool("str_replace", edit(STREAM))
        stopped.append("one attempt")
        first = await client.call_tool("evaluate", {"subject": STREAM, **SAID})
        return first, await client.call_tool("view", {"path": KERNEL})

    for result in talk(opened, ask):
        assert result.is_error and "reached its limit" in said(result)
    assert [a.number for a in run.lineage.attempts("r")] == [0]


def test_the_answer_that_ends_the_budget_is_given_whole(run):
    with Sessions(run, None, lambda: run.begun >= 1) as opened:
        opened.use("str_replace", edit(STREAM))
        answer = opened.use("evaluate", {"subject": STREAM, **SAID})
        assert not answer.error and "attempt 1: equal" in answer.text
        assert "reached its limit" in answer.text
        assert opened.use("view", {"path": KERNEL}).error


def test_a_failure_of_the_machine_ends_it_and_is_not_lost(opened, tmp_path, monkeypatch):
    async def ask(client):
        await client.call_tool("str_replace", edit(STREAM))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
        first = await client.call_tool("evaluate", {"subject": STREAM, **SAID})
        monkeypatch.undo()
        return first, await client.call_tool("view", {"path": KERNEL})

    for result in talk(opened, ask):
        assert result.is_error and "the server cannot go on" in said(result)
    assert isinstance(opened.failure, MachineFailed)


def test_a_branch_that_was_rewritten_ends_it(opened, run):
    repo = run.lineage.repo
    opened.use("str_replace", edit(LOADS))
    opened.use("evaluate", {"subject": LOADS, **SAID})
    bad = repo.commit(run.lineage.tree(run.lineage.head("r")), [], "not ours", 1_700_000_000)
    repo.update_refs([RefUpdate("refs/heads/lineage/r", bad, run.lineage.head("r"))], "rewritten")
    for _ in range(16):  # of one session
        answer = opened.use("evaluate", {"subject": "Nothing new", **SAID})
    assert answer.error and "was rewritten" in answer.text
    assert isinstance(opened.failure, BadInput)
    assert "was rewritten" in opened.use("view", {"path": KERNEL}).text


# Over stdio, as a client starts it.


@asynccontextmanager
async def connected(command, errors):
    parameters = StdioServerParameters(command=command[0], args=command[1:], env=variables())
    async with Client(stdio_client(parameters, errors)) as client:
        yield client


def variables():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def command(tmp_path, shared_cache):
    return [sys.executable, str(SERVING), str(tmp_path / "lineage.git"), str(shared_cache), "3"]


def unlocked(path, patience=10.0):
    """The lineage, once nobody holds it."""
    lineage, ends = Lineage.open(path), time.monotonic() + patience
    while True:
        try:
            with lineage.lock():
                return lineage
        except Busy:
            assert time.monotonic() < ends
            time.sleep(0.1)


def test_a_client_over_stdio(command, tmp_path):
    async def ask():
        with (tmp_path / "errors").open("w") as errors:
            async with connected(command, errors) as client:
                names = [t.name for t in (await client.list_tools()).tools]
                await client.call_tool("note", {"text": "Loads matter."})
                given = {"path": KERNEL, "after": 0, "text": "print('a candidate says so')"}
                await client.call_tool("insert", given)
                await client.call_tool("str_replace", edit(LOADS))
                shown = await client.call_tool("view", {"path": KERNEL, "last": 3})
                built = await client.call_tool("build")
                with pytest.raises(Busy), Lineage.open(tmp_path / "lineage.git").lock():
                    pass
                judged = await client.call_tool("evaluate", {"subject": LOADS, **SAID})
                wrong = await client.call_tool("view", {"path": "nowhere.py"})
                again = await client.call_tool("view", {"path": KERNEL, "last": 3})
        return names, shown, built, judged, wrong, again

    names, shown, built, judged, wrong, again = anyio.run(ask)
    assert "evaluate" in names and "briefing" in names
    assert "a candidate says so" in said(shown) and said(built).startswith("it builds")
    assert "attempt 1: accepted" in said(judged) and "A new session is open" in said(judged)
    assert wrong.is_error and not again.is_error
    lineage = unlocked(tmp_path / "lineage.git")
    assert [str(a.status) for a in lineage.attempts("r")] == ["no-change", "accepted"]
    (kept,) = sessions(lineage.repo, "r")
    assert "Loads matter." in read(lineage.repo, kept, "notes.md")
    assert LOADS in read(lineage.repo, kept, "transcript.jsonl")
    errors = (tmp_path / "errors").read_text()
    assert "evaluating: " in errors and "a child says so" in errors and "Traceback" not in errors


HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "by hand", "version": "0"},
    },
}
READY = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(number, name, **given):
    what = {"name": name, "arguments": given}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": what}


class ByHand:
    """A client that writes and reads lines."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables(),
        )
        self.lines = []

    def send(self, *messages):
        for message in messages:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, number):
        """The answer to a call; every line before it must be one as well."""
        while True:
            assert select.select([self.process.stdout], [], [], 60)[0]
            self.lines.append(json.loads(self.process.stdout.readline()))
            assert self.lines[-1]["jsonrpc"] == "2.0"
            if self.lines[-1].get("id") == number:
                return self.lines[-1]["result"]

    def end(self):
        """Close stdin; the exit status and what stdout still had."""
        rest, errors = self.process.communicate(timeout=60)
        return self.process.returncode, rest.decode(), errors.decode()


@pytest.fixture
def by_hand(command):
    started = []

    def start(*more):
        started.append(ByHand([*command, *more]))
        started[-1].send(HELLO, READY)
        started[-1].answer(1)
        return started[-1]

    yield start
    for client in started:
        client.process.kill()
        client.process.wait()
        for stream in (client.process.stdin, client.process.stdout, client.process.stderr):
            stream.close()


def test_nothing_but_answers_is_on_stdout(by_hand, tmp_path):
    client = by_hand()
    client.send(
        call(2, "str_replace", **edit(STREAM)),
        call(3, "evaluate", subject=STREAM, **SAID),
        call(4, "view", path=KERNEL, last=2),
    )
    assert client.answer(4)["isError"] is False
    told = {line["id"]: line["result"] for line in client.lines}
    assert list(told) == [1, 2, 3, 4]  # in the order in which they were asked
    assert "attempt 1: equal" in told[3]["content"][0]["text"]
    status, rest, errors = client.end()
    assert (status, rest) == (0, "") and "a child says so" in errors
    unlocked(tmp_path / "lineage.git")


def test_what_is_no_message_breaks_nothing(by_hand):
    client = by_hand()
    client.process.stdin.write(b"not json\n\n{}\n[1]\n\xff\xfe\n")
    client.send({"jsonrpc": "2.0", "id": 5, "method": "no/such"}, call(6, "list_files"))
    assert KERNEL in client.answer(6)["content"][0]["text"]
    assert client.end()[0] == 0


def test_a_client_that_leaves_in_the_middle_loses_nothing(by_hand, tmp_path):
    client = by_hand()
    client.send(call(2, "str_replace", **edit(STREAM)))
    client.answer(2)
    client.send(call(3, "evaluate", subject=STREAM, **SAID))
    assert client.process.stderr.readline() == f"evaluating: {STREAM}\n".encode()
    status, _, errors = client.end()
    assert status == 0, errors
    lineage = unlocked(tmp_path / "lineage.git")
    assert [a.number for a in lineage.attempts("r")] == [0, 1]
    (kept,) = sessions(lineage.repo, "r")
    assert STREAM in read(lineage.repo, kept, "transcript.jsonl")


def test_a_signal_ends_it_while_the_client_waits(by_hand, tmp_path):
    client = by_hand()
    client.send(call(2, "note", text="Loads matter."))
    client.answer(2)
    client.process.send_signal(signal.SIGINT)
    assert client.process.wait(timeout=20) == 0
    assert client.process.stdout.read() == b""
    lineage = unlocked(tmp_path / "lineage.git", 0.0)
    assert "Loads matter." in read(lineage.repo, sessions(lineage.repo, "r")[0], "notes.md")


def test_without_a_client_it_ends(command):
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=variables()
    )
    assert done.returncode == 0 and done.stdout == b"", done.stderr.decode()
