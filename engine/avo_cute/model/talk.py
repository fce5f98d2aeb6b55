"""What a conversation is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..records import Usage
from .text import sendable

Block = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation; `content` is JSON. Nobody changes it once it was sent."""

    role: Literal["user", "assistant"]
    content: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    """What a model may call; `schema` is the JSON schema of its input, an object."""

    name: str
    description: str
    schema: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Ask:
    """A question. `system` and `tools` should be the same in every ask of a conversation: they
    head the cached prefix, and current models refuse a conversation whose prefix has changed."""

    system: str
    turns: Sequence[Turn]
    tools: Sequence[Tool]
    max_tokens: int  # of the answer, thinking included


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A call that the model asks for. Where it must not be run, `input` is None and `error` says
    why, in words for the model. `name` may be of a tool that does not exist."""

    id: str
    name: str
    input: Mapping[str, object] | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that came to its end.

    `stop` is a key of `STOPS`, or one that did not exist when this was written. Every call in
    `turn` is in `uses`, and wants a result in the next turn. `turn` has no content where the
    answer has none that the API would take back (empty, or thinking only): then append nothing.
    `usage` is all that was billed, broken tries included; `length` is what this conversation holds
    after the answer, in tokens.
    """

    stop: str
    text: str
    uses: tuple[ToolUse, ...]
    usage: Usage
    turn: Turn
    length: int = 0


class Model(Protocol):
    """Answers. Every failure is a `ModelError`, which says what it cost."""

    @property
    def name(self) -> str:
        """What the API calls it."""
        ...

    def reply(self, ask: Ask) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a tool call, for the model."""

    id: str  # of the `ToolUse`
    text: str
    is_error: bool = False


def user_text(text: str) -> Turn:
    """A turn of ours that is plain text."""
    return Turn("user", ({"type": "text", "text": sendable(text)},))


def tool_results(results: Sequence[Answered], text: str = "") -> Turn:
    """A turn of ours with the results of calls, and then perhaps a text."""
    blocks: list[Block] = []
    for result in results:
        block: dict[str, object] = {
            "type": "tool_result",
            "tool_use_id": result.id,
            "content": sendable(result.text),
        }
        if result.is_error:
            block["is_error"] = True
        blocks.append(block)
    if text:
        blocks.append({"type": "text", "text": sendable(text)})
    return Turn("user", tuple(blocks))
