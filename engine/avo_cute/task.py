"""A task: the directory that says what is optimised, how it is built and what counts.

task.toml     name, editable paths, workloads, audit limits (this module checks every key)
build.py      runs in the sandbox: asks the candidate's own host code to compile a workload
reference.py  FLOPs and bytes of a workload, and the fp64 reference
knobs.py      what the search operator may turn, and the rules that keep it legal
baselines.py  libraries that do the same work, as the measuring worker calls them (optional)
seed.toml     the released package the seed comes from   (or a folder `source/`)
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel, ConfigDict, Field

from .errors import BadInput
from .records import Param, Workload
from .tomlfile import read_toml

_PACKAGE_ROOT = Path(__file__).parent
_CHECKOUT_ROOT = _PACKAGE_ROOT.parent.parent


def find_task(name_or_path: str) -> Task:
    """Load a task by name (those shipped with avo-cute) or by the path of its directory."""
    for directory in _candidates(name_or_path):
        if (directory / "task.toml").is_file():
            return Task(directory.resolve())
    raise BadInput(
        f"no task {name_or_path!r}: give one of {', '.join(shipped_tasks())} "
        "or a directory that holds task.toml"
    )


def shipped_tasks() -> list[str]:
    """Names of the tasks that come with avo-cute."""
    return sorted(
        d.name for root in _task_roots() for d in root.glob("*") if (d / "task.toml").is_file()
    )


@dataclass(frozen=True)
class Task:  # not slotted: its attributes are read from the directory once, on demand
    """A task directory, read once. Attributes raise `BadInput` where the directory is at fault."""

    directory: Path

    @property
    def name(self) -> str:
        return self.settings.name

    @cached_property
    def settings(self) -> TaskFile:
        return read_toml(self.directory / "task.toml", TaskFile)

    @cached_property
    def workloads(self) -> tuple[Workload, ...]:
        """All public workloads, in the order in which trailers list them."""
        return tuple(
            Workload(w.name, w.workload_class, (*w.groups, "all"), w.params)
            for w in self.settings.workloads
        )

    def select(self, group: str) -> tuple[Workload, ...]:
        """The public workloads of one group (or the one called `group`)."""
        chosen = tuple(w for w in self.workloads if group in w.groups or group == w.name)
        if not chosen:
            groups = sorted({g for w in self.workloads for g in w.groups})
            raise BadInput(
                f"task {self.name} has no workloads {group!r}: choose one of {', '.join(groups)}"
            )
        return chosen

    @cached_property
    def build(self) -> ModuleType:
        """build.py as a module of ours: only its `arguments` is for this side of the sandbox."""
        return self._load("build")

    @cached_property
    def reference(self) -> ModuleType:
        return self._load("reference")

    @cached_property
    def knobs(self) -> ModuleType:
        return self._load("knobs")

    @cached_property
    def baselines(self) -> ModuleType | None:
        """baselines.py: `NAMES` of the libraries that do the same work; None without the file."""
        present = (self.directory / "baselines.py").is_file()
        return self._load("baselines") if present else None

    @cached_property
    def inert(self) -> ModuleType | None:
        """Edits that compute nothing else, where the task has them."""
        return self._load("inert") if (self.directory / "inert.py").is_file() else None

    @cached_property
    def sha256(self) -> str:
        """Identity of everything in the directory that decides a verdict (source/ excluded)."""
        digest = hashlib.sha256()
        for path in sorted(self.directory.glob("*")):
            if path.is_file() and path.suffix in (".py", ".toml"):
                digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()

    def _load(self, stem: str) -> ModuleType:
        path = self.directory / f"{stem}.py"
        spec = importlib.util.spec_from_file_location(f"avo_cute_task_{self.name}_{stem}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise BadInput(f"{path} is missing: every task has one")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkloadEntry(_Strict):
    """One line of `workloads` in task.toml."""

    name: str
    workload_class: str = Field(alias="class")
    groups: tuple[str, ...]
    params: Mapping[str, Param]


class AuditLimits(_Strict):
    """What an object of this task may contain."""

    kernels: int = 1  # device kernels in an object
    launches: int = 1  # launches of one call
    pdl: bool = False  # programmatic dependent launch allowed
    matrix: Mapping[str, tuple[str, ...]]  # family -> allowed matrix opcodes, as prefixes


class TaskFile(_Strict):
    """task.toml."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    title: str
    subject: Mapping[str, str]  # family -> "[CuTe,Fwd,Sm100]", the prefix of commit subjects
    packages: tuple[str, ...]  # import names that only the candidate may provide
    editable: tuple[str, ...]  # globs, relative to the candidate's tree
    max_file_bytes: int = 1_000_000
    default_group: str = "all"
    focus: Mapping[str, tuple[str, ...]] = {}  # family -> the files to read first
    catalogue: bool = False  # whether the shipped catalogue, of attention, speaks of this task
    targets: tuple[str, ...]
    audit: AuditLimits
    workloads: tuple[WorkloadEntry, ...] = Field(min_length=1)


def _candidates(name_or_path: str) -> list[Path]:
    return [*(root / name_or_path for root in _task_roots()), Path(name_or_path)]


def _task_roots() -> list[Path]:
    installed = _PACKAGE_ROOT / "tasks"
    if installed.is_dir():
        return [installed]
    return [_CHECKOUT_ROOT / "seeds", _CHECKOUT_ROOT / "kernels" / "cute"]
