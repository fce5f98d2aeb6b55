"""Self-test and calibration before the first candidate: measured once per GPU and lineage."""

import json
import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from avo_cute.bench import Bench, Side
from avo_cute.calibrations import read_calibration, write_calibration
from avo_cute.errors import MachineFailed, Stopped
from avo_cute.measure.devices import Gpu
from avo_cute.measure.request import Result
from avo_cute.readiness import PROCESSES, make_ready
from avo_cute.records import Samples, Status
from avo_cute.repo import Repo
from avo_cute.target import find_target
from avo_cute.task import find_task

GPUS = Gpu(0, "GPU-a"), Gpu(1, "GPU-b")


@dataclass
class NullRig:
    """Compares equal kernels, with a lean per process of `spread`."""

    gpus: tuple = GPUS[:1]
    spread: float = 0.0003
    ending: Result | None = None
    disturbed: int = 0  # evaluations that this machine fails
    calibrations: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    trailer = "measure: simulated"

    def link(self, objects):
        return {name: str(path) for name, path in objects.items()}

    @contextmanager
    def held(self, gpu=None):
        yield gpu

    def measure(self, request):
        self.asked.append(request)
        if len(self.asked) <= self.disturbed:
            raise MachineFailed("the self-test of this session fails")
        if self.ending is not None:
            return self.ending
        rng = random.Random(len(self.asked))
        lean = 1 + rng.choice((-1, 1)) * self.spread
        samples = []
        for point in request.points:
            n = request.effort.rounds
            times = {
                "candidate": tuple(1e-3 * lean * rng.gauss(1, 1e-4) for _ in range(n)),
                "incumbent": tuple(1e-3 * rng.gauss(1, 1e-4) for _ in range(n)),
            }
            clocks = dict.fromkeys(times, (1500.0,) * n)
            samples.append(
                Samples(point.name, "public", "sustained", request.seed, times, clocks, ("",) * n)
            )
        return Result(samples=tuple(samples), facts={"device": "Simulated GPU"})


@pytest.fixture
def repo(tmp_path) -> Repo:
    return Repo.create(tmp_path / "lineage.git")


def ready(repo, rig, group="softmax-2k"):
    task = find_task("softmax")
    bench = Bench(
        task, find_target("h200"), task.select(group), Path("/none"), "none", map, rig=rig
    )
    objects = {w.name: Path("/none/0.o") for w in (*bench.workloads, *bench.beside)}
    return make_ready(repo, bench, Side("tree", objects))


def test_a_machine_is_calibrated_once(repo):
    first, again = NullRig(), NullRig()
    margin = ready(repo, first)
    assert [r.effort.selftest for r in first.asked] == [True] + [False] * PROCESSES
    assert margin == pytest.approx(max(0.001, 3 * 0.0003), rel=0.5)
    assert ready(repo, again) == margin and len(again.asked) == 1  # the self-test alone
    assert len({r.seed for r in first.asked}) == len(first.asked)
    text = read_calibration(repo, "softmax-1", "GPU-a")
    assert len(json.loads(text)["gains"]) == PROCESSES


def test_fewer_workloads_serve_for_more_but_not_the_other_way(repo):
    ready(repo, NullRig())
    more = NullRig()
    ready(repo, more, "all")
    assert len(more.asked) == 1
    other = Repo.create(repo.path.parent / "other.git")
    ready(other, NullRig(), "all")
    fewer = NullRig()
    ready(other, fewer)
    assert len(fewer.asked) == 1 + PROCESSES


def test_every_gpu_is_calibrated(repo):
    rig = NullRig(gpus=GPUS)
    ready(repo, rig)
    assert set(rig.calibrations) == {"GPU-a", "GPU-b"}
    assert read_calibration(repo, "softmax-1", "GPU-b") is not None


def test_a_damaged_calibration_is_measured_again(repo):
    write_calibration(repo, "softmax-1", "GPU-a", {"calibration.json": b"{]"}, {"Task": "softmax"})
    rig = NullRig()
    ready(repo, rig)
    assert len(rig.asked) == 1 + PROCESSES


def test_a_wide_spread_widens_the_margin(repo):
    assert ready(repo, NullRig(spread=0.004)) > 0.009


def test_a_failing_selftest_is_the_machines_fault(repo):
    rig = NullRig(ending=Result(status=Status.CRASHED, reason="an illegal address"))
    with pytest.raises(MachineFailed, match="an illegal address"):
        ready(repo, rig)
    assert repo.refs("refs/calibrations") == {}


def test_a_machine_that_was_disturbed_gets_one_more_try(repo):
    ready(repo, NullRig(disturbed=1))
    other = Repo.create(repo.path.parent / "other.git")
    with pytest.raises(MachineFailed, match="self-test"):
        ready(other, NullRig(disturbed=2))


def test_a_selftest_that_was_stopped_is_not_tried_again(repo):
    class Ending(NullRig):
        def measure(self, request):
            self.asked.append(request)
            raise Stopped("python3 was stopped before it was done")

    rig = Ending()
    with pytest.raises(Stopped):
        ready(repo, rig)
    assert len(rig.asked) == 1
