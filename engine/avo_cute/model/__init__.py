"""A language model as the engine sees it: one question, one reply, and what it cost.

    Ask (system, turns, tools)  →  Model.reply  →  Reply (stop, text, uses, usage, turn)

A conversation is a list of turns that only grows: append `reply.turn` as it is, then a turn of
ours. Nothing else in the engine knows whose API it is; `Anthropic` is the only real model.
"""

from ..errors import BadRequest, Exhausted, ModelError, ModelFailed, UnknownModel, WrongKey
from ..records import Usage
from .api import Anthropic, Patience
from .stream import STOPS
from .talk import Answered, Ask, Model, Reply, Tool, ToolUse, Turn, tool_results, user_text

__all__ = [
    "STOPS",
    "Answered",
    "Anthropic",
    "Ask",
    "BadRequest",
    "Exhausted",
    "Model",
    "ModelError",
    "ModelFailed",
    "Patience",
    "Reply",
    "Tool",
    "ToolUse",
    "Turn",
    "UnknownModel",
    "Usage",
    "WrongKey",
    "tool_results",
    "user_text",
]
