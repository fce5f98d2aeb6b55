"""A server on localhost that speaks the Messages API over HTTP, driven by a script.

    def agent(request: dict) -> Answer | Fault: ...

The script knows what a model would know: the system prompt, the tools and the messages of the
request. The server is as strict as the API is about what it is sent, counts tokens, and caches
prompts by their exact prefix, so that a client which changes its history is found out. By hand:

    python tests/messages_server.py SCRIPT.py --port 8765
    ANTHROPIC_BASE_URL=http://127.0.0.1:8765 ANTHROPIC_API_KEY=test avo-cute evolve --operator agent
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MODELS = {"claude-opus-5-5": True, "claude-haiku-4-5": False}  # whether thinking is adaptive


# What a script answers with.


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Thinking:
    text: str = "Let me think."


@dataclass(frozen=True)
class Redacted:
    data: str = "b3BhcXVl"


@dataclass(frozen=True)
class Use:
    """A tool call. `input` as text goes out as it is, JSON or not."""

    name: str
    input: dict[str, object] | str
    id: str = ""


@dataclass(frozen=True)
class Answer:
    """A complete answer. Its stop reason follows from its parts unless it is given."""

    parts: tuple[object, ...]
    stop: str = ""
    refusal: tuple[str, str] | None = None  # category, explanation

    def __init__(self, *parts: object, stop: str = "", refusal=None):
        parts = tuple(Text(p) if isinstance(p, str) else p for p in parts)
        uses = any(isinstance(p, Use) for p in parts)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "stop", stop or ("tool_use" if uses else "end_turn"))
        object.__setattr__(self, "refusal", refusal)


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong. With `after`, in mid-stream: that many events of `answer` go out
    first. `how` is "status" (an error response, or an error event in mid-stream), "cut" (the
    connection is lost), "end" (the stream ends in good order, too early), "silence" (nothing more
    comes), "garbage" (an event that is not JSON)."""

    how: str = "status"
    status: int = 500
    kind: str = "api_error"
    message: str = "Internal server error"
    code: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    answer: Answer | None = None
    after: int = -1  # -1: before the stream has begun


def rate_limited(seconds: float | str) -> Fault:
    return Fault(
        status=429,
        kind="rate_limit_error",
        message="This request would exceed your organization's rate limit.",
        headers={"retry-after": str(seconds)},
    )


def tier_spent() -> Fault:
    """As documented: the type of a rate limit, a code of its own, and no retry-after."""
    return Fault(
        status=429,
        kind="rate_limit_error",
        message="You have reached your API usage limits: your organization has crossed its monthly "
        "API usage threshold. You will regain access on 2027-01-01 at 00:00 UTC.",
        code="enforced_spend_limit_reached",
    )


def credit_spent() -> Fault:
    return refused(
        "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing "
        "to upgrade or purchase credits."
    )


def own_limit_reached() -> Fault:
    return refused(
        "You have reached your specified API usage limits. You will regain access on 2027-01-01."
    )


def refused(message: str) -> Fault:
    return Fault(status=400, kind="invalid_request_error", message=message)


def prompt_too_long() -> Fault:
    return refused("prompt is too long: 1048600 tokens > 1000000 maximum")


def failing(status: int = 500) -> Fault:
    return Fault(status=status)


def overloaded(answer: Answer | None = None, after: int = -1) -> Fault:
    """529, or in mid-stream an error event after HTTP status 200."""
    return Fault("status", 529, "overloaded_error", "Overloaded", answer=answer, after=after)


def cut(answer: Answer, after: int = 4, clean: bool = False) -> Fault:
    return Fault("end" if clean else "cut", answer=answer, after=after)


def silent(answer: Answer | None = None, after: int = -1) -> Fault:
    return Fault("silence", answer=answer, after=after)


def garbage(answer: Answer, after: int = 2) -> Fault:
    return Fault("garbage", answer=answer, after=after)


Agent = Callable[[dict], "Answer | Fault"]


def in_turn(*steps: Answer | Fault) -> Agent:
    """A script that answers with one step after the other, whatever it is asked."""
    left = iter(steps)
    lock = threading.Lock()

    def agent(request: dict) -> Answer | Fault:
        with lock:
            return next(left, refused("the script has no more steps"))

    return agent


# For scripts: what a model would see in a request.


def texts(request: dict) -> list[str]:
    """Every text of the user's turns, results of tools included, oldest first."""
    found = []
    for message in request["messages"]:
        if message["role"] == "user":
            found += [b.get("text") or b.get("content") or "" for b in blocks_of(message)]
    return found


