"""What the commands print: progress on stderr, results on stdout."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..records import Attempt, Status, Verdict
from .table import print_measured

if TYPE_CHECKING:
    from rich.status import Status as Spinner

    from ..ablation import Outcome
    from ..bench import Bench
    from ..run import Run

_COLOURS = {
    Status.ACCEPTED: "green",
    Status.EQUAL: "cyan",
    Status.REJECTED: "yellow",
    Status.NO_CHANGE: "cyan",
}


class Progress:
    """Says on stderr what happens: a live line on a terminal, plain lines elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        self._rich = sys.stderr.isatty() and not quiet
        self._spinner: Spinner | None = None
        self._since = time.monotonic()

    def __enter__(self) -> Progress:
        if self._rich:
            from rich.console import Console

            self._console = Console(stderr=True, highlight=False)
            self._spinner = self._console.status("starting")
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def phase(self, text: str) -> None:
        """What the engine does now."""
        self._since = time.monotonic()
        if self._spinner is not None:
            from rich.markup import escape

            self._spinner.update(escape(text))
        else:
            click.echo(f"… {text}", err=True)

    def attempt(self, attempt: Attempt) -> None:
        """One finished attempt."""
        seconds = time.monotonic() - self._since
        line = f"{attempt_line(attempt)}  [{seconds:.1f} s]"
        if self._spinner is not None:
            from rich.text import Text

            self._console.print(Text.from_ansi(line), soft_wrap=True)  # above the live line
        else:
            click.echo(line, err=True)


def attempt_line(attempt: Attempt) -> str:
    """Number, status, score, gain and subject of an attempt, in columns."""
    status = click.style(f"{attempt.status:<12}", fg=_COLOURS.get(attempt.status, "red"))
    score = "" if attempt.score is None else f"{attempt.score:.4f}"
    gain = "" if attempt.gain is None else f"{attempt.gain - 1:+.2%}"
    return f"{attempt.number:>5}  {status}  {score:>7}  {gain:>8}  {attempt.subject}"


_KINDS = {
    "static": "static — estimated from the machine code, not measured",
    "measured": "measured — paired timing on this machine's GPU",
}
HEADER = f"{'#':>5}  {'status':<12}  {'score':>7}  {'gain':>8}  subject"


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """An attempt as `--json` shows it: trailers' names in snake_case, numbers as numbers."""
    told = {key.lower().replace("-", "_"): value for key, value in attempt.trailers.items()}
    return told | {
        "commit": attempt.commit,
        "tree": attempt.tree,
        "parent": attempt.parent,
        "attempt": attempt.number,
        "status": str(attempt.status),
        "subject": attempt.subject,
        "body": attempt.body,
        "when": attempt.when,
        "score": attempt.score,
        "gain": attempt.gain,
    }


def print_attempt(attempt: Attempt, as_json: bool) -> None:
    from ..history import seen

    if as_json:
        print_json(attempt_json(attempt))
    else:
        click.echo(attempt_line(attempt))
        click.echo(f"      {seen(attempt)}")


def print_outcome(run: Run, ended: str, as_json: bool) -> None:
    """The end of `evolve`: what was tried, and how to read it with plain git."""
    attempts = run.lineage.attempts(run.name)
    fresh = attempts[-run.done :] if run.done else []
    counts: dict[str, int] = {}
    for a in fresh:
        counts[str(a.status)] = counts.get(str(a.status), 0) + 1
    command = git_log(run)
    if as_json:
        print_json(
            {
                "run": run.name,
                "ended": ended,
                "attempts": [attempt_json(a) for a in fresh],
                "outcomes": counts,
                "score": run.standing.score,
                "score_kind": run.bench.kind,
                "spent": asdict(run.spent),
                "git_log": command,
            }
        )
        return
    click.echo(f"\nRun {run.name} ({run.bench.target.title}, {run.group}): {ended}")
    click.echo(f"Score-kind: {_KINDS[run.bench.kind]}\n\n{HEADER}")
    click.echo("\n".join(attempt_line(a) for a in fresh))
    said = ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    paid = f"; spent {run.spent}" if run.spent.tokens else ""
    click.echo(
        f"\n{said or 'no attempts'}; best so far {run.standing.score:.4f} × the seed{paid}\n"
    )
    click.echo(f"Why each ended so:  avo-cute attempts --run {run.name};  avo-cute show NUMBER")
    click.echo(f"With plain git:\n\n  {command}")


