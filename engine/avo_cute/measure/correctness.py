"""Is the candidate right? Candidate first, reference afterwards, the seed's errors as yardstick.

For each family of inputs: fresh inputs between NaN guards, poisoned outputs, one launch; then, in
this order, launch status, finite values, guards, unchanged inputs, no poison left, numbers. Only
after the candidate has run do the seed's outputs and expected values come into device memory.
What outputs hold before a launch must not matter: the repeated launches start from poison, from
random numbers, and from outputs of which one is right already.

A point that the seed refuses, or gets wrong itself, is reported as "unsupported by the seed" and
not held against the candidate.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import MachineFailed
from .compare import FACTOR, Measure, Rows, few_rows, insane, largest_difference, measures, worst_of
from .device import Arm, Device, DeviceFault, Unavailable, running
from .guarded import Inputs, Outputs, differing, structure
from .oracle import Params, Property, Reference
from .request import Finding, Point

Tensor = Any
Fill = Callable[[Outputs], None]

RUNS = 20  # of one launch whose results must be bitwise equal
ROWS = 2048  # per group of rows, judged in fp64 where a workload is too large for fp64 throughout
FORMS_AGREE = 1e-9  # of the reference, relative: fp64 in two orders of summation
WHOLE_AGREES = 1e-4  # fp32 with fp64, relative: far below bf16's 1e-3
QUICK_GROUPS, QUICK_ROWS = 8, 32
TYPICAL_ERROR = 2.3e-3  # relative, of bf16 twice rounded: the largest FlashAttention-4 showed
QUICK_ABSOLUTE = 1e-3


class ArmFault(DeviceFault):
    """A `DeviceFault` of which we know whose launch it was: `arm` is that contender's name."""

    def __init__(self, arm: str, where: str, fault: DeviceFault) -> None:
        super().__init__(f"{arm} on {where}: {fault}")
        self.arm = arm


class ReferenceFault(MachineFailed):
    """The reference contradicts itself, so nobody's candidate can be judged on this machine."""


def check_point(
    device: Device,
    reference: Reference,
    candidate: Arm,
    seed_arm: Arm | None,
    point: Point,
    families: Sequence[str],
    rng: random.Random,
) -> list[Finding]:
    """One finding per family. `seed_arm` is None where the seed could not be built for the point.

    Raises `ArmFault` where a launch broke the process, `ReferenceFault` where nothing can be said.
    """
    if seed_arm is None:
        return [_unsupported(point, family, "it did not build") for family in families]
    trial = _Trial(device, reference, candidate, seed_arm, point)
    return [trial.family(family, rng.getrandbits(62)) for family in families]


def check_properties(
    device: Device,
    reference: Reference,
    candidate: Arm,
    seed_arm: Arm | None,
    point: Point,
    rng: random.Random,
) -> list[Finding]:
    """What must hold without a reference: the task's own properties, and that 20 runs are bitwise
    equal, whatever the outputs held before. The seed runs only where the candidate fails: it may
    not have the property either."""
    if seed_arm is None:
        return [_unsupported(point, "properties", "it did not build")]
    trial = _Trial(device, reference, candidate, seed_arm, point)
    drawn = reference.properties(point.params, rng.getrandbits(62), device.torch_device)
    found = [trial.property(one) for one in drawn]
    return [*found, trial.repeats(rng.getrandbits(62))]


def quick(
    reference: Reference,
    params: Params,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    seed: int,
    *,
    partial: bool = False,
) -> str:
    """Why a timed launch's outputs cannot be right, in one line; "" if a few hundred random rows
    of them agree with fp64 as well as bf16 allows. For ordinary inputs. `partial`: outputs
    that were not written at all are left out, for a library that does not have them."""
    sample = reference.sampled(params, inputs, seed, QUICK_ROWS, QUICK_GROUPS)
    picked = sample.pick(outputs)
    for output, got, expected in zip(reference.OUTPUTS, picked, sample.expected, strict=True):
        if partial and bool(got.isnan().all()):
            continue
        if output.metric == "absolute":
            error, bound = largest_difference(got, expected), QUICK_ABSOLUTE
        else:
            rows = Rows.of(got, expected)
            error = rows.relative
            bound = FACTOR * few_rows(float(rows.count.sum())) * TYPICAL_ERROR
        if not error <= bound:
            return f"error of {output.name} in sampled rows is {error:.3g}, allowed {bound:.3g}"
    return ""


