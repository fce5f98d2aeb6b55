"""What a lineage knows of a run, as plain data: attempts, samples, calibrations."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from avo_cute.lineage import Lineage
from avo_cute.records import Attempt, Status
from avo_cute.stats import median, spearman
from avo_cute.task import find_task


def run_of(lineage: Lineage, run: str) -> dict[str, Any]:
    """Everything that the lineage knows of a run, as plain data."""
    facts = lineage.run_facts(run)
    workloads = find_task(facts["Task"]).select(facts["Workloads"])
    attempts = lineage.attempts(run)
    samples = raw_of(lineage, run)
    start = next((a for a in attempts if a.number == 0), None)
    rows = [_row(a, samples.get(a.number, [])) for a in attempts]
    return {
        "run": run,
        "workloads": [w.name for w in workloads],
        "start": None if start is None else {"cycles": _floats(start, "Cycles")},
        "attempts": rows,
        "calibrations": _calibrations(lineage),
        "accepted_diffs": {
            str(a.number): lineage.diff(a.parent, a.commit)[:6000]
            for a in attempts
            if a.status is Status.ACCEPTED and a.number
        },
    }


def _row(attempt: Attempt, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    facts = attempt.trailers
    keep = ("Score-kind", "Score-interval", "Level", "Hidden", "Device", "Tflops", "Artifact")
    return {
        "number": attempt.number,
        "commit": attempt.commit,
        "status": str(attempt.status),
        "subject": attempt.subject,
        "seen": attempt.body.partition("What was seen: ")[2].partition("\n")[0],
        "when": attempt.when,
        "score": attempt.score,
        "gain": attempt.gain,
        "cycles": _floats(attempt, "Cycles"),
        "gains": _floats(attempt, "Gains"),
        "against_seed": against_seed(results),
        "measuring": measuring(results),
        **{key.lower().replace("-", "_"): facts[key] for key in keep if key in facts},
    }


def _floats(attempt: Attempt, key: str) -> list[float]:
    try:
        return [float(word) for word in attempt.trailers.get(key, "").split()]
    except ValueError:
        return []


def raw_of(lineage: Lineage, run: str) -> dict[int, list[dict[str, Any]]]:
    """The results of every measured attempt, by its number, from the sessions' transcripts."""
    found: dict[int, list[dict[str, Any]]] = {}
    for ref in lineage.repo.refs(f"refs/sessions/{run}"):
        entries = lineage.repo.read_tree(ref)
        names = [n for n in entries if n.startswith("attempt-") and n.endswith(".json")]
        blobs = lineage.repo.read_blobs([entries[n].blob for n in names])
        for name, blob in zip(names, blobs, strict=True):
            found[int(name[len("attempt-") : -len(".json")])] = json.loads(blob or b"[]")
    return found


def against_seed(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Log of the speed-up over the seed by public workload: the median of paired valid rounds.

    The seed is an arm of its own, or the incumbent where none was accepted yet.
    """
    ratios: dict[str, list[float]] = {}
    for result in results:
        for s in result["samples"]:
            if s["role"] == "public" and s["mode"] == "sustained":
                base = s["times"].get("seed", s["times"].get("incumbent", ()))
                pairs = zip(base, s["times"].get("candidate", ()), s["void"], strict=False)
                kept = [math.log(b / c) for b, c, void in pairs if not void and b > 0 and c > 0]
                ratios.setdefault(s["workload"], []).extend(kept)
    return {name: median(values) for name, values in ratios.items() if values}


def measuring(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What measuring cost: processes, seconds, and how busy the GPU was while timing."""
    voids = Counter(
        why.partition(":")[0].partition(" for ")[0]
        for r in results
        for s in r["samples"]
        for why in s["void"]
    )
    rounds = sum(voids.values())
    voids.pop("", None)
    keys = ("wall_s", "timed_s", "busy_s")
    sums = {key: math.fsum(r[key] for r in results) for key in keys}
    return {"processes": len(results), **sums, "rounds": rounds, "void": dict(voids)}


def rank_correlation(data: Mapping[str, Any]) -> dict[str, Any]:
    """Spearman of the static gain over the seed with the measured one, over all attempts that
    have both and are not the seed's own estimate: by workload, by mask, and for the mean."""
    names, start = data.get("workloads", []), (data.get("start") or {}).get("cycles", [])
    if not names or len(start) != len(names):
        return {}
    pairs: dict[str, list[tuple[float, float]]] = {}
    for a in data["attempts"]:
        cycles, seen = a["cycles"], a["against_seed"]
        if not a["number"] or len(cycles) != len(names) or set(seen) != set(names):
            continue
        static = {n: math.log(s / c) for n, s, c in zip(names, start, cycles, strict=True)}
        groups = {n: [n] for n in names} | {"all": list(names)}
        for mask in ("causal", "full"):
            groups[mask] = [n for n in names if f"-{mask}-" in n]
        for group, of in groups.items():
            if of:
                x, y = (math.fsum(gains[n] for n in of) / len(of) for gains in (static, seen))
                pairs.setdefault(group, []).append((x, y))
    return {g: {"n": len(p), "spearman": _spearman(p)} for g, p in pairs.items()}


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    try:
        return spearman([x for x, _ in pairs], [y for _, y in pairs])
    except ValueError:
        return None


def _calibrations(lineage: Lineage) -> dict[str, Any]:
    found = {}
    for ref in lineage.repo.refs("refs/calibrations"):
        entry = lineage.repo.read_tree(ref).get("calibration.json")
        if entry is not None:
            found[ref.removeprefix("refs/calibrations/")] = json.loads(
                lineage.repo.read_blobs([entry.blob])[0]
            )
    return found
