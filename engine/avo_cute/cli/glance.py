"""A run at a glance: which attempts are asked for, and the few lines that stand above them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ..budget import run_total
from ..errors import BadInput
from ..history import best_of, kind_of, seen
from ..records import Attempt, Status
from . import options as o
from .bundles import bundle

if TYPE_CHECKING:
    from ..lineage import Lineage

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60  # of a sparkline
_WHY = 110  # characters of a reason under an attempt


@dataclass(frozen=True, slots=True)
class Wish:
    """Which attempts to show. Empty: all of them."""

    statuses: tuple[str, ...] = ()
    operator: str | None = None
    workload: str | None = None
    text: str | None = None
    last: int | None = None

    def of(self, attempts: Sequence[Attempt], workloads: Sequence[str]) -> list[Attempt]:
        """Those that fit; `BadInput` for a workload that the run does not judge."""
        if self.workload is not None and self.workload not in workloads:
            known = ", ".join(workloads) or "none that is known"
            raise BadInput(f"no workload {self.workload} in this run: {known}")
        found = [a for a in attempts if self._fits(a, workloads)]
        return found[-self.last :] if self.last is not None else found

    def _fits(self, attempt: Attempt, workloads: Sequence[str]) -> bool:
        said = f"{attempt.subject}\n{attempt.body}".lower()
        by = attempt.trailers.get("Operator", "")
        return (
            (not self.statuses or attempt.status in self.statuses)
            and (self.operator is None or by.split()[:1] == [self.operator])
            and (self.text is None or self.text.lower() in said)
            and (self.workload is None or gain_on(attempt, self.workload, workloads) is not None)
        )


def _wish(
    statuses: tuple[str, ...] = (),
    operator: str | None = None,
    workload: str | None = None,
    text: str | None = None,
    last: int | None = None,
) -> Wish:
    return Wish(statuses, operator, workload, text, last)


_OPERATOR = o.option("--operator", help="Only of this one, e.g. agent or search.")
_TEXT = o.option("--text", help="Only with this in subject or reasons; case makes no difference.")
_WORKLOAD = o.option("--workload", help="Only with a measured gain on it, which is shown.")
_LAST = o.option("--last", type=click.IntRange(1), help="Only so many, the latest.")
_STATUS = o.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([str(s) for s in Status]),
    help="Only these; may be given more than once.",
)
wish = bundle("wish", _wish, _STATUS, _OPERATOR, _WORKLOAD, _TEXT, _LAST)
wish_of_accepted = bundle("wish", _wish, _OPERATOR, _WORKLOAD, _TEXT, _LAST)


def gain_on(attempt: Attempt, workload: str, workloads: Sequence[str]) -> float | None:
    """The measured gain on one workload, as a ratio; None where the attempt does not tell it."""
    told = attempt.trailers.get("Gains", "").split()
    if len(told) != len(workloads) or workload not in workloads:
        return None
    try:
        return float(told[list(workloads).index(workload)])
    except ValueError:
        return None


def workloads_of(lineage: Lineage, run: str) -> list[str]:
    """The names of the run's public workloads, in the order of its trailers; empty where its task
    is not to be found here."""
    from ..task import find_task

    facts = lineage.run_facts(run)
    try:
        return [w.name for w in find_task(facts["Task"]).select(facts["Workloads"])]
    except BadInput:
        return []


def story(lineage: Lineage, run: str, attempts: Sequence[Attempt]) -> list[str]:
    """What became of a run: its facts, its best score as it grew, outcomes, and its cost."""
    from .. import transcripts

    facts = lineage.run_facts(run)
    made = [a for a in attempts if a.number > 0]
    head = f"{run} ({facts['Task']} for {facts['Target']}, workloads {facts['Workloads']})"
    if not made:
        return [f"{head}: no attempts yet"]
    counts = Counter(str(a.status) for a in made)
    lines = [f"{head}: {len(made)} attempts, {counts['accepted']} accepted"]
    best = best_of(run, attempts)
    if best.number:
        curve = sparkline(running_best(made))
        lines.append(f"best   {curve}  {best.score or 1.0:.4f} ({kind_of(best)}), #{best.number}")
    lines.append("ended  " + ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    kept = {k.number: k.trailers for k in transcripts.sessions(lineage.repo, run)}
    spent = run_total(attempts, kept)
    told = [f"{spent.usd:.2f} USD" + ("" if spent.priced else " and unpriced tokens"),
            f"{spent.tokens:,} tokens"] if spent.tokens else []  # fmt: skip
    told += [f"{spent.gpu_seconds:,.0f} GPU seconds"] if spent.gpu_seconds else []
    return [*lines, *([f"cost   {', '.join(told)}"] if told else [])]


def running_best(attempts: Sequence[Attempt]) -> list[float]:
    """The best accepted score after each attempt, 1.0 before the first one; the highest of its
    kind, since an estimate and a measurement are not compared."""
    measured = any(kind_of(a) == "measured" for a in attempts)
    best, found = 1.0, []
    for a in attempts:
        counts = (kind_of(a) == "measured") == measured
        if a.status is Status.ACCEPTED and a.score is not None and counts:
            best = max(best, a.score)
        found.append(best)
    return found


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Values as bars, the lowest to the highest; where there are many, the last of each share."""
    if not values:
        return ""
    if len(values) > width:
        values = [values[(n + 1) * len(values) // width - 1] for n in range(width)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(_BARS[round((v - low) / span * (len(_BARS) - 1))] for v in values)


def bounds(attempt: Attempt) -> str:
    """The interval of a measured gain, in percent; empty where the attempt tells none."""
    told = attempt.trailers.get("Gain", "").split()
    try:
        low, high = (float(part) - 1 for part in told[1:])
    except ValueError:
        return ""
    return f"  [{low:+.2%}, {high:+.2%}]"


def why(attempt: Attempt) -> str:
    """Why an attempt ended so, on one indented line."""
    from ..sandbox import printable

    text = " ".join(printable(seen(attempt)).split())
    text = text.removeprefix(f"{attempt.status}: ")
    return f"       {text[: _WHY - 1]}…" if len(text) > _WHY else f"       {text}"
