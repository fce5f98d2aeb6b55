"""What the decision rule lets through and what it misses: a simulated evolution on a noisy machine.

    .venv/bin/python benchmarks/decision.py                       # half an hour of one core
    .venv/bin/python benchmarks/decision.py --evolutions 5 --trials 50
    .venv/bin/python benchmarks/decision.py --recorded docs/results/h200/aa.json
    .venv/bin/python benchmarks/decision.py --spread-between 0.0008 --json out.json

Every number is decided by the engine's own `screen` and `decide`, on as many processes, rounds and
hidden workloads as the engine takes; the noise is `decision_machine`'s. Spreads are log-ratios
(0.001 is 0.1 %). Each evolution calibrates the machine first, from --calibration null comparisons:
of one pair of objects, or (--rebuilt) of another pair in every process.

A candidate is screened by one process; what is left is confirmed in fresh processes, one of which
times the hidden workloads too. An accepted candidate is the next high-water mark. The rival rule,
"accept if the mean of ten runs is at least the best so far", sees unpaired runs with
--spread-unpaired between them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from decision_machine import HIDDEN, NOISE, PUBLIC, Machine, Noise, recorded

from avo_cute import measured, readiness
from avo_cute.decision import RULE, SCREENING, Case, Rule, decide, screen
from avo_cute.records import Status
from avo_cute.stats import Calibration, calibrate

SCREENING_ROUNDS, HIDDEN_ROUNDS = measured.SCREENING.rounds, measured.CONFIRMING.rounds
NULL_ROUNDS, CALIBRATION = readiness.ALIKE.rounds, readiness.PROCESSES
GAINS = (0.002, 0.003, 0.005, 0.01, 0.02)
LIMITS = {"false accepts": 0.1, "power": 0.95, "screening": 0.98}


@dataclass(frozen=True, slots=True)
class Setting:
    noise: Noise
    rule: Rule
    calibration: int  # processes
    rebuilt: bool = False  # every calibration process compares another pair of objects
    screening_rounds: int = SCREENING_ROUNDS
    confidence: float = SCREENING.confidence  # of screening

    @property
    def screening(self) -> Rule:
        factor = self.rule.margin_factor
        return replace(SCREENING, margin_factor=factor, confidence=self.confidence)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one candidate."""

    accepted: bool
    screened_out: bool
    claimed: float  # log-ratio, 0 unless accepted


def judge(machine: Machine, gain: float, calibration: Calibration, setting: Setting) -> Outcome:
    """Screen and confirm one candidate that is truly `gain` (a log-ratio) better."""
    pair = machine.pair()
    process = machine.process(gain, pair, setting.screening_rounds)
    case = Case(PUBLIC, HIDDEN, baseline="incumbent", seed=machine.started)
    if screen(process, case, calibration, setting.screening).status:
        return Outcome(False, True, 0.0)
    each = math.ceil(setting.rule.rounds / setting.rule.processes)
    confirmed = [  # as the engine does it: the hidden workloads are built while the first one runs
        machine.process(gain, pair, each, HIDDEN_ROUNDS if n == 1 else 0)
        for n in range(setting.rule.processes)
    ]
    ruling = decide(confirmed, replace(case, seed=machine.started), calibration, setting.rule)
    accepted = ruling.status is Status.ACCEPTED
    claimed = math.log(ruling.gain.value) if accepted and ruling.gain else 0.0
    return Outcome(accepted, False, claimed)


def calibrated(machine: Machine, setting: Setting) -> Calibration:
    same = machine.pair()
    nulls = [
        machine.process(0.0, machine.pair() if setting.rebuilt else same, NULL_ROUNDS)
        for _ in range(setting.calibration)
    ]
    return calibrate(nulls)


def evolution(setting: Setting, candidates: int, seed: int) -> list[Outcome]:
    """One run in which no candidate is better than its incumbent."""
    machine = Machine(setting.noise, seed)
    calibration = calibrated(machine, setting)
    return [judge(machine, 0.0, calibration, setting) for _ in range(candidates)]


def best_of_ten(noise: Noise, candidates: int, seed: int) -> tuple[int, float]:
    """Null candidates that the rival rule accepts, and the log gain that it claims at the end."""
    random = np.random.default_rng(seed)
    means = random.normal(0, noise.unpaired, (candidates + 1, 10)).mean(axis=1)
    best = np.maximum.accumulate(means)
    return int((means[1:] >= best[:-1]).sum()), float(best[-1] - means[0])


def power(setting: Setting, gain: float, trials: int, seed: int) -> list[Outcome]:
    """Every trial on a machine calibrated anew."""
    outcomes = []
    for trial in range(trials):
        machine = Machine(setting.noise, seed + trial)
        calibration = calibrated(machine, setting)
        outcomes.append(judge(machine, math.log1p(gain), calibration, setting))
    return outcomes


