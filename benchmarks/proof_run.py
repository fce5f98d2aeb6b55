"""Whole runs of `avo-cute evolve` on this machine, and what their lineage says afterwards."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proof_ground import save, say

from avo_cute.lineage import Lineage
from avo_cute.plan import default_target
from avo_cute.records import Attempt, Status
from avo_cute.stats import median, spearman
from avo_cute.task import find_task

ENGINE = Path(__file__).resolve().parent.parent / "engine"


def evolve(out: Path, jobs: int, minutes: float) -> None:
    """A search from the seed, then `verify best`. The lineage stays in OUT."""
    lineage, run = out / "lineage.git", "proof"
    target = default_target()
    words = ["evolve", "--operator", "search", "--target", target, "--run", run]
    words += ["--jobs", str(jobs), "--hours", f"{minutes / 60:.4f}"]
    told = _command(words, lineage, out / "evolve.log")
    facts = {"target": target, "minutes": minutes, "command": told}
    _keep(out, "evolve", lineage, run, facts)
    best = Lineage.open(lineage).best(run)
    if best.number:
        words = ["verify", "best", "--run", run, "--jobs", str(jobs), "--json"]
        facts["verify"] = _command(words, lineage, out / "verify.log")
        facts["verify"]["said"] = _json(out / "verify.log")
        _keep(out, "evolve", lineage, run, facts)


def gqa(out: Path, jobs: int, minutes: float, group: str) -> None:
    """The best version of `evolve` on other workloads, in the same lineage."""
    lineage, run = out / "lineage.git", f"proof-{group}"
    words = ["evolve", "--operator", "search", "--from", "lineage/proof", "--workloads", group]
    words += ["--run", run, "--target", default_target()]
    words += ["--jobs", str(jobs), "--hours", f"{minutes / 60:.4f}"]
    told = _command(words, lineage, out / "gqa.log")
    facts = {"target": default_target(), "minutes": minutes, "group": group, "command": told}
    _keep(out, "gqa", lineage, run, facts)


def _command(words: Sequence[str], lineage: Path, log: Path) -> dict[str, Any]:
    """Run avo-cute, its output into `log` and onto ours; returns what happened."""
    command = [sys.executable, "-m", "avo_cute", words[0], "--lineage", str(lineage), *words[1:]]
    paths = [str(ENGINE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    say(" ".join(["avo-cute", *words]))
    began = time.time()
    with log.open("w") as file:
        quiet = "--json" in words
        process = subprocess.Popen(
            command, env=env, text=True, stdout=subprocess.PIPE,
            stderr=sys.stderr if quiet else subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if not quiet:
                print(line, end="", flush=True)
    code = process.wait()
    say(f"{words[0]} ended with {code} after {time.time() - began:.0f} s")
    shown = ["avo-cute", words[0], "--lineage", "lineage.git", *words[1:]]
    return {"words": shown, "code": code, "began": began, "seconds": time.time() - began}


def _json(path: Path) -> Any:
    text = path.read_text()
    try:
        return json.loads(text)
    except ValueError:
        return {"text": text[-2000:]}


def _keep(out: Path, part: str, path: Path, run: str, facts: Mapping[str, Any]) -> None:
    save(out / f"{part}.json", {"part": part, **facts, **told(path, run)})
    bundle = out / "lineage.bundle"
    subprocess.run(
        ["git", "--git-dir", str(path), "bundle", "create", "--quiet", str(bundle), "--all"],
        check=False,
    )


def told(path: Path, run: str) -> dict[str, Any]:
    """Everything that the lineage knows of a run, as plain data."""
    lineage = Lineage.open(path)
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
    keep = ("Score-interval", "Gain", "Level", "Hidden", "Device", "Tflops", "Artifact", "Session")
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
    names, start = data["workloads"], (data.get("start") or {}).get("cycles", [])
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
                mean = (math.fsum(x[n] for n in of) / len(of) for x in (static, seen))
                pairs.setdefault(group, []).append(tuple(mean))
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