def results(request: dict) -> list[str]:
    """The tool results of the last turn."""
    last = blocks_of(request["messages"][-1])
    return [block["content"] for block in last if block["type"] == "tool_result"]


def called(request: dict) -> list[tuple[str, dict]]:
    """Every tool call of the conversation so far, as (name, input)."""
    return [
        (block["name"], block["input"])
        for message in request["messages"]
        if message["role"] == "assistant"
        for block in blocks_of(message)
        if block["type"] == "tool_use"
    ]


def blocks_of(message: dict) -> list[dict]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# The server.


class MessagesServer(ThreadingHTTPServer):
    """`url` is for ANTHROPIC_BASE_URL. `requests` are the Messages requests as parsed, `bodies` the
    same as they came, `usages` what was billed for each answer begun."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, agent: Agent, port: int = 0, key: str = "", models=MODELS, catalogue=True):
        super().__init__(("127.0.0.1", port), Handler)
        self.agent, self.key, self.models, self.catalogue = agent, key, models, catalogue
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.requests: list[dict] = []
        self.bodies: list[bytes] = []
        self.usages: list[dict] = []
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.ids = itertools.count(1)
        self.issued: dict[str, tuple[str, str]] = {}  # signature -> the block, what came before it
        self.cached: set[str] = set()  # digests of prompts' prefixes

    def handle_error(self, request, client_address):
        """A client that went away is none of our errors."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(agent: Agent, **how) -> Iterator[MessagesServer]:
    """A server on a free port, for as long as the context lasts."""
    server = MessagesServer(agent, **how)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MessagesServer

    def do_GET(self):
        """One model's entry in the catalogue."""
        name = self.path.partition("/v1/models/")[2].partition("?")[0]
        if not self._admitted():
            return
        if not self.server.catalogue or name not in self.server.models:
            return self._error(Fault(status=404, kind="not_found_error", message=f"model: {name}"))
        self._json(200, catalogue_entry(name, self.server.models[name]), {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path.partition("?")[0] != "/v1/messages":
            return self._error(Fault(status=404, kind="not_found_error", message=self.path))
        if not self._admitted():
            return
        request = json.loads(body)
        with self.server.lock:
            self.server.requests.append(request)
            self.server.bodies.append(body)
        if request.get("model") not in self.server.models:
            missing = f"model: {request.get('model')}"
            return self._error(Fault(status=404, kind="not_found_error", message=missing))
        if wrong := objection(request, self.server.issued):
            return self._error(refused(wrong))
        step = self.server.agent(request)
        if isinstance(step, Answer):
            return self._stream(request, step, None)
        if step.answer is not None or step.after >= 0:
            return self._stream(request, step.answer or Answer(), step)
        if step.how == "silence":
            return self._be_silent()
        if step.how != "status":
            self.close_connection = True
            return self.connection.close()
        self._error(step)

    def _admitted(self) -> bool:
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        given = self.headers.get("x-api-key") or bearer
        if given and (not self.server.key or given == self.server.key):
            return True
        wrong = Fault(status=401, kind="authentication_error", message="invalid x-api-key")
        self._error(wrong)
        return False

    def _stream(self, request: dict, answer: Answer, fault: Fault | None) -> None:
        with self.server.lock:
            usage = billed(request, self.server.cached)
            self.server.usages.append(usage)
        self.send_response(200)
        for key, value in {
            "content-type": "text/event-stream; charset=utf-8",
            "transfer-encoding": "chunked",
            "request-id": self._id("req"),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        for n, event in enumerate(self._events(request, answer, usage)):
            if fault is not None and n >= fault.after:
                return self._break(fault)
            self._event(event)
        if fault is not None:
            return self._break(fault)
        self.wfile.write(b"0\r\n\r\n")

    def _events(self, request: dict, answer: Answer, usage: dict) -> Iterator[dict]:
        message = {
            "id": self._id("msg"),
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 1},
        }
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}
        before = digest_of(request)
        for index, part in enumerate(answer.parts):
            yield from self._block(index, part, before)
        usage["output_tokens"] = 3 + sum(len(str(vars(p))) // 4 for p in answer.parts)
        details = None
        if answer.refusal:
            category, why = answer.refusal
            details = {"type": "refusal", "category": category, "explanation": why}
        delta = {"stop_reason": answer.stop, "stop_sequence": None, "stop_details": details}
        told = {"output_tokens": usage["output_tokens"]}
        yield {"type": "message_delta", "delta": delta, "usage": told}
        yield {"type": "message_stop"}

    def _block(self, index: int, part: object, before: str) -> Iterator[dict]:
        deltas: list[dict] = []
        if isinstance(part, Text):
            block = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(part.text)]
        elif isinstance(part, Thinking):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            signature = f"{self._id('sig')}+/=="
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(part.text)]
            deltas.append({"type": "signature_delta", "signature": signature})
            whole = {"type": "thinking", "thinking": part.text, "signature": signature}
            self.server.issued[signature] = (canonical(whole), before)
        elif isinstance(part, Redacted):
            block = {"type": "redacted_thinking", "data": part.data}
            self.server.issued[part.data] = (canonical(block), before)
        else:
            id = part.id or self._id("toolu")
            block = {"type": "tool_use", "id": id, "name": part.name, "input": {}}
            text = part.input if isinstance(part.input, str) else json.dumps(part.input)
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in ["", *pieces(text)]]
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}

    def _break(self, fault: Fault) -> None:
        if fault.how == "status":
            error = {"type": fault.kind, "message": fault.message}
            self._event({"type": "error", "error": error})
            self.wfile.write(b"0\r\n\r\n")
        elif fault.how == "garbage":
            self._chunk(b"event: content_block_delta\ndata: {not json\n\n")
            self.wfile.write(b"0\r\n\r\n")
        elif fault.how == "end":
            self.wfile.write(b"0\r\n\r\n")
        elif fault.how == "silence":
            self._be_silent()
        else:
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()

    def _be_silent(self) -> None:
        self.wfile.flush()
        self.server.ended.wait(60)
        self.close_connection = True

    def _event(self, event: dict) -> None:
        data = json.dumps(event, ensure_ascii=True)
        self._chunk(f"event: {event['type']}\ndata: {data}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _error(self, fault: Fault) -> None:
        error: dict[str, object] = {"type": fault.kind, "message": fault.message}
        if fault.code:
            error["details"] = {"error_code": fault.code}
        self._json(fault.status, {"type": "error", "error": error}, fault.headers)

    def _json(self, status: int, body: dict, headers: dict[str, str]) -> None:
        data = json.dumps({**body, "request_id": self._id("req")}).encode()
        self.send_response(status)
        for key, value in {"content-type": "application/json", **headers}.items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _id(self, kind: str) -> str:
        return f"{kind}_{next(self.server.ids):06d}"

    def log_message(self, format, *args):
        pass


def pieces(text: str, size: int = 24) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True)


