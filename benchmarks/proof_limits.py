"""The part of the proof that says what one candidate costs: wall seconds and GPU use by level."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from proof_ground import Ground
from proof_timing import default_bench

from avo_cute.measure.rig import Rig
from avo_cute.records import Status
from avo_cute.score import evaluate, standing_of

HONEST = "tile-n-176"  # the variant whose evaluation is timed


class Clocked:
    """A rig that notes when each process was asked and when it had answered."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.calls: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rig, name)

    def measure(self, request: Any) -> Any:
        began = time.monotonic()
        result = self._rig.measure(request)
        ended = time.monotonic()
        told = {"began": began, "ended": ended, "families": request.effort.families}
        told |= {"wall_s": result.wall_s, "busy_s": result.busy_s, "timed_s": result.timed_s}
        self.calls.append(told)
        return result


def limits(ground: Ground, changed: Mapping[str, bytes], title: str) -> dict[str, Any]:
    """One real evaluation of an honest variant, through both levels whatever screening says.

    Its public objects are built before; all that comes later, and every start, is on the clock.
    """
    ground.rig.close()  # a process that was started ahead would not be on the clock
    ground.rig = replace(ground.rig)
    bench = default_bench(ground)
    seed = ground.seed(bench)
    source = ground.source(changed, "honest")
    evaluate(source, bench, None)  # built: the limits are for measuring
    rig = Clocked(ground.rig)
    timed = replace(bench, rig=rig)  # type: ignore[arg-type]
    standing = standing_of(seed, seed)
    began = time.monotonic()
    verdict = evaluate(source, timed, standing, ground.export)
    middle = rig.calls[0]["ended"] if rig.calls else began
    levels = {"screening": (began, middle, rig.calls[:1])}
    if len(rig.calls) == 1 and verdict.status is not Status.ACCEPTED:
        middle = time.monotonic()
        verdict = evaluate(source, replace(timed, thorough=True), standing, ground.export)
    levels["commit"] = (middle, time.monotonic(), rig.calls[1:])
    found = verdict.measured
    data = {
        "variant": title,
        "status": str(verdict.status),
        "reason": verdict.reason,
        "gain": None if found is None else found.gain,
        "hidden": None if found is None else found.hidden,
        "levels": {name: _level(*level) for name, level in levels.items()},
    }
    ground.save("limits", data)
    return data


def _level(began: float, ended: float, calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    timed, busy = (math.fsum(c[key] for c in calls) for key in ("timed_s", "busy_s"))
    told = {"wall_s": ended - began, "processes": len(calls), "timed_s": timed}
    told["after_s"] = ended - max((c["ended"] for c in calls), default=ended)
    return told | {"busy": busy / timed if timed else math.nan, "calls": list(calls)}
