"""How an attempt is written down: the subject, body and trailers of its commit.

git.md calls the message untrusted text; `trailers.compose` is what makes it safe. This module only
decides what is said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .bench import Bench
from .history import SEEN
from .operators import Proposal
from .records import Attempt, Estimate, Measured, Verdict
from .stats import floor_share, tflops
from .trailers import clean_body

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
    against: str = ""  # the commit it was compared with, where that is not the parent


def subject(bench: Bench, proposal: Proposal) -> str:
    """`[CuTe,Fwd,Sm100] Imperative …`, at most 72 characters."""
    prefix = bench.task.settings.subject.get(bench.target.family, f"[{bench.task.name}]")
    text = " ".join(proposal.subject.split())
    if text.startswith("["):
        return text[:SUBJECT_LENGTH]
    return f"{prefix} {text}"[:SUBJECT_LENGTH].rstrip()


def body(proposal: Proposal, verdict: Verdict, origin: Origin) -> str:
    """What the operator said, then what we saw: the only line that says so, whatever they wrote."""
    parts = [f"{verdict.status}: {verdict.reason}"]
    if verdict.measured is not None:
        parts.append(_measured_table(verdict.measured))
    elif verdict.estimates:
        parts.append(_table(verdict))
    if verdict.signals:
        parts.append("Worth a look:\n" + "\n".join(f"  {s}" for s in verdict.signals[:12]))
    if verdict.detail and verdict.detail != verdict.reason:
        parts.append("In detail:\n" + _indent(verdict.detail[:DETAIL_LENGTH]))
    parts.append(f"Rested on {origin.rests_on}")
    said = _without_seen(proposal.body.strip())
    told = _without_seen("\n\n".join(parts)).lstrip()
    return "\n\n".join(part for part in (said, SEEN + told) if part)


def _without_seen(text: str) -> str:
    """A text that cannot pass for the line of ours; control characters could hide it from us."""
    mark = SEEN.strip()
    return clean_body(text).replace(mark, mark[0].lower() + mark[1:])


def trailers(bench: Bench, verdict: Verdict, origin: Origin) -> Mapping[str, str]:
    """git.md's trailers, in its order. Absent facts have no trailer."""
    cycles = " ".join(f"{e.cycles:.0f}" for e in verdict.estimates)
    found = measured_facts(bench, verdict.measured)
    measured = verdict.kind == "measured"
    if origin.against:  # `Gains` speak of the parent
        found.pop("Gains", None)
    pairs = {
        "Run": origin.run,
        "Task": bench.task.name,
        "Attempt": str(origin.number),
        "Status": str(verdict.status),
        "Score": _number(verdict.score),
        "Score-interval": "",
        "Score-kind": verdict.kind if verdict.score is not None or measured else "",
        "Gain": _number(verdict.gain),
        **found,
        "Cycles": cycles,
        "Workloads": origin.group,
        "Target": bench.target.name,
        "Toolchain": _toolchain(verdict),
        "Evaluator": bench.evaluator,
        "Sandbox": verdict.sandbox,
        "Beyond": "yes" if verdict.beyond else "",
        "Artifact": verdict.artifact,
        "Against": origin.against,
        "Operator": origin.operator,
        "Session": str(origin.session),
    }
    return {key: value for key, value in pairs.items() if value}


def session_of(attempt: Attempt) -> int:
    """The session an attempt belongs to; 0 where its trailer says nothing readable."""
    text = attempt.trailers.get("Session", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _toolchain(verdict: Verdict) -> str:
    driver = verdict.measured and verdict.measured.facts.get("driver")
    return f"{verdict.toolchain}; driver {driver}" if driver else verdict.toolchain


def measured_facts(bench: Bench, found: Measured | None) -> dict[str, str]:
    """What only a measurement has. `Gains` are against the incumbent, per public workload."""
    if found is None:
        return {}
    names = [w.name for w in bench.workloads]
    gains = found.workloads.get("incumbent", {})
    pairs = {"Level": found.level, "Device": found.device}
    if found.wall_s > 0:
        pairs["Gpu-seconds"] = f"{found.wall_s:.1f}"
    if found.score is not None:
        pairs["Score-interval"] = f"{found.score.low:.6f} {found.score.high:.6f}"
    if found.gain is not None:
        pairs["Gain"] = f"{found.gain.value:.6f} {found.gain.low:.6f} {found.gain.high:.6f}"
    if set(gains) == set(names):
        pairs["Gains"] = " ".join(f"{gains[n].value:.5f}" for n in names)
    if set(found.seconds) == set(names):
        rates = (tflops(found.flops[n], found.seconds[n]) for n in names)
        pairs["Tflops"] = " ".join(f"{rate:.1f}" for rate in rates)
        pairs["Latency-us"] = " ".join(f"{found.seconds[n] * 1e6:.1f}" for n in names)
    if found.hidden is not None:
        pairs["Hidden"] = f"{found.hidden.value:.6f} {found.hidden_count}"
    return pairs


def _number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6f}"


def _table(verdict: Verdict) -> str:
    lines = [_row(e, verdict) for e in verdict.estimates]
    return "Static estimate (cycles; the unit that decides; registers by role; spills):\n" + (
        "\n".join(lines)
    )


def _measured_table(found: Measured) -> str:
    """Per workload: rate, share of the physical limit, gain against each arm; then the rest."""
    lines = [f"Measured on {found.device} ({found.level} level, {found.rounds} rounds):"]
    for name, seconds in found.seconds.items():
        against = "  ".join(
            f"{arm} {parts[name]}" for arm, parts in found.workloads.items() if name in parts
        )
        rate = tflops(found.flops[name], seconds)
        share = floor_share(found.floor[name], seconds)
        lines.append(f"  {name:16s} {rate:7.1f} TFLOPS  {share:4.0%} of the limit  {against}")
    if found.hidden is not None:
        lines.append(f"  {found.hidden_count} hidden workloads {found.hidden}")
    if found.findings:
        worst = f"the worst at {found.worst:.2f} of its bound ({found.worst_what})"
        lines.append(f"  {found.findings} comparisons with fp64, {worst}")
    lines += [f"  {count} rounds void: {reason}" for reason, count in found.voids.items()]
    return "\n".join(lines)


def _row(estimate: Estimate, verdict: Verdict) -> str:
    facts = verdict.facts.get(estimate.workload)
    known = ""
    if facts is not None:
        roles = "/".join(map(str, facts.register_roles)) or str(facts.registers)
        known = f"  {roles}  {facts.spills}"
    return f"  {estimate.workload:16s} {estimate.cycles:12.0f}  {estimate.bound:8s}{known}"


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