@dataclass(frozen=True, slots=True)
class _Run:
    """What one launch left: the outputs, and what was wrong apart from their values."""

    outputs: tuple[Tensor, ...]
    failure: str


@dataclass(frozen=True, slots=True)
class _Trial:
    device: Device
    reference: Reference
    candidate: Arm
    seed: Arm
    point: Point

    def family(self, family: str, seed: int) -> Finding:
        params, drawn = self.reference.case(
            self.point.params, family, seed, self.device.torch_device
        )
        inputs = Inputs(drawn)
        run = self._launch(self.candidate, params, inputs)
        yardstick = self._yardstick(params, Inputs(drawn))  # the candidate may have changed its own
        if yardstick.failure:
            return _unsupported(self.point, family, yardstick.failure)
        found, wild = self._numbers(params, drawn, run, yardstick, seed)
        if wild:
            return _unsupported(self.point, family, wild)
        worst = worst_of(found)
        return _finding(self.point, family, worst, run.failure)

    def property(self, wanted: Property) -> Finding:
        failure, measure = self._holds(self.candidate, wanted)
        if failure or measure.quotient > 1:
            theirs, seed_measure = self._holds(self.seed, wanted)
            if theirs or seed_measure.quotient > 1:
                return _unsupported(self.point, wanted.name, theirs or "it lacks this property")
        return _finding(self.point, wanted.name, measure, failure)

    def repeats(self, seed: int) -> Finding:
        """Same inputs, same bits, however often and over whatever was there."""
        name = f"{RUNS} runs"
        different, failure = self._differing(self.candidate, seed)
        if failure or different:
            theirs, seed_failure = self._differing(self.seed, seed)
            if theirs or seed_failure:
                return _unsupported(self.point, name, seed_failure or "its runs differ")
        what = "bits that differ between runs"
        return _finding(self.point, name, Measure(what, float(different), 0.0, 0.0), failure)

    def _launch(
        self, arm: Arm, params: Params, inputs: Inputs, fill: Fill = Outputs.poison
    ) -> _Run:
        """One launch into new outputs that `fill` has filled."""
        outputs = Outputs(
            [(o.shape(params), o.dtype) for o in self.reference.OUTPUTS], self.device.torch_device
        )
        fill(outputs)
        try:
            self.device.synchronize()
            with running(self.device, arm.name):
                arm.bind(params, inputs.tensors, outputs.tensors)()
                self.device.synchronize()
        except DeviceFault as fault:
            raise ArmFault(arm.name, self.point.name, fault) from fault
        return _Run(outputs.tensors, structure(self.reference.OUTPUTS, inputs, outputs))

    def _yardstick(self, params: Params, inputs: Inputs) -> _Run:
        """The seed's run. A refusal of the shape is a failure of the run, unless it took the
        process with it: then the next use of the device raises."""
        try:
            return self._launch(self.seed, params, inputs)
        except Unavailable as refusal:
            return _Run((), str(refusal))
        except ArmFault as fault:
            try:
                self.device.synchronize()
            except DeviceFault:
                raise fault from None
            return _Run((), str(fault))

    def _numbers(
        self, params: Params, drawn: Sequence[Tensor], run: _Run, yardstick: _Run, seed: int
    ) -> tuple[list[Measure], str]:
        """All measures of all outputs, and why the seed is no yardstick for them ("" if it is)."""
        found: list[Measure] = []
        for expected, pick, whole in self._expected(params, drawn, seed):
            mine, theirs = pick(run.outputs), pick(yardstick.outputs)
            for output, got, seeds, want in zip(
                self.reference.OUTPUTS, mine, theirs, expected, strict=True
            ):
                if wild := insane(output, seeds, want, whole=whole):
                    return [], wild
                found += measures(output, got, seeds, want, whole=whole)
        return found, ""

    def _expected(
        self, params: Params, drawn: Sequence[Tensor], seed: int
    ) -> list[tuple[tuple[Tensor, ...], Callable[..., Any], bool]]:
        """Expected values, how to take the same from outputs, and whether they are all there are.

        Small workloads: fp64. Large ones: fp64 of random rows, and fp32 of everything.
        """
        if self.reference.small(params):
            first, second = (
                self.reference.expected(params, drawn, form) for form in self.reference.FORMS
            )
            self._must_agree(first, second, FORMS_AGREE)
            return [(first, tuple, True)]
        sample = self.reference.sampled(params, drawn, seed, ROWS)
        whole = self.reference.whole32(params, drawn)
        self._must_agree(sample.expected, sample.pick(whole), WHOLE_AGREES)
        return [(whole, tuple, True), (sample.expected, sample.pick, False)]

    def _must_agree(
        self, first: Sequence[Tensor], second: Sequence[Tensor], tolerance: float
    ) -> None:
        for output, one, other in zip(self.reference.OUTPUTS, first, second, strict=True):
            if output.metric == "absolute":
                error = largest_difference(other, one)
                size = float(one.abs().nan_to_num(posinf=0.0).max()) if one.numel() else 0.0
                error /= max(1.0, size)
            else:
                error = Rows.of(other, one).relative
            if not error <= tolerance:
                name = self.point.name
                raise ReferenceFault(f"two forms of {output.name} differ by {error:.3g} on {name}")

    def _holds(self, arm: Arm, wanted: Property) -> tuple[str, Measure]:
        runs = [self._launch(arm, params, Inputs(drawn)) for params, drawn in wanted.cases]
        failures = [run.failure for run in runs if run.failure]
        error, bound = wanted.judge([run.outputs for run in runs])
        return (failures or [""])[0], Measure(wanted.name, error, 0.0, bound)

    def _differing(self, arm: Arm, seed: int) -> tuple[int, str]:
        """Elements that differ from those of the first of 20 runs, and what else was wrong."""
        family, where = self.reference.FAMILIES[0], self.device.torch_device
        params, drawn = self.reference.case(self.point.params, family, seed, where)
        inputs = Inputs(drawn)
        first = self._launch(arm, params, inputs)
        different = 0
        for n in range(1, RUNS):
            again = self._launch(arm, params, inputs, _contents(n, seed + n, first.outputs))
            different += sum(map(differing, first.outputs, again.outputs))
            if again.failure:
                return different, again.failure
        return different, first.failure


def _contents(run: int, seed: int, right: Sequence[Tensor]) -> Fill:
    """What the outputs hold before a repeated launch: poison in every second one; else numbers
    that no kernel gave, in turn everywhere and everywhere but in one output, which is right."""
    if run % 2 == 0:
        return Outputs.poison

    def fill(outputs: Outputs) -> None:
        outputs.rubbish(seed)
        if kept := run // 2 % (len(right) + 1):
            outputs.tensors[kept - 1].copy_(right[kept - 1])

    return fill


def _finding(point: Point, family: str, worst: Measure, failure: str) -> Finding:
    """The worst measure, or what was wrong before any number."""
    quotient = float("inf") if failure else worst.quotient
    if not failure and worst.quotient > 1:
        failure = (
            f"{worst.what} is {worst.error:.3g}, allowed {worst.bound:.3g} "
            f"(the seed's {worst.seed_error:.3g})"
        )
    return Finding(point.name, family, quotient, worst.what, worst.error, worst.seed_error, failure)


def _unsupported(point: Point, family: str, why: str) -> Finding:
    return Finding(point.name, family, 0.0, f"unsupported by the seed: {why}", 0.0, 0.0)
