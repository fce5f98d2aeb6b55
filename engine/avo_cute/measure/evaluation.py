"""One evaluation in the measuring process: launch contract, correctness, timing, in this order.

Whatever a candidate does ends as a `Result` with a status; what is this machine's or the seed's
fault ends as `infra-error`. What never ends is the engine's to kill: see `worker`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ..errors import AvoError, MachineFailed
from ..records import Samples, Status
from ..target import find_target, peaks_of
from .baselines import task_baselines
from .blame import CANDIDATE, FAILURES, OURS, blame, own_fault
from .correctness import check_point, check_properties, quick
from .cuda import CudaDevice, about
from .device import Arm, Device, Tensor
from .floor import floor
from .kernel import ObjectArm, contract_breach, load_runtime
from .modules import Modules, load_modules
from .oracle import Params
from .request import Finding, MeasureRequest, Point, Result
from .selftest import delayed, selftest, waited_more
from .timing import Job, Tally, sustained, timed, typical
from .wrong import self_test

Say = Callable[[str, float], None]

INCUMBENT, SEED = "incumbent", "seed"
# What a phase may take before it counts as a hang.
CHECK_S, TIME_S, START_S, SELFTEST_S = 60.0, 60.0, 120.0, 120.0
SHORT_ROUNDS = 5
PROPERTY_POINTS = 2  # per kernel: properties do not depend on the shape
JUDGED_FAMILIES = 3  # at full size: those that find most


def evaluate(request: MeasureRequest, say: Say, turn: Callable[[str], None]) -> Result:
    """Do what the request asks on the one GPU that this process sees. `turn` is told whose
    launches are waited for, before and after: "" is for our own."""
    began = time.monotonic()
    say("starting CUDA", START_S)
    load_runtime()
    device = CudaDevice(0, turn=turn)
    trial = Trial(request, device, say, facts=about(device))
    result = carry_out(trial)
    return replace(result, wall_s=time.monotonic() - began)


def carry_out(trial: Trial) -> Result:
    """The trial's result, whoever is at fault."""
    try:
        return trial.run()
    except FAILURES as failure:
        return trial.ended(*blame(failure))
    except AvoError as fault:
        return trial.ended(Status.INFRA_ERROR, str(fault))
    except OURS as error:
        return trial.ended(*own_fault(error, trial.device))


