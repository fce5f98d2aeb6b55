"""Bench and standing: how candidates of one run are judged, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path

from .build import BuildRequest, Source
from .build.analyse import ClassResult, evaluator_id
from .measure.rig import Rig
from .records import Facts, Failure, Status, Target, Workload
from .task import Task

Spread = Callable[
    [Callable[[BuildRequest], ClassResult | Failure], Sequence[BuildRequest]],
    Iterable[ClassResult | Failure],
]


@dataclass(frozen=True)
class Bench:  # not slotted: `checks` is computed on demand
    """How candidates of one run are judged; the same for every candidate of it.

    With a `rig` they are measured, without one estimated. `thorough`: measured at the commit level
    whatever screening would say, `baselines` in the same rounds, `cold` isolated launches of each.
    """

    task: Task
    target: Target
    workloads: tuple[Workload, ...]
    cache: Path
    layer: str
    spread: Spread
    wall_s: float = 300.0
    width: int = 1  # candidates judged side by side
    apart: bool = False  # a build process per workload, where there are cores enough
    rig: Rig | None = None
    thorough: bool = False
    baselines: tuple[str, ...] = ()
    cold: int = 0

    @property
    def kind(self) -> str:
        """`Score-kind:` of its verdicts."""
        return "static" if self.rig is None else "measured"

    def close(self) -> None:
        """End what was started ahead."""
        if self.rig is not None:
            self.rig.close()

    @property
    def evaluator(self) -> str:
        return evaluator_id(self.task)

    @cached_property
    def checks(self) -> tuple[Workload, ...]:
        """The correctness-only workloads that belong to the judged ones."""
        drawn = self.task.reference.checks([w.params for w in self.workloads])
        return tuple(Workload(name, of, (), params) for name, of, params in drawn)

    @property
    def beside(self) -> tuple[Workload, ...]:
        """Checks of the judged classes: built together with the public workloads."""
        if self.rig is None:
            return ()
        classes = {w.class_name for w in self.workloads}
        return tuple(c for c in self.checks if c.class_name in classes)

    def requests(self, source: Source, workloads: Sequence[Workload]) -> list[BuildRequest]:
        """What to build: one request per workload class, or per public workload and class."""
        public = {w.name for w in self.workloads}

        def together(w: Workload) -> tuple[str, str]:
            return w.class_name, w.name if self.apart and w.name in public else ""

        return [
            BuildRequest(
                source=source,
                task=self.task.directory,
                target=self.target,
                workloads=tuple(group),
                layer=self.layer,
                cache=self.cache,
                wall_s=self.wall_s,
            )
            for _, group in groupby(sorted(workloads, key=together), key=together)
        ]


@dataclass(frozen=True, slots=True)
class Side:
    """What an arm is made of: a tree, and the object of each workload built for it so far."""

    tree: str
    objects: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a candidate is compared with: the run's baseline and its high-water mark.

    `seen` maps the artifact of every attempt so far to its number and status. The sides are there
    where candidates are measured; `export` writes a tree into a folder.
    """

    baseline: Mapping[str, float]  # workload name -> cycles
    high_water: Mapping[str, float]  # likewise, of the best accepted candidate
    artifact: str  # of the incumbent
    facts: Mapping[str, Facts] = field(default_factory=dict)
    seen: Mapping[str, tuple[int, Status]] = field(default_factory=dict)
    score: float = 1.0  # of the high-water mark, over the baseline
    seed: Side = Side("", {})
    incumbent: Side = Side("", {})
    commit: str = ""  # of the incumbent


def about(bench: Bench) -> dict[str, str]:
    """The task in words, for a prompt."""
    task = bench.task.settings
    measured = "measured on this machine's GPU, in pairs with the best version so far"
    estimated = "estimated from the machine code: this machine has no GPU of the target"
    return {
        "task": task.title,
        "target": f"{bench.target.title} ({bench.target.name}, {bench.target.arch})",
        "workloads": ", ".join(w.name for w in bench.workloads),
        "editable": ", ".join(task.editable),
        "score": f"speed-up over the seed, {estimated if bench.rig is None else measured}",
    }
