"""Summary: what several measuring processes found about one candidate, for verdict and reader."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from .decision import Ruling
from .measure.floor import Floor, floor
from .measure.request import Finding, Result
from .records import Measured, Samples, Workload
from .stats import median

if TYPE_CHECKING:
    from .bench import Bench

UNSUPPORTED = "unsupported by the seed"


def summary(results: Sequence[Result], ruling: Ruling | None, level: str, bench: Bench) -> Measured:
    """Everything in one record; `ruling` is None where the candidate failed before a decision."""
    told = ruling or Ruling(None, "")
    findings = [f for r in results for f in r.findings]
    judged = [f for f in findings if not f.what.startswith(UNSUPPORTED)]
    worst = max(judged, key=lambda f: f.worst, default=None)
    samples = [s for r in results for s in r.samples]
    timed_s = sum(r.timed_s for r in results)
    facts = next((r.facts for r in results if r.facts), {})
    return Measured(
        level=level,
        device=str(facts.get("device", "")),
        seconds=_medians(samples, "sustained"),
        cold=_medians(samples, "cold"),
        flops={w.name: float(bench.task.reference.flops(w.params)) for w in bench.workloads},
        floor={name: f.seconds for name, f in floors(bench).items()},
        gain=told.gain,
        score=told.score,
        workloads=told.workloads,
        overall=told.overall,
        hidden=told.hidden,
        hidden_count=told.hidden_count,
        margin=told.margin,
        rounds=told.rounds,
        voids=_kinds(told.voids),
        findings=len(judged),
        worst=worst.worst if worst else 0.0,
        worst_what=_what(worst),
        unsupported=tuple(sorted({f"{f.workload}: {f.what}" for f in findings if f not in judged})),
        facts=_facts(results),
        busy=sum(r.busy_s for r in results) / timed_s if timed_s else 0.0,
        wall_s=sum(r.wall_s for r in results),
        raw=json.dumps([asdict(r) for r in results]),
    )


def _medians(samples: Sequence[Samples], mode: str) -> dict[str, float]:
    """The candidate's time by public workload: the median over valid rounds of all processes."""
    times: dict[str, list[float]] = {}
    for s in samples:
        if s.mode == mode and s.role == "public" and "candidate" in s.times:
            pairs = zip(s.times["candidate"], s.void, strict=True)
            sound = (t for t, void in pairs if not void and math.isfinite(t) and t > 0)
            times.setdefault(s.workload, []).extend(sound)
    return {name: median(values) for name, values in times.items() if values}


def floors(bench: Bench, workloads: Sequence[Workload] = ()) -> dict[str, Floor]:
    """The physical limits of the workloads, or of the public ones."""
    multiplies = bool(bench.task.settings.audit.matrix.get(bench.target.family))
    reference = bench.task.reference
    return {
        w.name: floor(reference, w.params, bench.target, multiplies=multiplies)
        for w in workloads or bench.workloads
    }


def _kinds(voids: Mapping[str, int]) -> dict[str, int]:
    """Reasons without their numbers and arms: "SM clocks apart", "two clocks disagree"."""
    kinds: Counter[str] = Counter()
    for reason, count in voids.items():
        kinds[reason.partition(":")[0].partition(" for ")[0]] += count
    return dict(kinds.most_common())


def _facts(results: Sequence[Result]) -> dict[str, str | float]:
    """The first process's facts; of what moves, the range over all of them."""
    facts: dict[str, str | float] = dict(results[0].facts) if results else {}
    clocks = [
        mhz for r in results for s in r.samples for mhz in s.clocks.get("candidate", ()) if mhz > 0
    ]
    if clocks:
        facts |= {"sm_mhz_low": min(clocks), "sm_mhz_high": max(clocks)}
    return facts


def _what(finding: Finding | None) -> str:
    return f"{finding.what}, {finding.family} of {finding.workload}" if finding else ""