@dataclass
class Trial:
    """One request being carried out. Keeps what was found so far: it survives a failure."""

    request: MeasureRequest
    device: Device
    say: Say
    samples: list[Samples] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    facts: dict[str, str | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.request.seed)
        self.target = find_target(self.request.target)
        self.modules: Modules = load_modules(Path(self.request.task))
        self._arms: dict[tuple[str, str], ObjectArm] = {}

    def run(self) -> Result:
        """Everything that was asked for, or up to the candidate's first failure."""
        if breach := self.breach():
            return self.ended(Status.AUDIT_FAILED, breach)
        if self.request.effort.selftest:
            self.selftest()
        wrong = self.check() or next((f for f in self.findings if f.failure), None)
        if wrong is not None:
            where = f"{wrong.family} inputs of {wrong.workload}"
            return self.ended(Status.INCORRECT, f"{wrong.failure} ({where})")
        for point in self.request.points:
            if point.role != "correctness-only":
                self.time(point)
        return self.ended()

    def ended(self, status: Status | str = "", reason: str = "") -> Result:
        self.facts |= {f"unavailable {k}": v for k, v in self.tally.unavailable.items()}
        self.facts["checked launches"] = self.tally.checks
        return Result(
            status=str(status),
            reason=reason,
            detail="\n".join(f"{f.workload} {f.family}: {f.failure}" for f in self._failed()),
            samples=tuple(self.samples),
            findings=tuple(self.findings),
            facts=self.facts,
            busy_s=self.tally.busy_s,
            timed_s=self.tally.timed_s,
        )

    def arm(self, name: str, point: Point) -> ObjectArm | None:
        """The object of an arm for a point; None where there is none."""
        library = self.request.kernels.get(name, {}).get(point.name)
        if library is None:
            return None
        if (name, library) not in self._arms:
            arguments = self.modules.build.arguments
            target = asdict(self.target)
            self._arms[name, library] = ObjectArm(
                name, Path(library), lambda params: arguments(dict(params), target)
            )
        return self._arms[name, library]

    def breach(self) -> str:
        """How the launch contract of a candidate's object differs from the seed's; "" if not."""
        self.say("checking the launch contract", CHECK_S)
        for point in self.request.points:
            mine, seeds = self.arm(CANDIDATE, point), self.arm(SEED, point)
            if mine and seeds and (breach := contract_breach(mine, seeds)):
                return f"{breach} (workload {point.name})"
        return ""

    def check(self) -> Finding | None:
        """Compare with the reference, small workloads first; stops at the first that is wrong."""
        effort = self.request.effort
        if effort.families == "none":
            return None
        points = [p for p in self.request.points if p.role == "correctness-only"]
        if effort.large:
            points += [p for p in self.request.points if p.role != "correctness-only"]
        kernels: dict[str, int] = {}
        for point in points:
            library = self.request.kernels[CANDIDATE][point.name]
            kernels[library] = kernels.get(library, 0) + 1
            properties = effort.families == "all" and kernels[library] <= PROPERTY_POINTS
            if wrong := self._check_point(point, properties and point.role == "correctness-only"):
                return wrong
        return None

    def _check_point(self, point: Point, properties: bool) -> Finding | None:
        reference, mine, seeds = (
            self.modules.judge,
            self.arm(CANDIDATE, point),
            self.arm(SEED, point),
        )
        assert mine is not None
        for family in self._families(point):
            self.say(f"checking {family} inputs of {point.name}", CHECK_S)
            found = check_point(self.device, reference, mine, seeds, point, [family], self.rng)
            self.findings += found
            if failed := [f for f in found if f.failure]:
                return failed[0]
        if properties:
            self.say(f"checking properties of {point.name}", CHECK_S)
            found = check_properties(self.device, reference, mine, seeds, point, self.rng)
            self.findings += found
            if failed := [f for f in found if f.failure]:
                return failed[0]
        return None

    def _families(self, point: Point) -> Sequence[str]:
        reference = self.modules.judge
        if point.role != "correctness-only":
            return reference.FEW[:JUDGED_FAMILIES]
        return reference.FAMILIES if self.request.effort.families == "all" else reference.FEW

    def time(self, point: Point) -> None:
        """Sustained and isolated samples of one workload, all arms in the same rounds."""
        effort = self.request.effort
        rounds = 2 * effort.warm_s + 8 * effort.visit_s * (2 * effort.rounds + effort.cold)
        self.say(f"timing {point.name}", TIME_S + 4 * rounds)
        job, arms = self.job(point), self._contenders(point)
        if self.request.delay:
            short = replace(job, effort=replace(effort, rounds=SHORT_ROUNDS, cold=0))
            seconds = typical(sustained(self.device, arms, point, short), INCUMBENT)
            arms = delayed(self.device, arms, CANDIDATE, self.request.delay * seconds)
        self.samples += timed(self.device, arms, point, job)
        if self.request.delay:
            self.facts[f"waited {point.name}"] = waited_more(arms)

    def job(self, point: Point) -> Job:
        """How a workload is timed."""
        reference, params = self.modules.judge, point.params
        multiplies = self.modules.multiplies(self.target)
        return Job(
            effort=self.request.effort,
            rng=self.rng,
            make_inputs=lambda seed: reference.case(
                params, reference.FAMILIES[0], seed, self.device.torch_device
            ),
            make_outputs=lambda: self._outputs(point),
            check=self._quick,
            floor_s=floor(
                self.modules.reference, params, self.target, multiplies=multiplies
            ).impossible,
            rotate_bytes=2 * self.target.l2_bytes,
            process=self.request.seed,
            tally=self.tally,
        )

    def _quick(
        self, arm: str, params: Params, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> str:
        """A baseline may leave out outputs; a candidate may not."""
        ours = arm in self.request.kernels
        seed = self.rng.getrandbits(62)
        return quick(self.modules.judge, params, inputs, outputs, seed, partial=not ours)

    def _outputs(self, point: Point) -> list[object]:
        import torch

        return [
            torch.empty(
                o.shape(point.params),
                dtype=getattr(torch, o.dtype),
                device=self.device.torch_device,
            )
            for o in self.modules.reference.OUTPUTS
        ]

    def _contenders(self, point: Point) -> list[Arm]:
        """Candidate, incumbent, the seed where any public object differs, further kernels by name,
        and baselines."""
        kernels = self.request.kernels
        names = [CANDIDATE, INCUMBENT]
        public = [p.name for p in self.request.points if p.role == "public"]
        seed, incumbent = kernels.get(SEED, {}), kernels.get(INCUMBENT, {})
        if any(seed.get(n) != incumbent.get(n) for n in public):
            names.append(SEED)
        names += sorted(set(kernels) - {CANDIDATE, INCUMBENT, SEED})
        arms: list[Arm] = [a for name in names if (a := self.arm(name, point)) is not None]
        if point.role == "public":
            arms += task_baselines(self.modules.directory, self.request.baselines)
        return arms

    def selftest(self) -> None:
        """Raises `MachineFailed` where this session's timer or judge cannot be trusted."""
        self.say("self-test of the session", SELFTEST_S)
        point = next(p for p in self.request.points if p.role == "public")
        arm = self.arm(SEED, point)
        assert arm is not None
        small = [p for p in self.request.points if p.role == "correctness-only"]
        for check in small[:1]:
            seeds = self.arm(SEED, check)
            assert seeds is not None
            lines = self_test(self.device, self.modules.judge, seeds, check, self.rng)
            if lines:
                raise MachineFailed(f"the rules of correctness fail their test: {lines[0]}")
        bandwidth = peaks_of(self.target).bandwidth
        found = selftest(self.device, arm, point, self.job(point), bandwidth)
        told = {k: v for k, v in asdict(found).items() if isinstance(v, int | float)}
        self.facts |= {f"selftest {name}": value for name, value in told.items()}
        if found.failed:
            raise MachineFailed("the self-test of this session fails: " + "; ".join(found.failed))

    def _failed(self) -> list[Finding]:
        return [f for f in self.findings if f.failure]
