"""What every part of the proof stands on: the GPU found, the seed built, raw JSON kept.

Measuring processes, builds and decisions are the engine's; only what is asked of them is ours.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from proof_about import about

from avo_cute.bench import Bench
from avo_cute.build import Source
from avo_cute.config import cache_dir
from avo_cute.errors import MachineFailed
from avo_cute.executor import LocalExecutor
from avo_cute.measure.devices import find_devices
from avo_cute.measure.request import Effort, MeasureRequest, Point, Result
from avo_cute.measure.rig import Rig, fresh_seed, open_rig
from avo_cute.plan import default_target, seed_of
from avo_cute.records import Samples, Target, Verdict, Workload
from avo_cute.sandbox import choose_layer
from avo_cute.score import evaluate
from avo_cute.target import find_target
from avo_cute.task import Task, find_task

SEED = "seed"  # the name of the seed's tree
MHZ_APART = 0.02  # as the engine voids a round: arms that it does not know are judged here

Kernels = dict[str, Mapping[str, str]]


@dataclass
class Ground:
    """One machine, one task, and what was built so far."""

    task: Task
    target: Target
    cache: Path
    out: Path
    pool: LocalExecutor
    rig: Rig
    jobs: int
    files: Mapping[str, bytes]  # of the seed
    scratch: Path
    _seeds: dict[tuple[str, ...], Future[Verdict]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _saving: threading.Lock = field(default_factory=threading.Lock)

    def bench(self, workloads: Sequence[Workload], *, alone: bool = False) -> Bench:
        """How candidates are judged; `alone`: a candidate's builds follow one another."""
        spread = map if alone else self.pool.map
        apart = not alone and self.jobs >= len(workloads)
        layer = choose_layer()
        return Bench(
            self.task, self.target, tuple(workloads), self.cache, layer, spread, apart=apart,
            rig=self.rig,
        )  # fmt: skip

    def source(self, changed: Mapping[str, bytes], name: str = "") -> Source:
        """The seed with some files changed, on disk."""
        digest = sha256()
        for path, data in sorted(changed.items()):
            digest.update(f"{path}\0{len(data)}\0".encode() + data)
        tree = SEED if not changed else f"proof {digest.hexdigest()}"
        folder = Path(tempfile.mkdtemp(prefix=f"{name or 'tree'}-", dir=self.scratch))
        write_files(folder, {**self.files, **changed})
        return Source(tree, folder)

    def export(self, tree: str, folder: Path) -> None:
        """What `measured` asks for where it builds the other arms."""
        if tree != SEED:
            raise MachineFailed(f"no such tree: {tree}")
        write_files(folder, self.files)

    def seed(self, bench: Bench) -> Verdict:
        """The seed's verdict on a bench, with its objects; built once, others are not held up.

        A build that failed is tried again by whoever asks next.
        """
        key = tuple(w.name for w in bench.workloads)
        with self._lock:
            building = self._seeds.get(key)
            if building is None or (building.done() and building.exception() is not None):
                mine = self._seeds[key] = Future[Verdict]()
            else:
                mine = None
        if mine is None:
            assert building is not None
            return building.result()
        try:
            verdict = evaluate(self.source({}, SEED), bench, None)
            if not verdict.objects:
                raise MachineFailed(f"the seed does not pass: {verdict.reason}")
        except BaseException as error:
            mine.set_exception(error)
            raise
        mine.set_result(verdict)
        return verdict

    def seed_libraries(self, bench: Bench, workloads: Sequence[Workload]) -> dict[str, str]:
        objects = self.seed(bench).objects
        return self.rig.link({w.name: objects[w.name] for w in workloads})

    def copied(self, libraries: Mapping[str, str], name: str) -> dict[str, str]:
        """The same libraries in files of their own: the process loads them a second time."""
        made = {}
        for workload, library in libraries.items():
            copy = Path(library).with_name(f"{name}-{Path(library).name}")
            if not copy.exists():
                part = copy.with_suffix(".part")
                shutil.copyfile(library, part)
                part.rename(copy)
            made[workload] = str(copy)
        return made

    def measure(
        self, workloads: Sequence[Workload], kernels: Kernels, effort: Effort, **more: Any
    ) -> Result:
        """One process that times the workloads; `MachineFailed` where the seed itself fails."""
        request = MeasureRequest(
            task=str(self.task.directory),
            target=self.target.name,
            seed=fresh_seed(),
            points=tuple(Point(w.name, dict(w.params)) for w in workloads),
            kernels=kernels,
            effort=effort,
            **more,
        )
        result = self.rig.measure(request)
        if result.status:
            raise MachineFailed(f"the seed itself ends as {result.status}: {result.reason}")
        return result

    def save(self, part: str, data: Mapping[str, Any]) -> None:
        """`OUT/<part>.json`, replaced as a whole: a killed run keeps the last one."""
        own = {"part": part, "task": self.task.name, "target": self.target.name}
        own["sandbox"] = self.rig.trailer
        with self._saving:
            save(self.out / f"{part}.json", {**about(), **own, **data})


def open_ground(out: Path, jobs: int) -> Ground:
    """This machine's GPU and the task's seed. Raises `BadInput` or `MachineFailed`."""
    task, target = find_task("fa4"), find_target(default_target())
    cache = cache_dir()
    gpus = find_devices("", target.name, say)[:1]  # one machine, one GPU: the others stay idle
    rig = open_rig(task.directory, cache, gpus, say)
    scratch = Path(tempfile.mkdtemp(prefix="avo-cute-proof-"))
    files = seed_of(task).files
    return Ground(task, target, cache, out, LocalExecutor(jobs), rig, jobs, files, scratch)


def close_ground(ground: Ground) -> None:
    ground.rig.close()
    ground.pool.close()
    shutil.rmtree(ground.scratch, ignore_errors=True)


def save(path: Path, data: Mapping[str, Any]) -> None:
    scratch = path.with_suffix(".part")
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    scratch.write_text(json.dumps(plain({"when": when, **data}), indent=None))
    scratch.rename(path)


def load(out: Path, part: str) -> dict[str, Any] | None:
    """What a part wrote; None where it has not run."""
    path = out / f"{part}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def plain(value: Any) -> Any:
    """As JSON has it, floats with seven digits: far beyond what any clock resolves."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


def raw(result: Result) -> dict[str, Any]:
    """What is kept of a process: all samples, what it says of itself, no findings."""
    return {
        "samples": result.samples,
        "facts": dict(result.facts),
        "busy_s": result.busy_s,
        "timed_s": result.timed_s,
        "wall_s": result.wall_s,
    }


def relabelled(samples: Samples, candidate: str, incumbent: str) -> Samples:
    """Two arms of a sample in the roles of candidate and incumbent, with the clock rule that the
    engine would have applied to them."""
    pair = {"candidate": candidate, "incumbent": incumbent}
    clocks = {role: samples.clocks[arm] for role, arm in pair.items()}
    void = tuple(
        why or ("SM clocks apart" if _apart(a, b) else "")
        for why, a, b in zip(samples.void, clocks["candidate"], clocks["incumbent"], strict=True)
    )
    times = {role: samples.times[arm] for role, arm in pair.items()}
    return replace(samples, times=times, clocks=clocks, void=void)


def _apart(a: float, b: float) -> bool:
    return a > 0 and b > 0 and max(a, b) / min(a, b) - 1 > MHZ_APART


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def say(text: str) -> None:
    print(f"[{passed():6.1f} s] {text}", flush=True)


def passed() -> float:
    """Seconds since this program began."""
    return time.monotonic() - _BEGAN


_BEGAN = time.monotonic()
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for tests.redteam
