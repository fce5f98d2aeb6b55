"""A model over real HTTP: what is sent, what comes back, and every way in which it fails."""

import json
import os
import subprocess
import sys
import time
import typing
from itertools import pairwise
from pathlib import Path

import pytest

from avo_cute.errors import BadInput, MachineFailed, Refused
from avo_cute.model import (
    STOPS,
    Answered,
    Anthropic,
    Ask,
    BadRequest,
    Exhausted,
    ModelFailed,
    Patience,
    Tool,
    UnknownModel,
    Usage,
    WrongKey,
    tool_results,
    user_text,
)

from .messages_server import (
    Answer,
    Fault,
    Redacted,
    Text,
    Thinking,
    Use,
    called,
    credit_spent,
    cut,
    failing,
    garbage,
    in_turn,
    overloaded,
    own_limit_reached,
    prompt_too_long,
    rate_limited,
    refused,
    results,
    serving,
    silent,
    texts,
    tier_spent,
)

QUICK = Patience(tries=4, first_s=0.01, longest_s=0.02, asked_s=2.0, silence_s=0.5)
VIEW = Tool("view", "Shows a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
EDIT = Tool("edit", "Changes a file.", {"type": "object", "properties": {}})
SYSTEM = "You improve a kernel. " * 40
HELLO = Answer("Hello.")


@pytest.fixture
def talk(monkeypatch):
    """`talk(agent)` gives a client of a server that runs the script, and the server."""
    opened = []

    def start(agent, name="claude-opus-5-5", effort=None, patience=QUICK, told=None, **how):
        context = serving(agent, **how)
        server = context.__enter__()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
        model = Anthropic(name, effort, patience, tell=([] if told is None else told).append)
        opened.append((model, context))
        return model, server

    yield start
    for model, context in opened:
        model.close()
        context.__exit__(None, None, None)


def ask(*turns, tools=(VIEW, EDIT), max_tokens=4_000):
    return Ask(SYSTEM, turns or (user_text("Go on."),), tools, max_tokens)


def prompt_of(usage):
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage[kind] for kind in kinds)


# What comes back.


def test_an_answer_of_text(talk):
    model, server = talk(in_turn(Answer("Hello, ", "world 🌍.")))
    reply = model.reply(ask())
    assert (reply.stop, reply.uses) == ("end_turn", ())
    assert reply.text == "Hello, \nworld 🌍."
    assert reply.turn.content[0] == {"type": "text", "text": "Hello, "}
    billed = server.usages[0]
    assert reply.usage == Usage(
        input=billed["input_tokens"],
        output=billed["output_tokens"],
        cache_write=billed["cache_creation_input_tokens"],
        cache_write_1h=billed["cache_creation_input_tokens"],
    )
    assert reply.length == reply.usage.tokens


def test_two_tools_at_once_and_one_that_does_not_exist(talk):
    model, _ = talk(in_turn(Answer(Use("view", {"path": "a.py"}), Use("fly", {"to": ["Mars"]}))))
    reply = model.reply(ask())
    assert reply.stop == "tool_use"
    assert [(u.name, u.input, u.error) for u in reply.uses] == [
        ("view", {"path": "a.py"}, ""),
        ("fly", {"to": ["Mars"]}, ""),
    ]
    assert len({u.id for u in reply.uses}) == 2


def test_a_tool_without_input(talk):
    model, _ = talk(in_turn(Answer(Use("view", ""))))
    assert model.reply(ask()).uses[0].input == {}


@pytest.mark.parametrize(
    "text", ['{"path": "a.py"', "{path: 1}", '{"n": NaN}', '["a"]', "3", '{"p": "\\ud800"}', "null"]
)
def test_input_that_is_not_an_object_is_not_run_and_the_talk_goes_on(talk, text):
    model, server = talk(in_turn(Answer(Use("view", text)), HELLO))
    first = user_text("Go on.")
    reply = model.reply(ask(first))
    (use,) = reply.uses
    assert use.input is None
    assert use.error.startswith("not run: the input")
    assert reply.usage.output == server.usages[0]["output_tokens"], "counted all the same"
    turn = tool_results([Answered(use.id, use.error, True)])
    assert model.reply(ask(first, reply.turn, turn)).text == "Hello."
    assert called(server.requests[1]) == [("view", {"INVALID_JSON": text})]


