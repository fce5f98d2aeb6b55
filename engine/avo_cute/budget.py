"""Budget: what a run may spend, what it has spent, and what is left to buy for it.

Pure: reads the table of prices (`prices.toml`), the trailers of commits, and nothing else. Amounts
are USD, tokens, seconds; limits are for one invocation, like `--attempts`: so much *more*.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

from .errors import BadInput
from .records import Attempt, Usage


@dataclass(frozen=True, slots=True)
class Spent:
    """What something has cost. `priced` False: `usd` lacks tokens whose price is not known."""

    usd: float = 0.0
    tokens: int = 0
    gpu_seconds: float = 0.0
    attempts: int = 0
    priced: bool = True

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.usd + other.usd,
            self.tokens + other.tokens,
            self.gpu_seconds + other.gpu_seconds,
            self.attempts + other.attempts,
            self.priced and other.priced,
        )

    def __str__(self) -> str:
        """For people: `4.10 USD, 812,340 tokens, 17 attempts`."""
        usd = f"{self.usd:.2f} USD" if self.priced else f"{self.usd:.2f} USD and unpriced tokens"
        return f"{usd}, {self.tokens:,} tokens, {_count(self.attempts, 'attempt')}"


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop; None is no limit."""

    usd: float | None = None
    tokens: int | None = None
    hours: float | None = None
    attempts: int | None = None
    gpu_seconds: float | None = None

    def reached(self, spent: Spent, elapsed_s: float) -> str:
        """The line that says which limit is reached, or an empty string. Ask between two steps."""
        for limit, now, line in (
            (self.usd, spent.usd, f"{spent.usd:.2f} of {self.usd or 0:.2f} USD spent"),
            (self.tokens, spent.tokens, f"{spent.tokens:,} of {self.tokens or 0:,} tokens used"),
            (self.attempts, spent.attempts, f"{_count(spent.attempts, 'attempt')} done"),
            (self.gpu_seconds, spent.gpu_seconds, f"{spent.gpu_seconds:.0f} GPU seconds used"),
            (self.hours, elapsed_s / 3600, f"{self.hours or 0:g} hours are over"),
        ):
            if limit is not None and now >= limit:
                return line
        return ""

    def left(self, spent: Spent, elapsed_s: float) -> str:
        """What may still be spent, in words; empty without a limit."""
        amounts = (
            (self.attempts, spent.attempts, "{:,.0f} attempts"),
            (self.usd, spent.usd, "{:.2f} USD"),
            (self.tokens, spent.tokens, "{:,.0f} tokens"),
            (self.hours, elapsed_s / 3600, "{:.1f} hours"),
            (self.gpu_seconds, spent.gpu_seconds, "{:,.0f} GPU seconds"),
        )
        told = ((form, max(0.0, limit - now)) for limit, now, form in amounts if limit is not None)
        return ", ".join(_one(form.format(left)) for form, left in told)


def check(budget: Budget, model: str) -> None:
    """`BadInput` for a limit that cannot be kept: negative or not a number, or in USD where the
    model's price is not known."""
    for name in ("usd", "tokens", "hours", "attempts", "gpu_seconds"):
        value = getattr(budget, name)
        if value is not None and not 0 <= value < math.inf:
            raise BadInput(f"a budget of {value} {name.replace('_', ' ')} is no budget")
    if budget.usd is not None and model and price_of(model) is None:
        raise BadInput(f"no price is known for {model}: limit its tokens, --budget-tokens N")


def cost(model: str, usage: Usage) -> float | None:
    """USD for the usage of *one* request (some models charge by its length); None where the table
    has no price. Formula: the API's, every kind of token at its own price."""
    price = price_of(model)
    if price is None:
        return None
    if price.long is not None and usage.prompt > price.above:
        price = price.long
    return (
        usage.input * price.input
        + usage.output * price.output
        + usage.cache_read * price.cache_read
        + (usage.cache_write - usage.cache_write_1h) * price.cache_write
        + usage.cache_write_1h * price.cache_write_1h
    ) / 1e6


def spent_on(model: str, usage: Usage) -> Spent:
    """The same as `Spent`."""
    usd = cost(model, usage)
    return Spent(usd=usd or 0.0, tokens=usage.tokens, priced=usd is not None)


@dataclass(frozen=True, slots=True)
class Price:
    """USD per million tokens. Prompts longer than `above` tokens pay `long` for everything."""

    input: float
    output: float
    cache_read: float
    cache_write: float
    cache_write_1h: float
    above: int = 0
    long: Price | None = None


def price_of(model: str) -> Price | None:
    """The price of a model, which may be named with the date of a snapshot."""
    prices = _table()[0]
    return prices.get(model) or prices.get(_SNAPSHOT.sub("", model))


def price_source() -> str:
    """Where the prices are from, and of when."""
    return _table()[1]