def print_arms(outcomes: Sequence[Outcome], as_json: bool) -> None:
    """What the arms of an ablation came to."""
    if as_json:
        print_json({"arms": [asdict(o) for o in outcomes]})
        return
    form = "{:<16} {:>8} {:>9} {:>9} {:>5} {:>9} {:>12}  {}"
    heads = ("arm", "attempts", "accepted", "score", "at", "USD", "tokens", "other outcomes")
    click.echo("\n" + form.format(*heads))
    for o in outcomes:
        usd = f"{o.spent.usd:.2f}" if o.spent.priced else "unknown"
        rest = [f"{n} {s}" for s, n in sorted(o.statuses.items()) if s != "accepted"]
        told = (
            o.arm,
            o.attempts,
            o.statuses.get("accepted", 0),
            f"{o.score:.4f}",
            o.best_at or "-",
        )
        click.echo(form.format(*told, usd, f"{o.spent.tokens:,}", ", ".join(rest)))
    kinds = " and ".join(dict.fromkeys(o.kind for o in outcomes))
    click.echo(f"\nScore-kind: {kinds}. One run of an arm is one draw: arms differ by chance too, ")
    click.echo("and only --repeats shows by how much.")


def git_log(run: Run) -> str:
    form = "%h %(trailers:key=Score,valueonly,separator=%x2C) %s"
    where = shlex.quote(str(run.lineage.path))
    return f"git --git-dir {where} log --format='{form}' lineage/{run.name}"


def print_verdict(bench: Bench, verdict: Verdict, as_json: bool, profile: str = "") -> None:
    """One judged candidate, with the parts of every workload's estimate, and its profile if any."""
    if as_json:
        print_json(verdict_json(bench, verdict) | ({"profile": profile} if profile else {}))
        return
    click.echo(f"{verdict.status}: {verdict.reason}")
    if verdict.score is not None:
        gain = "" if verdict.gain is None else f"  gain {verdict.gain - 1:+.2%}"
        click.echo(f"score {verdict.score:.4f} ({verdict.kind}, {bench.target.title}){gain}")
    if verdict.measured is not None:
        print_measured(verdict.measured)
    else:
        for e in verdict.estimates:
            parts = "  ".join(f"{unit} {cycles:.0f}" for unit, cycles in e.parts.items())
            click.echo(f"  {e.workload:16s} {e.cycles:12.0f} cycles  bound by {e.bound}: {parts}")
    for name, facts in _by_object(verdict).items():
        roles = "/".join(map(str, facts.register_roles)) or str(facts.registers)
        click.echo(
            f"  {name}: registers {roles}, spills {facts.spill_loads}+{facts.spill_stores}"
            f", {facts.instructions} instructions"
        )
    for line in verdict.signals:
        click.echo(f"  signal: {line}")
    if verdict.detail and verdict.detail != verdict.reason:
        click.echo(f"\n{verdict.detail}")
    if profile:
        click.echo(f"\n{profile}")


def _by_object(verdict: Verdict) -> dict[str, Any]:
    names: dict[str, list[str]] = {}
    for workload, facts in verdict.facts.items():
        names.setdefault(facts.cubin_sha256, []).append(workload)
    return {" ".join(group): verdict.facts[group[0]] for group in names.values()}


def verdict_json(bench: Bench, verdict: Verdict) -> dict[str, Any]:
    told = {k: v for k, v in asdict(verdict).items() if v not in (None, "", (), {})}
    told.pop("objects", None)
    told.get("measured", {}).pop("raw", None)
    told |= {"status": str(verdict.status), "score_kind": told.pop("kind", "static")}
    return told | {
        "task": bench.task.name,
        "target": bench.target.name,
        "evaluator": bench.evaluator,
    }


def print_json(document: Mapping[str, Any] | Iterable[Any]) -> None:
    click.echo(json.dumps(document, indent=2, sort_keys=True, default=str))
