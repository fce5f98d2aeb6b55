"""Whole runs of `avo-cute evolve` on this machine, and what their lineage says afterwards."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from proof_ground import passed, save, say

from avo_cute.lineage import Lineage
from avo_cute.plan import default_target
from avo_cute.records import Attempt, Status
from avo_cute.stats import median, spearman
from avo_cute.task import find_task

ENGINE = Path(__file__).resolve().parent.parent / "engine"
LINEAGE, RUN = "lineage.git", "proof"
VERIFY_S = 150.0  # what `verify` may take
SPARE_S = 30.0  # to stop a run and to read its lineage
BULKY = ("estimates", "facts", "launches", "note")  # of a verification: in the lineage


def evolve(out: Path, jobs: int, minutes: float, within: float) -> None:
    """A search from the seed, in OUT's lineage; and `verify`, if there is time for it."""
    target = default_target()
    words = ["evolve", "--operator", "search", "--target", target, "--run", RUN]
    words += ["--jobs", str(jobs), "--hours", f"{minutes / 60:.4f}"]
    told = _command(words, out / LINEAGE, out / "evolve.log", within)
    _keep(out, "evolve", RUN, {"target": target, "minutes": minutes, "command": told})
    if passed() + VERIFY_S < within:
        verify(out, jobs)
    else:
        say("no time left to verify: run the part verify")


def verify(out: Path, jobs: int) -> None:
    """Rebuild and measure the best version again."""
    if not Lineage.open(out / LINEAGE).best(RUN).number:
        say("nothing was accepted, so there is nothing to verify")
        return
    words = ["verify", "best", "--run", RUN, "--jobs", str(jobs), "--json"]
    told = _command(words, out / LINEAGE, out / "verify.log")
    said = _json(out / "verify.log")
    kept = {key: value for key, value in said.items() if key not in BULKY}
    save(out / "verify.json", {"target": default_target(), "command": told, "said": kept})
    _bundle(out)


def gqa(out: Path, jobs: int, minutes: float, within: float, group: str) -> None:
    """The best version of `evolve` on other workloads, in the same lineage."""
    run = f"{RUN}-{group}"
    words = ["evolve", "--operator", "search", "--from", f"lineage/{RUN}", "--workloads", group]
    words += ["--run", run, "--target", default_target()]
    words += ["--jobs", str(jobs), "--hours", f"{minutes / 60:.4f}"]
    told = _command(words, out / LINEAGE, out / "gqa.log", within)
    facts = {"target": default_target(), "minutes": minutes, "group": group, "command": told}
    _keep(out, "gqa", run, facts)


def _command(
    words: Sequence[str], lineage: Path, log: Path, within: float = math.inf
) -> dict[str, Any]:
    """Run avo-cute, its output into `log` and onto ours; returns what happened.

    It is stopped in time for what follows where it would go on beyond `within`.
    """
    command = [sys.executable, "-m", "avo_cute", words[0], "--lineage", str(lineage), *words[1:]]
    paths = [str(ENGINE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    say(" ".join(["avo-cute", *words]))
    began, stopped = time.time(), threading.Event()
    quiet = "--json" in words
    with log.open("w") as file:
        errors = sys.stderr if quiet else subprocess.STDOUT
        process = subprocess.Popen(
            command, env=env, text=True, stdout=subprocess.PIPE, stderr=errors
        )
        timer = threading.Timer(min(within - passed() - SPARE_S, 1e6), _stop, (process, stopped))
        timer.daemon = True
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if not quiet:
                print(line, end="", flush=True)
        code = process.wait()
        timer.cancel()
    seconds = time.time() - began
    say(f"{words[0]} ended with {code} after {seconds:.0f} s")
    shown = ["avo-cute", words[0], "--lineage", LINEAGE, *words[1:]]
    told = {"words": shown, "code": code, "began": int(began), "seconds": seconds}
    return {**told, "stopped": stopped.is_set()}


def _stop(process: subprocess.Popen[str], stopped: threading.Event) -> None:
    """As Ctrl-C twice: at once. What is recorded stays; the attempts in hand are lost."""
    stopped.set()
    for _ in range(2):
        process.terminate()
        time.sleep(1.0)
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()


def _json(path: Path) -> dict[str, Any]:
    text = path.read_text()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"text": text[-2000:]}


def _keep(out: Path, part: str, run: str, facts: Mapping[str, Any]) -> None:
    _bundle(out)
    lineage = Lineage.open(out / LINEAGE)
    if run in lineage.runs():
        known = told(lineage, run)
    else:
        known = {"run": run, "attempts": [], "why": last_line(out / f"{part}.log")}
    save(out / f"{part}.json", {"part": part, **facts, **known})


def last_line(path: Path) -> str:
    """What a program said at last."""
    return next((line for line in reversed(path.read_text().splitlines()) if line.strip()), "")


def _bundle(out: Path) -> None:
    """The whole lineage in one file, with every sample of every attempt."""
    words = ["git", "--git-dir", str(out / LINEAGE), "bundle", "create", "--quiet"]
    subprocess.run([*words, str(out / "lineage.bundle"), "--all"], check=False)


def told(lineage: Lineage, run: str) -> dict[str, Any]:
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
