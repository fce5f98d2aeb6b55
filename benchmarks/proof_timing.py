"""The parts of the proof that time the seed: null comparisons, known delays, the tables."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

from proof_ground import Ground, plain, raw, relabelled, say
from proof_parts import DELAYS

from avo_cute.bench import Bench
from avo_cute.decision import Case, compare, decide, screen
from avo_cute.errors import MachineFailed
from avo_cute.measure.floor import floor
from avo_cute.measure.request import Effort, Result, samples_of
from avo_cute.once import baselines_of
from avo_cute.readiness import ALIKE
from avo_cute.records import Samples, Workload
from avo_cute.stats import calibrate, log_ratios, median, robust_sd, tflops

PROCESSES, COMPARISONS = 6, 300
SPARE_PROCESSES = 2  # further ones, to replace those that fail
COPY = "loaded-again"  # the arm of a copied library
SAME, APART = "the same library", "the library and its copy"
DELAY_EFFORT = Effort(warm_s=0.3, rounds=12, families="none", large=False)
TABLE_EFFORT = Effort(warm_s=0.3, rounds=7, families="none", large=False)
COLD_LAUNCHES = 10

Processes = Sequence[Sequence[Samples]]


def default_bench(ground: Ground) -> Bench:
    return ground.bench(ground.task.select(ground.task.settings.default_group))


# Null comparisons.


def aa(ground: Ground, processes: int = PROCESSES, effort: Effort = ALIKE) -> dict[str, Any]:
    """The seed in three arms: twice the same library, and a copy of it that is loaded apart."""
    bench = default_bench(ground)
    libraries = ground.seed_libraries(bench, bench.workloads)
    kernels = {
        "candidate": libraries,
        "incumbent": libraries,
        COPY: ground.copied(libraries, "again"),
    }
    results: list[Result] = []
    lost: list[str] = []
    while len(results) < processes and len(results) + len(lost) < processes + SPARE_PROCESSES:
        try:
            results.append(ground.measure(bench.workloads, dict(kernels), effort))
        except MachineFailed as error:
            lost.append(str(error))
        say(f"A/A: {len(results)} of {processes} processes, {len(lost)} failed")
        ground.save("aa", {"processes": [raw(r) for r in results], "lost": lost})
    found = calibrate([r.samples for r in results])
    ground.rig.calibrations |= {gpu.name: found for gpu in ground.rig.gpus}
    told: dict[str, Any] = plain({"processes": [raw(r) for r in results], "lost": lost})
    return told


def null_comparisons(processes: Processes, count: int = COMPARISONS) -> list[dict[str, Any]]:
    """`count` different comparisons of equal arms, each decided as a candidate would be.

    A comparison takes three processes and in each of them two arms, drawn at random; the margin
    comes from the processes that it does not take. Needs six processes. Half of them compare one
    library with itself in all three, half with its copy (as far as there are so many).
    """
    rng = random.Random(2026)
    arms = sorted({arm for s in processes[0] for arm in s.times})
    triples = list(combinations(range(len(processes)), 3))
    drawn: dict[tuple[Any, ...], None] = {}
    for kind, wanted in ((SAME, count // 2), (APART, count)):
        pairs = [p for p in permutations(arms, 2) if (COPY in p) == (kind == APART)]
        most = len(drawn) + len(triples) * len(pairs) ** 3
        while len(drawn) < min(wanted, most):
            triple = triples[len(drawn) % len(triples)]
            drawn[(triple, tuple(rng.choice(pairs) for _ in triple))] = None
    return [_null(processes, triple, chosen, n) for n, (triple, chosen) in enumerate(drawn)]


def _null(
    processes: Processes,
    triple: tuple[int, ...],
    pairs: tuple[tuple[str, str], ...],
    number: int,
) -> dict[str, Any]:
    others = [p for n, p in enumerate(processes) if n not in triple]
    calibration = calibrate(others)
    names = tuple(s.workload for s in processes[0])
    case = Case(names, baseline="incumbent", seed=number)
    taken = [
        [relabelled(s, *pair) for s in processes[n]] for n, pair in zip(triple, pairs, strict=True)
    ]
    first = screen(taken[0], case, calibration)
    ruling = decide(taken, case, calibration)
    return {
        "processes": triple,
        "pairs": ["/".join(pair) for pair in pairs],
        "kind": APART if any(COPY in pair for pair in pairs) else SAME,
        "screened": str(first.status or ""),
        "status": str(ruling.status),
        "gain": ruling.gain,
        "margin": ruling.margin,
        "rounds": ruling.rounds,
    }


def spreads(processes: Processes) -> dict[str, Any]:
    """How much equal kernels differ: a round, a workload's median, a process."""
    arms = sorted({arm for s in processes[0] for arm in s.times})
    within, medians, gains = [], [], []
    for process in processes:
        for pair in combinations(arms, 2):
            ratios = [log_ratios(relabelled(s, *pair), "candidate", "incumbent") for s in process]
            within += [robust_sd(r) for r in ratios]
            medians += [median(r) for r in ratios]
            gains.append(sum(median(r) for r in ratios) / len(ratios))
    voids = [why.partition(":")[0] for p in processes for s in p for why in s.void]
    calibration = calibrate(processes)
    return {
        "within": median(within),
        "largest_median": max(map(abs, medians)),
        "median_sd": _rms(medians),
        "between": _rms(gains),
        "largest_process": max(map(abs, gains)),
        "margin": calibration.margin(),
        "spread": calibration.spread,
        "rounds": len(voids),
        "void": {why: voids.count(why) for why in sorted(set(voids)) if why},
    }


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(v * v for v in values) / len(values))


