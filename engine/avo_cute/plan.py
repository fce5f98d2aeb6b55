"""Which run a command means: the one it finds, a new one, or a clear refusal."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from .bench import Bench, Spread
from .config import DEFAULT_TARGET, DEFAULT_TASK, cache_dir
from .errors import BadInput
from .gpu import target_of
from .lineage import Lineage
from .records import Target
from .run import Run, Watch
from .runs import check_name
from .sandbox import choose_layer
from .seed import Seed, from_folder, from_wheel
from .target import find_target
from .task import Task, find_task, shipped_tasks

if TYPE_CHECKING:
    from .measure.rig import Rig


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for; None where nothing was said."""

    lineage: Path
    task: str | None = None
    target: str | None = None
    run: str | None = None
    workloads: str | None = None
    from_rev: str | None = None
    unsafe: bool = False
    devices: str = ""  # GPUs to measure on: "0,1", all of them for "", "none" to estimate
    jobs: int = 2


def open_run(wanted: Wanted, spread: Spread, watch: Watch) -> Run:
    """Resume the run that fits, or prepare one; creates the lineage and its seed where missing."""
    lineage = open_or_create(wanted, watch)
    name = _existing(lineage, wanted)
    if name is None:
        return _prepare(lineage, wanted, spread, watch)
    return resume(lineage, name, wanted, spread, watch)


def resume(lineage: Lineage, name: str, wanted: Wanted, spread: Spread, watch: Watch) -> Run:
    """The run `name` of an open lineage, ready for `begin`."""
    facts = lineage.run_facts(name)
    task = _task_of(name, facts["Task"], wanted.task)
    for option, asked, recorded in (
        ("task", task.name, facts["Task"]),
        ("target", wanted.target, facts["Target"]),
        ("workloads", wanted.workloads, facts["Workloads"]),
    ):
        if asked is not None and asked != recorded:
            raise BadInput(
                f"run {name} has --{option} {recorded}, not {asked}: leave the option out, or "
                "start another run with --run NAME"
            )
    target = find_target(facts["Target"])
    bench = make_bench(task, target, facts["Workloads"], wanted, spread, watch)
    return Run(lineage, bench, name, facts["Workloads"], watch)


def _task_of(run: str, recorded: str, asked: str | None) -> Task:
    """The task that was asked for, else the recorded one, which must be a shipped one then."""
    if asked is None and recorded not in shipped_tasks():
        raise BadInput(f"task {recorded} of run {run} is not shipped: give --task DIRECTORY")
    return find_task(asked or recorded)


def make_bench(
    task: Task, target: Target, group: str, wanted: Wanted, spread: Spread, watch: Watch
) -> Bench:
    """How candidates are judged on this machine: measured where it has the target's GPU."""
    if target.name not in task.settings.targets:
        raise BadInput(
            f"task {task.name} is not for target {target.name}: choose one of "
            f"{', '.join(task.settings.targets)}"
        )
    layer = choose_layer(allow_none=wanted.unsafe)
    workloads = task.select(group)
    rig = _rig(task, target, wanted, watch)
    apart = rig is not None and wanted.jobs >= len(workloads)
    bench = Bench(task, target, workloads, cache_dir(), layer, spread, apart=apart, rig=rig)
    # one more than there are GPUs: the next candidate is built while others are measured
    return bench if rig is None else replace(bench, width=len(rig.gpus) + 1)


def _rig(task: Task, target: Target, wanted: Wanted, watch: Watch) -> Rig | None:
    """The GPUs to measure on; None where none of this machine's is the target."""
    if wanted.devices.strip() == "none":
        return None
    from .measure.devices import find_devices
    from .measure.rig import open_rig

    gpus = find_devices(wanted.devices, target.name, watch.phase)
    if not gpus:
        return None
    watch.phase(f"starting CUDA on {gpus[0].model}, confined")
    return open_rig(task.directory, cache_dir(), gpus, watch.phase)


def open_or_create(wanted: Wanted, watch: Watch) -> Lineage:
    """The lineage at the path; made with the task's seed if there is none, or only half of one."""
    lineage = Lineage.open(wanted.lineage) if Lineage.exists(wanted.lineage) else None
    if lineage is not None and lineage.tasks():
        return lineage
    task = find_task(wanted.task or DEFAULT_TASK)
    task.select(wanted.workloads or task.settings.default_group)
    find_target(wanted.target or DEFAULT_TARGET)
    watch.phase(f"creating {wanted.lineage} with the seed of {task.name}")
    return init(wanted.lineage, task, seed_of(task))


def init(path: Path, task: Task, seed: Seed) -> Lineage:
    """Create the lineage if needed and commit the seed of a task in it."""
    lineage = Lineage.open(path) if Lineage.exists(path) else Lineage.create(path)
    lineage.init_seed(task.name, seed)
    return lineage


def seed_of(task: Task) -> Seed:
    """The seed that the task directory names: a released package, or its own source folder."""
    if (task.directory / "seed.toml").is_file():
        return from_wheel(task.directory / "seed.toml")
    return from_folder(task.directory / "source")


def default_target() -> str:
    """The target of the first GPU that this process may use and that is one, else b200."""
    from .measure.devices import find_devices

    return next(filter(None, (target_of(gpu.model) for gpu in find_devices())), DEFAULT_TARGET)


def _existing(lineage: Lineage, wanted: Wanted) -> str | None:
    """The run to resume: the named one, else the latest that does not contradict the options."""
    runs = lineage.runs()
    if wanted.run is not None:
        if wanted.run in runs and wanted.from_rev is not None:
            raise BadInput(f"run {wanted.run} exists already: --from starts a new run")
        return wanted.run if wanted.run in runs else None
    if wanted.from_rev is not None:
        return None
    task = find_task(wanted.task).name if wanted.task else None
    for name in runs:
        facts = lineage.run_facts(name)
        if task in (None, facts["Task"]) and wanted.target in (None, facts["Target"]):
            if wanted.workloads in (None, facts["Workloads"]):
                return name
    return None


def _prepare(lineage: Lineage, wanted: Wanted, spread: Spread, watch: Watch) -> Run:
    """A new run at the seed or at `--from`; nothing is written before its start has passed."""
    task = find_task(wanted.task or only_task(lineage))
    if task.name not in lineage.tasks():
        held = ", ".join(lineage.tasks()) or "no seed"
        raise BadInput(
            f"{lineage.path} holds {held}, not task {task.name}: add it with "
            f"`avo-cute init --task {wanted.task}`, or use another --lineage PATH"
        )
    target = find_target(wanted.target or default_target())
    group = wanted.workloads or task.settings.default_group
    bench = make_bench(task, target, group, wanted, spread, watch)
    start = lineage.resolve(wanted.from_rev) if wanted.from_rev else lineage.seed(task.name)
    name = wanted.run or _free_name(lineage, f"{task.name}-{target.name}")
    check_name(name)
    return Run(lineage, bench, name, group, watch, start)


def only_task(lineage: Lineage) -> str:
    tasks = lineage.tasks()
    return DEFAULT_TASK if DEFAULT_TASK in tasks or not tasks else tasks[0]


def _free_name(lineage: Lineage, stem: str) -> str:
    today = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d")
    names = [f"{stem}-{today}", *(f"{stem}-{today}-{n}" for n in range(2, 1000))]
    return next(name for name in names if name not in lineage.runs())