# How trailers say it: git.md.


def trailers_of(usage: Usage, usd: float | None, gpu_seconds: float = 0.0) -> dict[str, str]:
    """`Tokens:`, `Cost-usd:` and `Gpu-seconds:`, as far as there is something to say. `usd` None is
    an unknown price."""
    told: dict[str, str] = {}
    if usage.tokens:
        amounts = (usage.input, usage.output, usage.cache_read, usage.cache_write)
        told["Tokens"] = " ".join(f"{k}={n}" for k, n in zip(_KINDS, amounts, strict=True))
        if usd is not None:
            told["Cost-usd"] = f"{usd:.4f}"
    if gpu_seconds > 0:
        told["Gpu-seconds"] = f"{gpu_seconds:.1f}"
    return told


def read_trailers(trailers: Mapping[str, str]) -> Spent:
    """What a commit says it has cost. Never raises: what is missing or malformed counts nothing,
    and tokens without a usable cost are unpriced."""
    tokens = sum(int(n) for n in _AMOUNT.findall(trailers.get("Tokens", "")))
    usd = _amount(trailers.get("Cost-usd", ""))
    seconds = _amount(trailers.get("Gpu-seconds", ""))
    return Spent(usd or 0.0, tokens, seconds or 0.0, priced=usd is not None or not tokens)


def run_total(attempts: Iterable[Attempt], sessions: Mapping[int, Mapping[str, str]]) -> Spent:
    """What a run has cost. A session's own commit (its trailers, by number) has the total of the
    session; attempts of sessions without such a commit say it themselves."""
    total = Spent()
    for attempt in attempts:
        told = read_trailers(attempt.trailers)
        if _session(attempt) in sessions:
            told = Spent(gpu_seconds=told.gpu_seconds)
        total += told + Spent(attempts=1 if attempt.number > 0 else 0)
    for trailers in sessions.values():
        told = read_trailers(trailers)
        total += Spent(told.usd, told.tokens, priced=told.priced)
    return total


RECENT = 50  # attempts that an estimate looks back


def estimate(budget: Budget, history: Sequence[Attempt]) -> str:
    """What the budget buys, at what the last attempts (oldest first) took on average; "" without a
    limit. For the time it is the middle value, since a run is paused now and then."""
    recent = [a for a in history if a.number > 0][-RECENT:]
    each = [read_trailers(a.trailers) for a in recent]
    gaps = [b.when - a.when for a, b in pairwise(recent) if b.when > a.when]
    rates = (
        (budget.usd, _mean([s.usd for s in each if s.priced]), "{:.2f} USD"),
        (budget.tokens, _mean([float(s.tokens) for s in each]), "{:,.0f} tokens"),
        (budget.gpu_seconds, _mean([s.gpu_seconds for s in each]), "{:,.0f} GPU seconds"),
        (budget.hours, median(gaps) / 3600 if gaps else 0.0, "{:.2f} hours"),
    )
    parts, counts = [], []
    if budget.attempts is not None:
        parts.append(_count(budget.attempts, "attempt"))
        counts.append(budget.attempts)
    for limit, rate, form in rates:
        if limit is None:
            continue
        if rate <= 0:
            parts.append(f"{form.format(limit)}, with no earlier attempt to estimate from")
            continue
        counts.append(int(limit / rate))
        buys = f"about {_count(counts[-1], 'attempt')} for {form.format(limit)}"
        parts.append(f"{buys}, at {form.format(rate)} each")
    if len(counts) > 1:
        parts.append(f"so about {_count(min(counts), 'attempt')} in all")
    seen = f" (from the last {_count(len(recent), 'attempt')})" if recent and parts else ""
    return "; ".join(parts) + seen


_KINDS = ("in", "out", "cache-read", "cache-write")
_AMOUNT = re.compile(rf"(?<![\w-])(?:{'|'.join(_KINDS)})=([0-9]{{1,15}})(?![\w.])")
_SNAPSHOT = re.compile(r"-20[0-9]{6}$")


@functools.cache
def _table() -> tuple[dict[str, Price], str]:
    """Prices by model, and their source."""
    raw = tomllib.loads(Path(__file__).with_name("prices.toml").read_text("utf-8"))
    prices = {}
    for row in raw["price"]:
        name, long = row.pop("model"), row.pop("long", None)
        above = long.pop("above") if long else 0
        prices[name] = Price(**row, above=above, long=Price(**long) if long else None)
    return prices, f"{raw['source']}, read {raw['read']}"


def _amount(text: str) -> float | None:
    """A plain decimal number of zero or more, or None."""
    return float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text.strip()) else None


def _session(attempt: Attempt) -> int:
    text = attempt.trailers.get("Session", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def _one(text: str) -> str:
    return text.removesuffix("s") if text.startswith("1 ") else text


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
