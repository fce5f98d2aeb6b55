"""Arms that a task brings along: libraries that do the same work.

A task may have a `baselines.py`: `NAMES`, and `bind(name, params, inputs)`, which gives a launch
that returns its results in the order of the task's outputs (not necessarily all of them). It is
loaded by path: the worker knows nothing else of tasks.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from ..records import Param
from .device import Tensor, Unavailable, one_line


def task_baselines(task: Path, names: Sequence[str]) -> tuple[TaskBaseline, ...]:
    """The baselines called `names` of the task in directory `task`; those that it does not have
    are left out."""
    module = _load(task / "baselines.py") if names else None
    known = getattr(module, "NAMES", ())
    return tuple(TaskBaseline(name, module) for name in names if module and name in known)


@dataclass(frozen=True, slots=True)
class TaskBaseline:
    """One baseline as an arm. Its launch keeps its results; `collect` copies them into the
    outputs, outside the clock."""

    name: str
    module: ModuleType

    def bind(
        self, params: Mapping[str, Param], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> Collecting:
        """Launches once, to be sure that the library itself runs; else raises `Unavailable`."""
        with warnings.catch_warnings(record=True) as reasons:
            warnings.simplefilter("always")
            try:
                bound = Collecting(self.module.bind(self.name, params, inputs), outputs)
                bound()
            except torch.AcceleratorError:
                raise  # the device failed, whoever's launch it was
            except (ValueError, RuntimeError) as error:
                said = [one_line(error), *(" ".join(str(r.message).split()) for r in reasons)]
                raise Unavailable(f"{self.name}: {'; '.join(said)}"[:500]) from error
        return bound


class Collecting:
    """A launch whose results lie in memory of the library's choosing."""

    __slots__ = ("_launch", "_outputs", "_results")

    def __init__(self, launch: Callable[[], Sequence[Tensor]], outputs: Sequence[Tensor]) -> None:
        self._launch, self._outputs = launch, outputs
        self._results: Sequence[Tensor] = ()

    def __call__(self) -> None:
        self._results = self._launch()

    def collect(self) -> None:
        """Copy the last launch's results into the outputs; further outputs stay as they are."""
        for output, result in zip(self._outputs, self._results, strict=False):
            output.copy_(result)


def _load(path: Path) -> ModuleType | None:
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(f"avo_cute_baselines_{path.parent.name}", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
