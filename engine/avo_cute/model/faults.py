"""What a failed call means: to be tried again, or one of our errors with its remedy.

Sources: the API's pages "Errors" and "Rate limits" (platform.claude.com/docs/en/api/errors and
/rate-limits, read 2026-12-01) and the error codes in the SDK's types.
"""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass

import anthropic
import httpx2

from ..errors import BadRequest, Exhausted, ModelError, UnknownModel, WrongKey

# All that a call or its stream may raise. The SDK does not wrap what happens in mid-stream: a lost
# connection is httpx2's error, and an event that is not JSON a ValueError.
FAILURES = (anthropic.AnthropicError, httpx2.HTTPError, ValueError)


class CutShort(anthropic.AnthropicError):
    """The stream ended in good order, but before the answer did."""


class Full(BadRequest):
    """The conversation does not fit the model."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure, sorted. `error` is None where trying again may help; `wait_s` is how long the API
    asks us to wait, None where it does not say."""

    text: str  # one line
    error: type[ModelError] | None = None
    wait_s: float | None = None


def sort(failure: BaseException, patience_s: float) -> Fault:
    """Sort one of `FAILURES`. Who is told to wait longer than `patience_s` is out of quota."""
    if isinstance(failure, anthropic.APIStatusError):
        return _status(failure, patience_s)
    if isinstance(failure, anthropic.CredentialsError):
        return Fault(f"no usable credentials ({_line(failure)}): set ANTHROPIC_API_KEY", WrongKey)
    if isinstance(failure, anthropic.APITimeoutError | httpx2.TimeoutException):
        return Fault("the API was silent")
    if isinstance(failure, CutShort):
        return Fault("the answer broke off")
    if isinstance(failure, anthropic.APIConnectionError) and failure.__cause__ is not None:
        return Fault(f"no connection to the API: {_line(failure.__cause__)}")
    return Fault(f"the answer broke off: {_line(failure)}")


def _status(failure: anthropic.APIStatusError, patience_s: float) -> Fault:
    """By HTTP status. In mid-stream that is 200 already, and the error's type stands for it."""
    status, kind = failure.status_code, failure.type or ""
    if status == 200:
        status = _MIDWAY.get(kind, 500)
    said = failure.api_message or _line(failure)
    text = f"{kind or status}: {' '.join(said.split())[:300]}"
    wait_s = _retry_after(failure.response.headers)
    if _is_exhausted(failure, status, said.lower()):
        return Fault(f"no more credit or quota at the API ({text})", Exhausted)
    if status == 429 and wait_s is not None and wait_s > patience_s:
        return Fault(f"the API asks to wait {wait_s / 3600:.1f} hours ({text})", Exhausted)
    if status in (408, 409, 429) or status >= 500:
        return Fault(text, wait_s=None if wait_s is None else min(wait_s, patience_s))
    if status == 413 or any(words in said.lower() for words in _TOO_LONG):
        return Fault(text, Full)
    if status in (401, 403):
        remedy = "check ANTHROPIC_API_KEY, and which models the key may use"
        return Fault(f"the API refuses the key ({text}); {remedy}", WrongKey)
    if status == 404:
        remedy = "check --model, and ANTHROPIC_BASE_URL if it is set"
        return Fault(f"the API has no such model ({text}); {remedy}", UnknownModel)
    return Fault(f"the API refuses the request ({text})", BadRequest)


_MIDWAY = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "rate_limit_error": 429,
}
_TOO_LONG = ("prompt is too long", "exceed context limit")
_EXHAUSTED_CODES = frozenset(
    {
        "contract_spend_limit_reached",
        "enforced_spend_limit_reached",
        "linked_organization_billing_unavailable",
        "linked_organization_spend_limit_reached",
    }
)
# An empty account and a limit that its owner has set come as 400 without a code.
_EXHAUSTED_WORDS = ("credit balance is too low", "api usage limits", "spend limit")


def _is_exhausted(failure: anthropic.APIStatusError, status: int, said: str) -> bool:
    if status == 402 or failure.error_code in _EXHAUSTED_CODES:
        return True
    if status == 429 and failure.response.headers.get("x-should-retry") == "false":
        return True
    return status in (400, 403, 429) and any(words in said for words in _EXHAUSTED_WORDS)


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds, from a header that gives seconds or a date; None where there is no usable one."""
    told = headers.get("retry-after", "")
    try:
        seconds = float(told)
    except ValueError:
        when = email.utils.parsedate_tz(told)
        try:
            seconds = email.utils.mktime_tz(when) - time.time() if when else float("inf")
        except (ValueError, OverflowError):  # a date that no calendar has
            return None
    return max(seconds, 0.0) if seconds < float("inf") else None


def _line(failure: BaseException) -> str:
    return " ".join(str(failure).split())[:300] or type(failure).__name__
