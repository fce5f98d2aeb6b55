"""A simulated machine for `decision`: samples of kernels whose truth is known.

The noise model, one process being one fresh start of the measuring worker:

* a round's log-ratio of a workload is normal with `within`; one round in ten is a straggler with
  `straggling` instead. On an H200 under its power limit the middle of 2,797 null rounds gives
  0.45 %, their ordinary standard deviation is 0.77 %, and the largest is 10 %;
* a process shifts every workload of every round: half the variance common to all workloads, half
  drawn for each, so that the geomean of a process has the standard deviation `between` besides
  what its rounds scatter. On that H200 the geomeans of equal kernels differ by 0.0255 % between
  processes, their rounds' part included: as `between` that is more than was seen;
* with `persistent` 0.5, half of that variance belongs to the pair of objects and returns in every
  process: the machine then really prefers one object, and no repetition can tell why;
* a round is void with probability `void` and then replaced, as long as there are half as many more;
* with `recorded` rounds are drawn from those of a real machine instead: of all processes and pairs
  of equal arms of a workload, in both directions, so that the truth is 0. Real rounds of a process
  balance each other; drawn ones do not: their geomeans differ by 0.037 % between processes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from avo_cute.beyond import HIDDEN_COUNT
from avo_cute.measure.request import samples_of
from avo_cute.measure.timing import SPARE
from avo_cute.records import Samples
from avo_cute.stats import log_ratios

PUBLIC = tuple(f"mha-{'causal' if c else 'full'}-{n}k" for c in (0, 1) for n in (4, 8, 16, 32))
HIDDEN = tuple(f"hidden-{n + 1}" for n in range(HIDDEN_COUNT))
STRAGGLERS = 0.1

Rounds = Mapping[str, np.ndarray]  # workload -> log-ratios of rounds, as many of either sign


@dataclass(frozen=True, slots=True)
class Noise:
    """The machine; spreads are standard deviations of log-ratios."""

    within: float = 0.0045
    straggling: float = 0.027
    between: float = 0.000255
    persistent: float = 0.0  # share of the variance between processes that is the objects' own
    unpaired: float = 0.015
    void: float = 0.07
    recorded: Rounds = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """For JSON."""
        plain = {k: v for k, v in asdict(self).items() if k != "recorded"}
        if not self.recorded:
            return plain
        return {**plain, "within": None, "straggling": None, "recorded": len(self.recorded)}


NOISE = Noise()


class Machine:
    """A source of samples with a known truth. State: the random numbers drawn so far."""

    def __init__(self, noise: Noise, seed: int) -> None:
        self.noise, self.random, self.started = noise, np.random.default_rng(seed), 0

    def pair(self) -> np.ndarray:
        """What the machine prefers about one pair of objects, by workload."""
        return self._shifts(self.noise.between * math.sqrt(self.noise.persistent))

    def process(self, gain: float, pair: np.ndarray, rounds: int, hidden: int = 0) -> list[Samples]:
        """The samples of one fresh process; `gain` is the true log-ratio of every workload.

        `rounds` of each public workload, `hidden` of each hidden one.
        """
        self.started += 1
        own = self._shifts(self.noise.between * math.sqrt(1 - self.noise.persistent))
        return [
            self._samples(name, gain + pair[n] + own[n], of)
            for n, name in enumerate((*PUBLIC, *HIDDEN))
            if (of := hidden if name in HIDDEN else rounds)
        ]

    def _shifts(self, spread: float) -> np.ndarray:
        """Per workload; the mean over the public ones has the standard deviation `spread`."""
        each = self.random.normal(0, spread * math.sqrt(len(PUBLIC) / 2), len(PUBLIC) + len(HIDDEN))
        return each + self.random.normal(0, spread * math.sqrt(0.5))

    def _samples(self, name: str, gain: float, wanted: int) -> Samples:
        void = self._voids(wanted)
        noise = self._recorded(name, len(void)) if self.noise.recorded else self._drawn(len(void))
        incumbent = np.full(len(void), 1e-3)
        candidate = incumbent * np.exp(-gain - noise)
        times = {"candidate": tuple(candidate.tolist()), "incumbent": tuple(incumbent.tolist())}
        role = "hidden" if name in HIDDEN else "public"
        return Samples(name, role, "sustained", self.started, times, {}, void)

    def _voids(self, wanted: int) -> tuple[str, ...]:
        """Rounds until `wanted` of them count, at most half as many more."""
        limit = wanted + math.ceil(SPARE * wanted)
        void = self.random.random(limit) < self.noise.void
        enough = np.searchsorted(np.cumsum(~void), wanted) + 1
        return tuple("clocks" if v else "" for v in void[:enough])

    def _drawn(self, count: int) -> np.ndarray:
        stragglers = self.random.random(count) < STRAGGLERS
        spread = np.where(stragglers, self.noise.straggling, self.noise.within)
        return self.random.normal(0, 1, count) * spread

    def _recorded(self, name: str, count: int) -> np.ndarray:
        """Of a workload that was not recorded (a hidden one), those of any."""
        known = self.noise.recorded
        of = known[name] if name in known else known[str(self.random.choice(list(known)))]
        return self.random.choice(of, count)


def recorded(path: Path) -> Rounds:
    """The log-ratios of all valid rounds in `aa.json` of the proof, in both directions of each
    pair of arms."""
    from proof_ground import relabelled

    found: dict[str, list[float]] = {}
    for process in json.loads(path.read_text())["processes"]:
        for sample in map(samples_of, process["samples"]):
            for pair in permutations(sample.times, 2):
                alike = relabelled(sample, *pair)
                found.setdefault(sample.workload, []).extend(log_ratios(alike, *alike.times))
    return {name: np.array(ratios) for name, ratios in found.items()}