def simulate(
    setting: Setting, evolutions: int, candidates: int, trials: int, seed: int
) -> dict[str, Any]:
    """Everything the table shows, as plain data."""
    runs = [evolution(setting, candidates, seed + n) for n in range(evolutions)]
    nulls = [o for run in runs for o in run]
    rival = [best_of_ten(setting.noise, candidates, seed + n) for n in range(max(200, evolutions))]
    curve = {g: power(setting, g, trials, seed + 1_000_000) for g in GAINS} if trials else {}
    return {
        "noise": setting.noise.told(),
        "rounds": {
            "screening": setting.screening_rounds,
            "hidden": HIDDEN_ROUNDS,
            "null": NULL_ROUNDS,
        },
        "rule": asdict(setting.rule),
        "screening": asdict(setting.screening),
        "calibration": {"processes": setting.calibration, "rebuilt": setting.rebuilt},
        "evolutions": evolutions,
        "candidates": candidates,
        "false_accepts": sum(o.accepted for o in nulls) / max(1, evolutions),
        "nulls_screened_out": _share(o.screened_out for o in nulls),
        "best_of_ten": {"accepts": _mean(r[0] for r in rival), "claim": _mean(r[1] for r in rival)},
        "trials": trials,
        "power": {
            str(g): {
                "accepted": _share(o.accepted for o in outcomes),
                "passed_screening": _share(not o.screened_out for o in outcomes),
                "claim": _mean(math.expm1(o.claimed) for o in outcomes if o.accepted),
            }
            for g, outcomes in curve.items()
        },
    }


def table(result: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Rows of (what, value, required, met); rows without a requirement are met."""
    rows = []
    if result["evolutions"]:
        accepts, runs = result["false_accepts"], result["evolutions"]
        most = f"< {LIMITS['false accepts']}"
        what = f"false accepts in {result['candidates']} null candidates"
        rows += [
            (what, f"{accepts:.3f}", most, accepts < LIMITS["false accepts"]),
            (f"  95 % limit from {runs} runs", f"{_poisson_limit(accepts, runs):.3f}", "", True),
            ("null candidates screened out", f"{result['nulls_screened_out']:.1%}", "", True),
            ("best of ten means: accepts", f"{result['best_of_ten']['accepts']:.1f}", "", True),
            ("best of ten means: claims", f"{result['best_of_ten']['claim']:+.2%}", "", True),
        ]
    for gain, found in result["power"].items():
        needed = float(gain) == 0.005
        for what, key, limit in (
            ("passes screening", "passed_screening", "screening"),
            ("accepted", "accepted", "power"),
        ):
            wanted = f">= {LIMITS[limit]}" if needed else ""
            met = not needed or found[key] >= LIMITS[limit]
            rows.append((f"true {float(gain):+.1%}: {what}", f"{found[key]:.3f}", wanted, met))
    return rows


def main() -> None:
    options = _options()
    setting = Setting(
        _noise(options),
        replace(
            RULE, margin_factor=options.factor, rounds=options.rounds, processes=options.processes
        ),
        options.calibration,
        options.rebuilt,
        options.screening_rounds,
        options.screening_confidence,
    )
    start = time.perf_counter()
    result = simulate(setting, options.evolutions, options.candidates, options.trials, options.seed)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    rows = table(result)
    for what, value, wanted, met in rows:
        print(f"{what:42s} {value:>9s}  {wanted:8s} {'' if met else 'NOT MET'}".rstrip())
    print(f"{time.perf_counter() - start:.0f} s")
    sys.exit(not all(met for *_, met in rows))


def _noise(options: argparse.Namespace) -> Noise:
    shown = {key: getattr(options, key) for key in ("persistent", "unpaired", "void")}
    if options.recorded:
        return Noise(
            between=options.between or 0.0, recorded=recorded(options.recorded), **shown
        )  # what differs between processes is in the rounds
    between = NOISE.between if options.between is None else options.between
    return Noise(options.within, options.straggling, between, **shown)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--spread-within", dest="within", type=float, default=NOISE.within, help="of a round")
    add(
        "--spread-straggling",
        dest="straggling",
        type=float,
        default=NOISE.straggling,
        help="of the one round in ten that is a straggler",
    )
    add("--spread-between", dest="between", type=float, help="of a process's geomean")
    add("--recorded", type=Path, help="rounds from the null comparisons of proof.py, aa.json")
    add(
        "--persistent",
        type=float,
        default=NOISE.persistent,
        help="share of the variance between processes",
    )
    add("--void", type=float, default=NOISE.void, help="share of rounds")
    add("--spread-unpaired", dest="unpaired", type=float, default=NOISE.unpaired)
    add("--calibration", type=int, default=CALIBRATION, help="processes of the calibration")
    add("--rebuilt", action="store_true", help="calibrate with another pair in every process")
    add("--factor", type=float, default=RULE.margin_factor, help="margin in spreads")
    add("--processes", type=int, default=RULE.processes)
    add("--rounds", type=int, default=RULE.rounds, help="over all processes")
    add("--screening-rounds", type=int, default=SCREENING_ROUNDS)
    add("--screening-confidence", type=float, default=SCREENING.confidence)
    add("--evolutions", type=int, default=200)
    add("--candidates", type=int, default=500, help="null candidates of one evolution")
    add("--trials", type=int, default=1000, help="candidates per true gain")
    add("--seed", type=int, default=1)
    add("--json", type=Path, help="write everything here")
    return parser.parse_args()


def _poisson_limit(rate: float, runs: int) -> float:
    """Upper 95 % limit of a Poisson mean from `rate` x `runs` events seen, by bisection."""
    seen, low, high = round(rate * runs), 0.0, 10.0 + 3 * rate * runs
    for _ in range(60):
        mean = (low + high) / 2
        below = sum(
            math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(seen + 1)
        )
        low, high = (mean, high) if below > 0.05 else (low, mean)
    return high / max(1, runs)


def _share(values: Iterable[bool]) -> float:
    return _mean(map(float, values))


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return statistics.fmean(kept) if kept else 0.0


if __name__ == "__main__":
    main()