def test_thinking_goes_back_as_it_came(talk):
    parts = (Thinking("Ünusual → thoughts " * 9), Redacted(), Use("view", {"path": "a"}))

    def agent(request):
        return Answer("Done: " + results(request)[0]) if called(request) else Answer(*parts)

    model, server = talk(agent)
    first = user_text("Go on.")
    reply = model.reply(ask(first))
    assert reply.text == ""
    turn = tool_results([Answered(reply.uses[0].id, "contents")])
    # the server refuses a block that differs from what it issued, or whose history differs
    assert model.reply(ask(first, reply.turn, turn)).text == "Done: contents"
    sent = server.requests[1]["messages"][1]["content"]
    assert [block["type"] for block in sent] == ["thinking", "redacted_thinking", "tool_use"]
    assert sent[0]["signature"].endswith("+/==")


def test_the_server_notices_history_that_was_changed(talk):
    model, _ = talk(in_turn(Answer(Thinking(), "Yes."), HELLO))
    reply = model.reply(ask(user_text("Go on.")))
    with pytest.raises(BadRequest, match="bound to a different conversation"):
        model.reply(ask(user_text("Go on!"), reply.turn, user_text("And?")))


@pytest.mark.parametrize("parts", [(), (Thinking(),), (Text("  \n"),), (Thinking(), Redacted())])
def test_an_answer_without_content_leaves_nothing_to_send_back(talk, parts):
    model, _ = talk(in_turn(Answer(*parts), HELLO))
    reply = model.reply(ask())
    assert (reply.stop, reply.text.strip(), reply.turn.content) == ("end_turn", "", ())
    assert reply.usage.output > 0
    assert model.reply(ask(user_text("Go on."), user_text("Please."))).text == "Hello."


def test_thinking_at_the_end_is_left_out(talk):
    model, _ = talk(in_turn(Answer(Thinking(), "So.", Thinking("more")), HELLO))
    first = user_text("Go on.")
    reply = model.reply(ask(first))
    assert [block["type"] for block in reply.turn.content] == ["thinking", "text"]
    assert model.reply(ask(first, reply.turn, user_text("And?"))).text == "Hello."


def test_an_edit_cut_at_the_limit_is_not_run(talk):
    edit = Use("edit", '{"path": "a.py", "old": "x = 1", "ne')
    model, _ = talk(in_turn(Answer("I edit.", edit, stop="max_tokens"), HELLO))
    first = user_text("Go on.")
    reply = model.reply(ask(first))
    assert reply.stop == "max_tokens"
    assert reply.uses[0].input is None
    assert "limit of its length" in reply.uses[0].error
    turn = tool_results([Answered(u.id, u.error, True) for u in reply.uses])
    assert model.reply(ask(first, reply.turn, turn)).text == "Hello."


def test_a_complete_call_is_not_run_either_when_the_answer_was_cut(talk):
    model, _ = talk(in_turn(Answer(Use("edit", {"path": "a"}), stop="max_tokens")))
    assert model.reply(ask()).uses[0].input is None


def test_a_refusal_says_why(talk):
    why = ("frontier_llm", "This looks like work on a competing model.")
    model, _ = talk(in_turn(Answer(stop="refusal", refusal=why)))
    reply = model.reply(ask())
    assert reply.stop == "refusal"
    assert why[0] in reply.text
    assert why[1] in reply.text


def test_a_full_context_is_the_same_as_stop_reason_and_as_error(talk):
    full = "model_context_window_exceeded"
    model, _ = talk(in_turn(Answer("Half", stop=full), prompt_too_long(), failing(413)))
    assert model.reply(ask()).text == "Half"
    for _ in range(2):
        reply = model.reply(ask())
        assert (reply.stop, reply.turn.content, reply.usage) == (full, (), Usage())


