"""Contenders that are wrong on purpose: what the rules must refuse before they are used."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .correctness import check_point
from .device import Arm, Device
from .guarded import Inputs, Outputs
from .oracle import Params, Reference
from .request import Point

Tensor = Any
Make = Callable[[Params, Sequence[Tensor]], Sequence[Tensor]]


def self_test(
    device: Device, reference: Reference, seed_arm: Arm, point: Point, rng: random.Random
) -> list[str]:
    """What is wrong with the rules, one line each; empty where they can be used.

    Zeros, the results for other inputs, and the task's own wrong versions must fail on ordinary
    inputs, all with the seed as the yardstick; the seed itself must pass. `point` should be small.
    """
    family = reference.FAMILIES[:1]

    def failure(arm: Arm) -> str:
        (found,) = check_point(device, reference, arm, seed_arm, point, family, rng)
        return found.failure

    stale = _previous(device, reference, seed_arm, point, rng)
    wrong: dict[str, Make] = {
        "zeros": lambda params, inputs: _zeros(reference, params, inputs),
        "the previous output": lambda params, inputs: stale,
        **reference.WRONG,
    }
    passed = [name for name, make in wrong.items() if not failure(WrongArm(name, make))]
    lines = [f"{name} passed for a correct result on {point.name}" for name in passed]
    if why := failure(seed_arm):
        lines.append(f"the seed failed against itself on {point.name}: {why}")
    return lines


@dataclass(frozen=True, slots=True)
class WrongArm:
    """Writes whatever `make(params, inputs)` gives, converted to the types of the outputs."""

    name: str
    make: Make

    def bind(
        self, params: Params, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        def launch() -> None:
            for output, value in zip(outputs, self.make(params, inputs), strict=True):
                output.copy_(value)

        return launch


def _zeros(reference: Reference, params: Params, inputs: Sequence[Tensor]) -> list[Tensor]:
    import torch

    where = inputs[0].device
    return [torch.zeros(output.shape(params), device=where) for output in reference.OUTPUTS]


def _previous(
    device: Device, reference: Reference, seed_arm: Arm, point: Point, rng: random.Random
) -> tuple[Tensor, ...]:
    """The seed's results for inputs of the same family that nobody asks about."""
    where = device.torch_device
    params, drawn = reference.case(point.params, reference.FAMILIES[0], rng.getrandbits(62), where)
    outputs = Outputs([(o.shape(params), o.dtype) for o in reference.OUTPUTS], where)
    outputs.poison()
    seed_arm.bind(params, Inputs(drawn).tensors, outputs.tensors)()
    device.synchronize()
    return outputs.tensors