def aa_ruled(data: dict[str, Any]) -> dict[str, Any]:
    """The raw processes of `aa`, with comparisons and spreads."""
    processes = [[samples_of(s) for s in p["samples"]] for p in data["processes"]]
    if len(processes) < PROCESSES:
        raise MachineFailed(f"{len(processes)} of {PROCESSES} processes were measured")
    return {**data, "comparisons": null_comparisons(processes), "spreads": spreads(processes)}


# Known delays.


def detect(ground: Ground, effort: Effort = DELAY_EFFORT) -> dict[str, Any]:
    """The seed against itself with a known delay behind every launch of the candidate."""
    bench = default_bench(ground)
    chosen = bench.workloads
    libraries = ground.seed_libraries(bench, chosen)
    data: dict[str, Any] = {"workloads": [w.name for w in chosen], "planned": DELAYS, "delays": []}
    for delay in sorted(DELAYS, reverse=True):  # the cheapest first
        kernels: dict[str, Mapping[str, str]] = dict.fromkeys(("candidate", "incumbent"), libraries)
        finer = max(1, min(4, round(0.01 / delay)))  # a smaller delay takes more rounds to see
        asked = replace(effort, rounds=effort.rounds * finer)
        row: dict[str, Any] = {"delay": delay, "rounds": asked.rounds}
        try:
            result = ground.measure(chosen, kernels, asked, delay=delay)
        except MachineFailed as error:
            row |= {**seen_delay(None), "why": str(error)}
        else:
            found = compare([result.samples], data["workloads"], seed=int(delay * 1e6))
            row |= {**seen_delay(found), "waited": waited(result), "raw": raw(result)}
        data["delays"].append(row)
        say(f"delay {delay:.2%}: seen {row['seen']:.3%} {row.get('why', '')}")
        ground.save("detect", data)
    return data


def waited(result: Result) -> float:
    """By how much the waiting kernel really slowed the candidate, by its own events: the geometric
    mean over the workloads, less one."""
    logs = []
    for s in result.samples:
        times = [t for t, void in zip(s.times["incumbent"], s.void, strict=True) if not void]
        took = float(result.facts.get(f"waited {s.workload}", math.nan))
        logs.append(math.log1p(took / median(times)) if times else math.nan)
    return math.expm1(math.fsum(logs) / len(logs)) if logs else math.nan


def seen_delay(found: Any) -> dict[str, Any]:
    """A comparison as a delay: how much longer the candidate took."""
    if found is None:
        return {"seen": math.nan, "low": math.nan, "high": math.nan, "workloads_seen": {}}
    gain = found.gain
    parts = {
        name: {"seen": 1 / i.value - 1, "low": 1 / i.high - 1, "high": 1 / i.low - 1}
        for name, i in found.workloads.items()
    }
    whole = {"seen": 1 / gain.value - 1, "low": 1 / gain.high - 1, "high": 1 / gain.low - 1}
    return {**whole, "workloads_seen": parts}


# The tables.


def table(ground: Ground, effort: Effort = TABLE_EFFORT) -> dict[str, Any]:
    """Seed and baselines in the same rounds, on the public workloads of every group."""
    groups: dict[str, list[Workload]] = {w.groups[0]: [] for w in ground.task.workloads}
    for w in ground.task.workloads:
        groups[w.groups[0]].append(w)
    default = ground.task.settings.default_group
    data: dict[str, Any] = {"rows": [], "raw": {}, "failed": {}}
    data["planned"] = [w.name for w in ground.task.workloads]
    for group, workloads in groups.items():
        bench = ground.bench(workloads)
        asked = replace(effort, cold=COLD_LAUNCHES if group == default else 0)
        try:
            kernels = {"candidate": ground.seed_libraries(bench, workloads)}
            result = ground.measure(
                workloads, dict(kernels), asked, baselines=baselines_of(ground.task)
            )
        except MachineFailed as error:
            data["failed"][group] = str(error)
            say(f"table of {group} FAILED: {error}")
        else:
            data["raw"][group] = raw(result)
            data["rows"] += [row(ground, w, result.samples) for w in workloads]
            say(f"table of {group}: {result.wall_s:.1f} s")
        ground.save("table", data)
    return data


def row(ground: Ground, workload: Workload, samples: Sequence[Samples]) -> dict[str, Any]:
    """One workload: seconds, TFLOPS and clock by mode and arm; the share of the limit."""
    task, target = ground.task, ground.target
    multiplies = bool(task.settings.audit.matrix.get(target.family))
    bound = floor(task.reference, workload.params, target, multiplies=multiplies)
    flops = float(task.reference.flops(workload.params))
    told: dict[str, Any] = {"workload": workload.name, "group": workload.groups[0]}
    told |= {"floor_s": bound.seconds, "bound": bound.bound, "flops": flops}
    for s in samples:
        if s.workload == workload.name:
            seconds = {arm: _counted(s.times[arm], s.void) for arm in s.times}
            told[s.mode] = {
                "seconds": seconds,
                "tflops": {arm: tflops(flops, t) for arm, t in seconds.items() if t > 0},
                "mhz": {arm: _counted(s.clocks[arm], s.void) for arm in s.clocks},
                "rounds": s.void.count(""),
            }
    own = told.get("sustained", {}).get("seconds", {}).get("candidate", math.nan)
    return told | {"share": bound.seconds / own if own > 0 else math.nan}


def _counted(values: Iterable[float], void: Iterable[str]) -> float:
    kept = [v for v, why in zip(values, void, strict=True) if not why and v == v]
    return median(kept) if kept else math.nan
