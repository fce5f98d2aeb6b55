"""What a measuring process is asked, and what it answers: plain data, written as JSON files.

Standard library only: the worker runs on machines that have torch and apache-tvm-ffi, no more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..records import Param, Samples

# Files of a measuring process.
REQUEST, RESULT, PHASE, TURN = "request.json", "result.json", "phase", "turn"
TURN_BYTES = 32  # of TURN: the arm whose launches are waited for, filled up with blanks


@dataclass(frozen=True, slots=True)
class Effort:
    """How much measuring. Seconds are of GPU time unless said otherwise."""

    warm_s: float = 1.0  # load before the first round of a workload, so that the clock settles
    rounds: int = 20  # sustained rounds per workload
    visit_s: float = 0.020  # of one arm in one round
    cold: int = 0  # isolated launches per arm and workload, caches flushed
    families: str = "all"  # "all", "few" (screening) or "none"
    large: bool = True  # also check the judged workloads themselves, at full size
    selftest: bool = False  # of the session: the timer, a known delay, wrong kernels


@dataclass(frozen=True, slots=True)
class Point:
    """A workload as the worker needs it. `role` is "public", "hidden" or "correctness-only"."""

    name: str
    params: Mapping[str, Param]
    role: str = "public"


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """One measuring process.

    `kernels` maps an arm ("candidate", "incumbent", "seed") to a linked library per workload name;
    an arm that is absent is not timed. Kernels of other names are further arms, and so are the
    `baselines` ("cudnn", "fa2"), on public workloads.
    Correctness is judged for the arm "candidate", with the errors of "seed" as the yardstick.
    `seed` comes from the operating system and decides inputs and the order of visits.
    """

    task: str  # the task directory
    target: str
    seed: int
    points: tuple[Point, ...]
    kernels: Mapping[str, Mapping[str, str]]
    effort: Effort
    baselines: tuple[str, ...] = ()
    delay: float = 0.0  # extra time for the candidate, relative: to see whether it is seen


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison with the reference. `worst` is the largest quotient of an error and its
    bound: above 1 the candidate fails."""

    workload: str
    family: str
    worst: float
    what: str  # the measure that was worst: "relative error of out", "tile 17 of out", …
    error: float  # the candidate's, of that measure
    seed_error: float  # the seed's on the same inputs
    failure: str = ""  # one line; empty if it passed


@dataclass(frozen=True, slots=True)
class Result:
    """What a measuring process found. `status` is "" where nothing failed, else a `Status` value.

    `facts` describes device, driver, clocks and what was voided, by name; all values are text or
    numbers. `busy_s` of `timed_s` wall seconds of timing the GPU was computing.
    """

    status: str = ""
    reason: str = ""
    detail: str = ""
    samples: tuple[Samples, ...] = ()
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    busy_s: float = 0.0
    timed_s: float = 0.0
    wall_s: float = 0.0  # of the whole process, from its request on


def write(value: MeasureRequest | Result, path: Path) -> None:
    """Write by rename: a reader sees all of it or nothing."""
    scratch = path.with_suffix(".part")
    scratch.write_text(json.dumps(asdict(value), allow_nan=True))
    scratch.rename(path)


def read_request(path: Path) -> MeasureRequest:
    data = json.loads(path.read_text())
    data["points"] = tuple(Point(**p) for p in data["points"])
    data["effort"] = Effort(**data["effort"])
    data["baselines"] = tuple(data["baselines"])
    return MeasureRequest(**data)


def read_result(path: Path) -> Result:
    """Raises `ValueError`, `TypeError` or `KeyError` where the file is no result."""
    data = json.loads(path.read_text())
    data["findings"] = tuple(Finding(**f) for f in data["findings"])
    data["samples"] = tuple(samples_of(s) for s in data["samples"])
    return Result(**data)


def samples_of(data: Mapping[str, Any]) -> Samples:
    times = {arm: tuple(map(float, values)) for arm, values in data["times"].items()}
    clocks = {arm: tuple(map(float, values)) for arm, values in data["clocks"].items()}
    return Samples(**{**data, "times": times, "clocks": clocks, "void": tuple(data["void"])})