def test_every_stop_reason_of_the_sdk_is_in_the_table():
    from anthropic.types import StopReason

    assert set(STOPS) == set(typing.get_args(StopReason))


def test_a_stop_reason_of_the_future_is_passed_on(talk):
    model, _ = talk(in_turn(Answer(Use("view", {}), stop="new_reason")))
    reply = model.reply(ask())
    assert (reply.stop, reply.uses[0].input) == ("new_reason", None)


# What is sent.


def test_what_heads_the_prompt_is_the_same_bytes_in_every_request(talk):
    def agent(request):
        return Answer(Thinking(), Use("view", {"path": f"{len(called(request))}.py"}))

    model, server = talk(agent)
    turns = [user_text("Begin: äöü 🌍")]
    replies = []
    for n in range(4):
        replies.append(reply := model.reply(ask(*turns)))
        turns += [reply.turn, tool_results([Answered(reply.uses[0].id, f"file {n}")])]
    model.reply(Ask(SYSTEM, [user_text("another session")], (VIEW, EDIT), 4_000))

    def told(body):
        head, _, rest = body.partition(b'"messages":')
        messages, end = json.JSONDecoder().raw_decode(rest.decode())
        return head + rest[len(rest.decode()[:end].encode()) :], messages

    heads, conversations = zip(*map(told, server.bodies), strict=True)
    assert len(set(heads)) == 1
    for earlier, later in pairwise(conversations[:4]):
        assert json.dumps(later).startswith(json.dumps(earlier)[:-1])
    sent = server.requests[0]
    assert sent["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert sent["system"][0]["cache_control"] == sent["cache_control"]
    # what the server caches by exact prefix: all of the request before is read, none is paid twice
    for before, after in pairwise(replies):
        assert after.usage.cache_read == before.usage.prompt
        assert after.usage.input == 0
    assert server.usages[4]["cache_read_input_tokens"] > len(SYSTEM) // 4, "by the next session"


def test_thinking_and_effort_go_out_where_the_model_takes_them(talk):
    model, server = talk(in_turn(HELLO), effort="high")
    model.reply(ask(max_tokens=500_000))
    sent = server.requests[0]
    assert sent["thinking"]["type"] == "adaptive"
    assert sent["output_config"] == {"effort": "high"}
    assert sent["max_tokens"] == 128_000, "what the model can give"
    assert sent["stream"] is True


def test_an_older_model_gets_neither(talk):
    model, server = talk(in_turn(HELLO), name="claude-haiku-4-5")
    model.reply(ask())
    assert not {"thinking", "output_config"} & server.requests[0].keys()
    model, _ = talk(in_turn(HELLO), name="claude-haiku-4-5", effort="high")
    with pytest.raises(BadInput, match="does not take --effort high"):
        model.reply(ask())


def test_a_gateway_without_a_catalogue_of_models_will_do(talk):
    model, server = talk(in_turn(HELLO), catalogue=False)
    assert model.reply(ask()).text == "Hello."
    assert server.requests[0]["thinking"]["type"] == "adaptive"


def test_text_that_is_not_utf8_or_empty_can_be_sent(talk):
    model, server = talk(in_turn(Answer(Use("view", {"path": "a"})), HELLO))
    first = user_text("bytes: " + b"\xff\xfe".decode("utf-8", "surrogateescape"))
    reply = model.reply(ask(first))
    turn = tool_results([Answered(reply.uses[0].id, "", True)], "note \ud83d\ude00")
    assert model.reply(ask(first, reply.turn, turn)).text == "Hello."
    assert texts(server.requests[1])[-2:] == ["(nothing)", "note 😀"]


# What goes wrong and passes.

EDITS = Answer(Thinking("long " * 40), Use("edit", {"path": "a.py", "old": "x", "new": "y" * 200}))


@pytest.mark.parametrize(
    "fault",
    [
        failing(500),
        failing(503),
        Fault(status=408, kind="timeout_error"),
        overloaded(),
        overloaded(HELLO, after=3),
        Fault(kind="api_error", status=200, answer=HELLO, after=3),
        cut(EDITS, after=19),
        cut(EDITS, after=0),
        cut(EDITS, after=19, clean=True),
        garbage(HELLO),
        silent(),
        silent(HELLO, after=3),
        Fault("cut"),
    ],
    ids=lambda f: f"{f.how}-{f.status}-{f.after}",
)
def test_a_passing_fault_is_tried_again(talk, fault):
    told = []
    model, server = talk(in_turn(fault, HELLO), told=told)
    reply = model.reply(ask())
    assert reply.text == "Hello."
    assert len(server.requests) == 2
    assert server.bodies[0] == server.bodies[1]
    assert len(told) == 1
    assert "trying again in" in told[0]


@pytest.mark.parametrize("clean", [True, False])
def test_an_answer_that_lacks_nothing_but_its_last_event_is_kept(talk, clean):
    answer = Answer(Use("view", {"path": "a"}))  # start, ping, block, 2 deltas, block, delta, stop
    model, server = talk(in_turn(cut(answer, after=7, clean=clean)))
    assert model.reply(ask()).uses[0].input == {"path": "a"}
    assert len(server.requests) == 1
    model, server = talk(in_turn(cut(answer, after=6, clean=clean), HELLO))
    assert model.reply(ask()).text == "Hello."


@pytest.mark.parametrize("after", [3, 19])
def test_a_stream_cut_inside_a_tool_call_gives_no_call_and_is_paid_for(talk, after):
    model, server = talk(in_turn(cut(EDITS, after=after), HELLO))
    reply = model.reply(ask())
    assert reply.uses == ()
    first, second = server.usages
    prompts = [prompt_of(first), prompt_of(second)]
    assert reply.usage.prompt == sum(prompts)
    produced = reply.usage.output - second["output_tokens"]
    assert produced >= (60 if after == 19 else 1), "estimated from what had come"
    assert reply.length == prompts[1] + second["output_tokens"], "the conversation is not longer"


def test_the_wait_that_the_api_asks_for_is_kept(talk):
    told = []
    model, _ = talk(in_turn(rate_limited(0.4), HELLO), told=told)
    began = time.monotonic()
    assert model.reply(ask()).text == "Hello."
    assert time.monotonic() - began >= 0.4
    assert "rate_limit_error" in told[0]


def test_it_gives_up_in_the_end_and_says_what_it_cost(talk):
    broken = overloaded(EDITS, after=6)
    model, server = talk(in_turn(*[broken] * 9))
    with pytest.raises(ModelFailed, match=r"overloaded_error.*gave up after 4 tries") as caught:
        model.reply(ask())
    assert isinstance(caught.value, MachineFailed)
    assert caught.value.exit_code == 3
    assert len(server.requests) == 4
    assert caught.value.usage.prompt == sum(prompt_of(usage) for usage in server.usages)


def test_a_silent_api_does_not_hold_the_run(talk):
    patience = Patience(tries=2, first_s=0.01, silence_s=0.2)
    model, _ = talk(in_turn(silent(), silent(HELLO, after=4)), patience=patience)
    began = time.monotonic()
    with pytest.raises(ModelFailed, match="silent"):
        model.reply(ask())
    assert time.monotonic() - began < 3


def test_nobody_listens(talk, monkeypatch):
    model, server = talk(in_turn(HELLO))
    server.shutdown()
    server.server_close()
    with pytest.raises(ModelFailed, match="no connection to the API"):
        model.reply(ask())


def test_a_wait_ends_with_the_run(talk):
    model, _ = talk(in_turn(rate_limited(60), HELLO), patience=Patience(asked_s=100))
    stopping = Anthropic("claude-opus-5-5", patience=Patience(asked_s=100), stop=lambda: True)
    with pytest.raises(ModelFailed, match="because the run ends"):
        stopping.reply(ask())
    stopping.close()
    model.close()


def test_pauses_grow_and_stay_below_their_limit():
    patience = Patience()
    pauses = [patience.pause(n, None) for n in range(1, patience.tries)]
    assert 0.75 <= pauses[0] <= 1
    assert max(pauses) <= 300
    assert 600 < sum(pauses) < 3_600
    assert patience.pause(1, 40) == 40


# What goes wrong and stays so.


@pytest.mark.parametrize(
    "fault",
    [
        tier_spent(),
        Fault(status=429, kind="rate_limit_error", code="contract_spend_limit_reached"),
        Fault(status=429, kind="rate_limit_error", code="enforced_spend_limit_reached"),
        credit_spent(),
        own_limit_reached(),
        Fault(status=402, kind="billing_error", message="Payment required."),
        rate_limited(7_200),
        Fault(status=429, kind="rate_limit_error", headers={"x-should-retry": "false"}),
        Fault(kind="billing_error", status=200, answer=HELLO, after=3),
    ],
)
def test_quota_that_is_used_up_is_not_asked_again(talk, fault):
    model, server = talk(in_turn(fault, HELLO))
    with pytest.raises(Exhausted) as caught:
        model.reply(ask())
    assert isinstance(caught.value, Refused)
    assert len(server.requests) == 1
    assert "\n" not in str(caught.value)


def test_what_was_paid_before_the_quota_ended_is_told(talk):
    model, server = talk(in_turn(cut(EDITS), tier_spent()))
    with pytest.raises(Exhausted) as caught:
        model.reply(ask())
    assert caught.value.usage.cache_write == server.usages[0]["cache_creation_input_tokens"]


def test_a_wrong_key(talk):
    model, server = talk(in_turn(HELLO), key="another")
    with pytest.raises(WrongKey, match=r"invalid x-api-key.*ANTHROPIC_API_KEY") as caught:
        model.reply(ask())
    assert isinstance(caught.value, BadInput)
    assert server.requests == []


@pytest.mark.parametrize("where", ["HOME", "ANTHROPIC_CONFIG_DIR"])
def test_no_key(monkeypatch, tmp_path, where):
    for name in [name for name in os.environ if name.startswith(("ANTHROPIC_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(where, str(tmp_path))
    with pytest.raises(WrongKey, match="set ANTHROPIC_API_KEY"):
        Anthropic("claude-opus-5-5")


@pytest.mark.parametrize("address", ["localhost:8765", "ftp://127.0.0.1", "http://[::"])
def test_an_address_that_is_none(monkeypatch, address):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", address)
    with pytest.raises(BadInput, match="ANTHROPIC_BASE_URL"):
        Anthropic("claude-opus-5-5")


def test_an_unknown_model(talk):
    model, _ = talk(in_turn(HELLO), name="claude-opus-55")
    with pytest.raises(UnknownModel, match=r"model: claude-opus-55.*--model"):
        model.reply(ask())


def test_an_unknown_effort():
    with pytest.raises(BadInput, match="low, medium, high"):
        Anthropic("claude-opus-5-5", effort="huge")


def test_a_request_that_is_refused_is_not_sent_again(talk):
    model, server = talk(in_turn(refused("tools: bad"), HELLO))
    with pytest.raises(BadRequest, match="tools: bad"):
        model.reply(ask())
    assert len(server.requests) == 1


# The server by hand, and the import that stays lazy.


def test_the_server_runs_by_hand(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(
        "from messages_server import Answer, texts\n"
        "def agent(request):\n    return Answer('You said ' + texts(request)[-1])\n"
    )
    server = Path(__file__).with_name("messages_server.py")
    command = [sys.executable, str(server), str(script), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            name, _, url = process.stdout.readline().strip().partition("=")
            monkeypatch.setenv(name, url)
            monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            model = Anthropic("claude-opus-5-5", patience=QUICK)
            assert model.reply(ask(user_text("hi"))).text == "You said hi"
            model.close()
        finally:
            process.terminate()


def test_importing_the_package_does_not_import_the_sdk():
    code = "import sys, avo_cute.model; sys.exit('anthropic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})
