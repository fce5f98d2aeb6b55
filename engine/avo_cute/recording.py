"""How an attempt is written down: the subject, body and trailers of its commit.

git.md calls the message untrusted text; `trailers.compose` is what makes it safe. This module only
decides what is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .history import SEEN
from .operators import Proposal
from .records import Estimate, Verdict
from .score import Bench

SUBJECT_LENGTH = 72
DETAIL_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an attempt comes from: run, number, session, who varied, what it rested on."""

    run: str
    number: int
    session: int
    operator: str
    group: str  # the --workloads of the run
    rests_on: str  # abbreviated commit and subject of the parent


def subject(bench: Bench, proposal: Proposal) -> str:
    """`[CuTe,Fwd,Sm100] Imperative …`, at most 72 characters."""
    prefix = bench.task.settings.subject.get(bench.target.family, f"[{bench.task.name}]")
    text = " ".join(proposal.subject.split())
    if text.startswith("["):
        return text[:SUBJECT_LENGTH]
    return f"{prefix} {text}"[:SUBJECT_LENGTH].rstrip()


def body(proposal: Proposal, verdict: Verdict, origin: Origin) -> str:
    """What the operator said, then what we saw."""
    parts = [proposal.body.strip(), f"{SEEN}{verdict.status}: {verdict.reason}"]
    if verdict.estimates:
        parts.append(_table(verdict))
    if verdict.signals:
        parts.append("Worth a look:\n" + "\n".join(f"  {s}" for s in verdict.signals[:12]))
    if verdict.detail and verdict.detail != verdict.reason:
        parts.append("In detail:\n" + _indent(verdict.detail[:DETAIL_LENGTH]))
    parts.append(f"Rested on {origin.rests_on}")
    return "\n\n".join(part for part in parts if part)


def trailers(bench: Bench, verdict: Verdict, origin: Origin) -> Mapping[str, str]:
    """git.md's trailers, in its order. Absent facts have no trailer."""
    cycles = " ".join(f"{e.cycles:.0f}" for e in verdict.estimates)
    pairs = {
        "Run": origin.run,
        "Task": bench.task.name,
        "Attempt": str(origin.number),
        "Status": str(verdict.status),
        "Score": _number(verdict.score),
        "Score-kind": verdict.kind if verdict.score is not None else "",
        "Gain": _number(verdict.gain),
        "Cycles": cycles,
        "Workloads": origin.group,
        "Target": bench.target.name,
        "Toolchain": verdict.toolchain,
        "Evaluator": bench.evaluator,
        "Sandbox": verdict.sandbox,
        "Artifact": verdict.artifact,
        "Operator": origin.operator,
        "Session": str(origin.session),
    }
    return {key: value for key, value in pairs.items() if value}


def _number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6f}"


def _table(verdict: Verdict) -> str:
    lines = [_row(e, verdict) for e in verdict.estimates]
    return "Static estimate (cycles; the unit that decides; registers by role; spills):\n" + (
        "\n".join(lines)
    )


def _row(estimate: Estimate, verdict: Verdict) -> str:
    facts = verdict.facts.get(estimate.workload)
    known = ""
    if facts is not None:
        roles = "/".join(map(str, facts.register_roles)) or str(facts.registers)
        known = f"  {roles}  {facts.spills}"
    return f"  {estimate.workload:16s} {estimate.cycles:12.0f}  {estimate.bound:8s}{known}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
