"""A task directory in the measuring process: its modules by path, and what task.toml says.

`task` does the same for the engine, with pydantic; here there is only the standard library.
"""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from ..records import Target
from .oracle import Reference


@dataclass(frozen=True, slots=True)
class Modules:
    """What a task brings to measuring: `build` for the arguments of a call, `reference` to judge
    by, `matrix` for the matrix instructions that its audit allows by target family."""

    directory: Path
    build: ModuleType
    reference: ModuleType
    matrix: dict[str, list[str]]

    def multiplies(self, target: Target) -> bool:
        """Whether the task multiplies matrices, so that its FLOPs have a floor."""
        return bool(self.matrix.get(target.family))

    @property
    def judge(self) -> Reference:
        """`reference` in the words of the protocol."""
        return cast(Reference, self.reference)


def load_modules(directory: Path) -> Modules:
    """The modules of a task directory; raises what importing them raises: they are ours."""
    settings = tomllib.loads((directory / "task.toml").read_text("utf-8"))
    matrix = settings.get("audit", {}).get("matrix", {})
    return Modules(directory, _load(directory, "build"), _load(directory, "reference"), matrix)


def _load(directory: Path, stem: str) -> ModuleType:
    name = f"avo_cute_task_{stem}"
    spec = importlib.util.spec_from_file_location(name, directory / f"{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