# What the API counts and caches.


def prompt_blocks(request: dict) -> list[str]:
    """The prompt in the order in which it is cached: tools, system, messages; without markers."""
    plain = [*request.get("tools", []), *blocks_of({"content": request.get("system", "")})]
    told = [(m["role"], b) for m in request["messages"] for b in blocks_of(m)]
    return [canonical(_unmarked(b)) for b in plain] + [
        canonical([r, _unmarked(b)]) for r, b in told
    ]


def digest_of(request: dict) -> str:
    return prefixes(prompt_blocks(request))[-1]


def prefixes(blocks: list[str]) -> list[str]:
    """A digest for every prefix of the blocks."""
    digest, found = hashlib.sha256(), []
    for block in blocks:
        digest.update(block.encode("utf-8", "surrogatepass") + b"\0")
        found.append(digest.hexdigest())
    return found


def billed(request: dict, cached: set[str]) -> dict:
    """The usage at the start of an answer. A prompt is cached where a marker stands: at the end of
    marked blocks and, with a marker of the whole request, at its end."""
    blocks = prompt_blocks(request)
    sizes = [len(block) // 4 + 1 for block in blocks]
    digests = prefixes(blocks)
    read = max((n for n, d in enumerate(digests, 1) if d in cached), default=0)
    marks = [n for n, block in enumerate(_in_order(request), 1) if block.get("cache_control")]
    if request.get("cache_control"):
        marks.append(len(blocks))
    cached.update(digests[n - 1] for n in marks)
    last = max(marks, default=0)
    written = sum(sizes[read:last])
    hour = (request.get("cache_control") or {}).get("ttl") == "1h"
    return {
        "input_tokens": sum(sizes[max(last, read) :]),
        "output_tokens": 1,
        "cache_read_input_tokens": sum(sizes[:read]),
        "cache_creation_input_tokens": written,
        "cache_creation": {
            "ephemeral_1h_input_tokens": written if hour else 0,
            "ephemeral_5m_input_tokens": 0 if hour else written,
        },
    }


def _in_order(request: dict) -> list[dict]:
    system = blocks_of({"content": request.get("system", "")})
    messages = [block for m in request["messages"] for block in blocks_of(m)]
    return [*request.get("tools", []), *system, *messages]


def _unmarked(block: dict) -> dict:
    return {key: value for key, value in block.items() if key != "cache_control"}


# What the API refuses.


def objection(request: dict, issued: dict[str, tuple[str, str]]) -> str:
    """Why the request is invalid, in the words of the API where it is known; or ""."""
    for key in ("temperature", "top_p", "top_k"):
        if key in request:
            return f"{key}: Extra inputs are not permitted"
    if not request.get("stream"):
        return "this server streams only"
    if not isinstance(request.get("max_tokens"), int) or request["max_tokens"] < 1:
        return "max_tokens: Input should be greater than or equal to 1"
    for tool in request.get("tools", []):
        if tool["input_schema"].get("type") != "object":
            return "tools.0.custom.input_schema.type: Field required"
    messages = request.get("messages") or []
    if not messages or messages[0]["role"] != "user":
        return "messages: first message must use the user role"
    if messages[-1]["role"] != "user":
        return "This model does not support assistant message prefill."
    open_uses: set[str] = set()
    digests = prefixes(prompt_blocks(request))
    seen = len(digests) - sum(len(blocks_of(message)) for message in messages)
    for n, message in enumerate(messages):
        wrong = _wrong_message(message, open_uses, issued, digests[seen - 1])
        seen += len(blocks_of(message))
        if wrong:
            return f"messages.{n}: {wrong}"
        uses = [b["id"] for b in blocks_of(message) if b["type"] == "tool_use"]
        open_uses = set(uses) if message["role"] == "assistant" else set()
    return ""


def _wrong_message(message: dict, open_uses: set[str], issued: dict, before: str) -> str:
    blocks = blocks_of(message)
    if not blocks:
        return "content must not be empty"
    kinds = [block["type"] for block in blocks]
    if message["role"] == "assistant" and kinds[-1] in ("thinking", "redacted_thinking"):
        return "The final block in an assistant message cannot be `thinking`."
    results = [block for block in blocks if block["type"] == "tool_result"]
    if {block["tool_use_id"] for block in results} != open_uses:
        return "`tool_use` ids were found without `tool_result` blocks immediately after"
    if "tool_result" in kinds[len(results) :]:
        return "tool_result blocks must come first"
    for block in blocks:
        if block["type"] == "text" and not block["text"].strip():
            return "text content blocks must contain non-whitespace text"
        if block["type"] == "tool_use" and not isinstance(block["input"], dict):
            return "tool_use.input: Input should be an object"
        if block["type"] == "tool_result" and block.get("is_error") and not block["content"]:
            return "content cannot be empty if `is_error` is true"
        if block["type"] in ("thinking", "redacted_thinking"):
            known, produced_after = issued.get(
                block.get("signature") or block.get("data"), ("", "")
            )
            if canonical(_unmarked(block)) != known:
                return "`thinking` blocks cannot be modified."
            if produced_after != before:
                return "Invalid `signature`. The block is bound to a different conversation."
    return ""


def catalogue_entry(name: str, adaptive: bool) -> dict:
    yes, no, new = {"supported": True}, {"supported": False}, {"supported": adaptive}
    thinking = {"adaptive": new, "between_tools": no, "disabled": no, "enabled": no}
    levels = dict.fromkeys(("low", "medium", "high", "xhigh", "max"), new)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": "2026-09-22T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 1_000_000 if adaptive else 200_000,
        "max_tokens": 128_000 if adaptive else 64_000,
        "capabilities": {
            **dict.fromkeys(("batch", "citations", "code_execution", "image_input"), yes),
            **dict.fromkeys(("pdf_input", "structured_outputs"), yes),
            "context_management": {"supported": False},
            "server_tools": {"supported": False},
            "effort": {"supported": adaptive, **levels},
            "thinking": {"supported": True, "types": thinking},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="The Messages API on localhost, from a script.")
    parser.add_argument("script", type=Path, help="defines agent(request) -> Answer | Fault")
    parser.add_argument("--port", type=int, default=8765)
    options = parser.parse_args()
    # scripts say `from messages_server import Answer`, and get this very module
    sys.modules["messages_server"] = sys.modules["tests.messages_server"] = sys.modules["__main__"]
    spec = importlib.util.spec_from_file_location("script", options.script)
    script = sys.modules["script"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    server = MessagesServer(script.agent, options.port)
    sys.stdout.write(f"ANTHROPIC_BASE_URL={server.url}\n")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
