"""Anthropic's Messages API as a `Model`.

    reply(ask)  →  [ one streamed call  →  Answer ]  again while that may help, then an error

Every call streams, so that silence is noticed and long answers arrive. The SDK's own retries are
off: they know neither of streams that break off, nor of what such a try has cost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import BadInput, BadRequest, ModelFailed, UnknownModel, WrongKey
from ..records import Usage
from .stream import FULL, Answer
from .talk import Ask, Reply, Turn
from .text import sendable

if TYPE_CHECKING:
    from anthropic import Anthropic as Client
    from anthropic.types import ModelInfo

T = TypeVar("T")

EFFORTS = ("low", "medium", "high", "xhigh", "max")
# An evaluation takes longer than the five minutes a prompt is cached for by default.
_CACHED = {"type": "ephemeral", "ttl": "1h"}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to bear with an API that fails: with these values twenty minutes and more."""

    tries: int = 12
    first_s: float = 1.0  # pause after the first failure; then always twice as long
    longest_s: float = 300.0
    asked_s: float = 3600.0  # the longest pause the API may ask for: more means no quota
    silence_s: float = 600.0  # without a byte

    def pause(self, failures: int, asked: float | None) -> float:
        """Seconds to wait after so many failures in a row, at random by a quarter: never less than
        the API asks for."""
        own = min(self.first_s * 2.0 ** (failures - 1), self.longest_s)
        return max(own * random.uniform(0.75, 1.0), asked or 0.0)


class Anthropic:
    """A model of Anthropic's API. Key and address come from the environment, as the SDK reads it.

    `effort` None leaves it to the model. `tell` gets a line for every try that failed; a wait ends
    early, with `ModelFailed`, once `stop` says that the run ends.
    """

    def __init__(
        self,
        name: str,
        effort: str | None = None,
        patience: Patience | None = None,
        tell: Callable[[str], object] = lambda line: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        if effort is not None and effort not in EFFORTS:
            raise BadInput(f"unknown effort {effort!r}: use {', '.join(EFFORTS)}")
        self.name = name
        self._effort = effort
        self._patience = patience or Patience()
        self._tell, self._stop = tell, stop
        self._client = _client(self._patience.silence_s)
        self._settings: dict[str, object] | None = None
        self._longest = 0  # tokens of an answer that the model can give; 0 is unknown

    def reply(self, ask: Ask) -> Reply:
        """One answer. Where the conversation does not fit the model, an empty one that says so."""
        from .faults import FAILURES, CutShort, Full

        request = self._request(ask)

        def once(answer: Answer) -> Reply:
            try:
                with self._client.messages.create(**request, stream=True) as events:
                    for event in events:
                        answer.take(event)
            except FAILURES:
                if not answer.complete:  # what is complete is paid for and kept
                    raise
            if not answer.complete:
                raise CutShort
            return answer.reply()

        try:
            reply, lost = self._bear(once)
        except Full as full:
            return Reply(FULL, str(full), (), full.usage, Turn("assistant", ()))
        return replace(reply, usage=reply.usage + lost)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _bear(self, once: Callable[[Answer], T]) -> tuple[T, Usage]:
        """The result of `once`, tried as often as patience allows, and what broken tries cost."""
        from .faults import FAILURES, sort

        lost = Usage()
        for failures in range(1, self._patience.tries + 1):
            answer = Answer()
            try:
                return once(answer), lost
            except FAILURES as failure:
                lost += answer.spent()
                fault = sort(failure, self._patience.asked_s)
            if fault.error is not None:
                raise fault.error(fault.text, lost)
            if failures < self._patience.tries:
                self._wait(self._patience.pause(failures, fault.wait_s), fault.text, lost)
        raise ModelFailed(f"{fault.text}; gave up after {failures} tries", lost)

    def _wait(self, seconds: float, why: str, lost: Usage) -> None:
        self._tell(f"{why}; trying again in {seconds:.0f} s")
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._stop():
                raise ModelFailed(f"{why}; not tried again, because the run ends", lost)
            time.sleep(min(left, 0.25))

    def _request(self, ask: Ask) -> dict[str, Any]:
        """The call's arguments. What heads the prompt is the same bytes in every call."""
        if self._settings is None:
            self._settings = self._agreed(self._look_up())
        limit = min(ask.max_tokens, self._longest or ask.max_tokens)
        # A question without tools is asked once; the mark at the end of a conversation moves on.
        mark = {"cache_control": _CACHED} if ask.tools else {}
        return {
            "model": self.name,
            "max_tokens": limit,
            **mark,
            "system": [{"type": "text", "text": sendable(ask.system), **mark}],
            "tools": [
                {"name": t.name, "description": t.description, "input_schema": t.schema}
                for t in ask.tools
            ],
            "messages": [{"role": t.role, "content": list(t.content)} for t in ask.turns],
            **self._settings,
        }

    def _look_up(self) -> ModelInfo | None:
        """What the API says about the model; None where it does not, as some gateways."""
        try:
            return self._bear(lambda _: self._client.models.retrieve(self.name))[0]
        except (WrongKey, UnknownModel, BadRequest):
            return None  # if it is more than a missing page, the call itself will say so

    def _agreed(self, info: ModelInfo | None) -> dict[str, object]:
        """Thinking and effort, as far as the model takes them. Decided once: a change in the middle
        of a conversation would lose its cache. `BadInput` for an effort the model does not have."""
        can = info.capabilities if info else None
        self._longest = (info.max_tokens or 0) if info else 0
        settings: dict[str, object] = {}
        if can is None or can.thinking.types.adaptive.supported:
            # summaries, so that a transcript can be read; what is sent back is the signature's
            settings["thinking"] = {"type": "adaptive", "display": "summarized"}
        if self._effort is not None:
            level = getattr(can.effort, self._effort) if can else None
            if can is not None and (level is None or not level.supported):
                raise BadInput(f"{self.name} does not take --effort {self._effort}")
            settings["output_config"] = {"effort": self._effort}
        return settings


def _client(silence_s: float) -> Client:
    """The SDK's client; `BadInput` where its key or address is missing or of no use."""
    import anthropic
    import httpx2

    timeout = httpx2.Timeout(silence_s, connect=min(silence_s, 30.0))
    try:
        client = anthropic.Anthropic(max_retries=0, timeout=timeout)
    except anthropic.CredentialsError as error:
        raise WrongKey(f"no usable credentials ({error}): set ANTHROPIC_API_KEY") from None
    except httpx2.InvalidURL as error:
        raise BadInput(f"ANTHROPIC_BASE_URL: {error}") from None
    if client.api_key is None and client.auth_token is None and client.credentials is None:
        raise WrongKey("no key for the model's API: set ANTHROPIC_API_KEY")
    if client.base_url.scheme not in ("http", "https"):
        raise BadInput(f"ANTHROPIC_BASE_URL: {client.base_url} is not an http address")
    return client
