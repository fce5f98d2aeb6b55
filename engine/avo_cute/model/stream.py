"""An answer, put together from the events of its stream.

The SDK's own accumulator gives up at the first tool input that is not JSON, and with it goes the
rest of the answer and the count of its tokens. Here every block stays what the API sent, bytes of
thinking and signatures included, and a call that cannot be used is marked as such.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from ..records import Usage
from .talk import Block, Reply, ToolUse, Turn
from .text import well_formed

if TYPE_CHECKING:
    from anthropic.types import RawMessageDeltaEvent, RawMessageStreamEvent
    from anthropic.types import Usage as Billed

# Why an answer ended. Calls are run after `tool_use` only: elsewhere they may be half of one.
STOPS = {
    "tool_use": "tools are to be run",
    "end_turn": "the model had finished",
    "stop_sequence": "it came to a stop sequence",
    "max_tokens": "it reached the limit of its length",
    "pause_turn": "the API paused it",
    "refusal": "the model refused to go on",
    "model_context_window_exceeded": "the conversation fills the model's context window",
}
FULL = "model_context_window_exceeded"
CHARACTERS_A_TOKEN = 4  # to count what a broken stream had produced: the API tells only at its end
_TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_THOUGHT = ("thinking", "redacted_thinking")


@dataclass(slots=True)
class Answer:
    """One answer while it comes in. `usage` is what it has cost so far."""

    usage: Usage = field(default_factory=Usage)
    _stop: str = ""
    _refusal: str = ""
    _characters: int = 0
    _blocks: dict[int, dict[str, object]] = field(default_factory=dict)  # by index
    _inputs: dict[int, str] = field(default_factory=dict)  # JSON of a call's input

    def take(self, event: RawMessageStreamEvent) -> None:
        """Add an event. Kinds of event and of block that are unknown here do no harm."""
        if event.type == "message_start":
            self.usage = _usage(event.message.usage)
        elif event.type == "content_block_start":
            self._blocks[event.index] = event.content_block.to_dict(mode="json")
        elif event.type == "content_block_delta":
            self._extend(event.index, event.delta.to_dict(mode="json"))
        elif event.type == "message_delta":
            self._end(event)

    @property
    def complete(self) -> bool:
        """All of it is here: its end says why it stopped, after every block and with the costs."""
        return bool(self._stop)

    def reply(self) -> Reply:
        """The reply, once `complete`."""
        calls = {i: self._call(i) for i, b in self._blocks.items() if b.get("type") == "tool_use"}
        text = "\n".join(str(b["text"]) for b in self._ordered() if b.get("type") == "text")
        return Reply(
            stop=self._stop,
            text=well_formed(text or self._refusal),
            uses=tuple(calls[i] for i in sorted(calls)),
            usage=self.usage,
            turn=Turn("assistant", _returnable(self._ordered())),
            length=self.usage.tokens,
        )

    def spent(self) -> Usage:
        """What a stream that broke off has cost, its output estimated from what came of it."""
        output = max(self.usage.output, self._characters // CHARACTERS_A_TOKEN)
        told = self.usage
        return Usage(told.input, output, told.cache_read, told.cache_write, told.cache_write_1h)

    def _extend(self, index: int, delta: dict[str, object]) -> None:
        kind = str(delta.get("type"))
        block = self._blocks.get(index)
        if block is None:
            return
        if key := _TEXT_OF.get(kind):
            piece = str(delta.get(key) or "")
            whole = kind != "signature_delta"  # a signature comes in one piece
            block[key] = f"{block.get(key) or ''}{piece}" if whole else piece
        elif kind == "input_json_delta":
            piece = str(delta.get("partial_json") or "")
            self._inputs[index] = self._inputs.get(index, "") + piece
        else:
            return
        self._characters += len(piece)

    def _end(self, event: RawMessageDeltaEvent) -> None:
        """The stop reason, and the final counts: totals, and only those that the API repeats."""
        self._stop = event.delta.stop_reason or ""
        if details := event.delta.stop_details:
            about = f"{details.category or 'no category'}: {details.explanation or 'no reason'}"
            self._refusal = f"(refused; {about})"
        told, last = self.usage, event.usage
        written = _first(last.cache_creation_input_tokens, told.cache_write)
        self.usage = Usage(
            input=_first(last.input_tokens, told.input),
            output=last.output_tokens,
            cache_read=_first(last.cache_read_input_tokens, told.cache_read),
            cache_write=written,
            cache_write_1h=min(told.cache_write_1h, written) if told.cache_write else written,
        )

    def _call(self, index: int) -> ToolUse:
        """The call in a block; the block's input becomes what can be sent back."""
        block = self._blocks[index]
        error, parsed = "", block.get("input") or {}
        if text := well_formed(self._inputs.get(index, "")):
            try:
                parsed = json.loads(text, parse_constant=_no_constant)
            except (ValueError, RecursionError) as wrong:  # brackets without end
                error = f"not run: the input is not valid JSON ({wrong})"
        if not error and not isinstance(parsed, dict):
            error = "not run: the input is not a JSON object"
        if not error and not _encodes(parsed):
            error = "not run: the input holds characters that are not Unicode"
        # The API takes nothing but an object; the key is the one its documentation suggests.
        block["input"] = {"INVALID_JSON": text} if error else parsed
        if self._stop != "tool_use":
            error = f"not run: {STOPS.get(self._stop, 'the answer ended')} before it was complete"
        given = None if error or not isinstance(parsed, dict) else parsed
        return ToolUse(str(block.get("id")), str(block.get("name")), given, error)

    def _ordered(self) -> list[dict[str, object]]:
        return [self._blocks[index] for index in sorted(self._blocks)]


def _returnable(blocks: list[dict[str, object]]) -> tuple[Block, ...]:
    """The blocks without those that the API refuses to take back: blank text anywhere, and
    thinking at the end of an answer."""
    kept: list[Block] = []
    for block in blocks:
        if block.get("type") == "text":
            text = well_formed(str(block["text"]))
            if not text.strip():
                continue
            block = {**block, "text": text}
        kept.append(block)
    while kept and kept[-1].get("type") in _THOUGHT:
        kept.pop()
    return tuple(kept)


def _usage(told: Billed) -> Usage:
    written = told.cache_creation_input_tokens or 0
    split = told.cache_creation
    return Usage(
        input=told.input_tokens,
        output=told.output_tokens,
        cache_read=told.cache_read_input_tokens or 0,
        cache_write=written,
        # without a breakdown it is what we asked for
        cache_write_1h=split.ephemeral_1h_input_tokens if split else written,
    )


def _first(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _encodes(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
