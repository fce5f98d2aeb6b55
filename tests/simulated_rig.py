"""A rig whose GPU is simulated: real builds and real objects, invented times; and what to judge
on it: a few edits of the softmax, each with objects of its own."""

import random
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Condition, Lock

from avo_cute.measure.devices import Gpu
from avo_cute.measure.request import Finding, Result
from avo_cute.operators import Proposal
from avo_cute.records import Samples
from avo_cute.stats import Calibration

from .conftest import KERNEL, kernel_source

SEED_S = 1e-4
ALIKE = Calibration((0.0002, -0.0003, 0.0001), 0.002)  # what equal kernels look like here


def library_of(path) -> str:
    """The name under which an object is known to the simulated GPU."""
    return f"{sha256(Path(path).read_bytes()).hexdigest()}.so"


@dataclass
class SimulatedRig:
    """Answers like a GPU on which the candidate takes 1/`gain` of the incumbent's time.

    With `speed` (of a library, 1.0 is the seed's) every arm is as fast as its object. `during` is
    called before a process answers, with its request: a place to wait, or to fail.
    """

    gain: float = 1.0
    hidden_gain: float = 1.0
    calibration: Calibration | None = ALIKE
    endings: dict[int, Result] = field(default_factory=dict)  # by number of the process
    asked: list = field(default_factory=list)
    voided: str = ""
    speed: Callable[[str], float] | None = None
    during: Callable[[object], None] = lambda request: None
    calibrations: dict = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = (Gpu(0),)
    closed: int = 0
    trailer = "measure: simulated"
    _lock: Lock = field(default_factory=Lock)

    def link(self, objects):
        return {name: library_of(path) for name, path in objects.items()}

    def measure(self, request):
        with self._lock:
            self.asked.append(request)
            number = len(self.asked)
        self.during(request)
        if (ending := self.endings.get(number)) is not None:
            return ending
        rng = random.Random(request.seed)
        samples = tuple(
            self._samples(request, p, rng) for p in request.points if p.role != "correctness-only"
        )
        finding = Finding("softmax-2k", "normal", 0.4, "relative error of out", 1e-3, 1e-3)
        facts = {"device": "Simulated GPU", "driver": "1.0"}
        return Result(samples=samples, findings=(finding,), facts=facts, busy_s=0.8, timed_s=1.0)

    @contextmanager
    def held(self, wanted=None):
        yield wanted or self.gpus[0]

    def close(self):
        self.closed += 1

    def _samples(self, request, point, rng):
        times = {}
        arms = [a for a in ("candidate", "incumbent", "seed") if a in request.kernels]
        public = [p.name for p in request.points if p.role == "public"]
        seed, incumbent = (request.kernels.get(a, {}) for a in ("seed", "incumbent"))
        if all(seed.get(n) == incumbent.get(n) for n in public):  # as the worker does
            arms = [a for a in arms if a != "seed"]
        rounds = request.effort.rounds
        for arm in arms:
            mean = SEED_S / self._faster(request, point, arm)
            times[arm] = tuple(mean * rng.lognormvariate(0, 0.001) for _ in range(rounds))
        clocks = {arm: (1500.0,) * rounds for arm in arms}
        void = (self.voided,) * rounds
        return Samples(point.name, point.role, "sustained", request.seed, times, clocks, void)

    def _faster(self, request, point, arm):
        if self.speed is not None:
            return self.speed(request.kernels[arm][point.name])
        if arm != "candidate":
            return 1.0
        return self.hidden_gain if point.role == "hidden" else self.gain


PATIENCE_S = 60.0
EDITS = {
    "Two rows per block": ('"rows_per_cta": 1', '"rows_per_cta": 2'),
    "Narrow loads": ('"vector": 8', '"vector": 4'),
    "Bypass L1": ('"load": "normal"', '"load": "bypass"'),
    "Stream out": ('"store": "back"', '"store": "streaming"'),
}
ROWS, LOADS, BYPASS, STREAM = EDITS


def source(name) -> str:
    return kernel_source().replace(*EDITS[name])


class Scripted:
    """Proposes what it is told to, in order."""

    name = "scripted"

    def __init__(self, names):
        self.left, self.observed = list(names), []

    def propose(self, parent, history):
        if not self.left:
            return None
        name = self.left.pop(0)
        return Proposal(
            name.partition(" #")[0], "", {KERNEL: source(name.partition(" #")[0]).encode()}
        )

    def observe(self, attempt):
        self.observed.append(attempt)


class Events:
    """Remembers what a run says, and lets a test wait for it."""

    def __init__(self):
        self.phases, self.attempts, self._news = [], [], Condition()

    def phase(self, text):
        self._told(self.phases, text)

    def attempt(self, attempt):
        self._told(self.attempts, attempt)

    def wait(self, holds):
        with self._news:
            assert self._news.wait_for(lambda: holds(self), PATIENCE_S), (
                self.phases,
                self.attempts,
            )

    def _told(self, to, what):
        with self._news:
            to.append(what)
            self._news.notify_all()
