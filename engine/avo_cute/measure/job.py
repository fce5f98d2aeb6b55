"""What one workload's timing is asked, what it adds up, and how it can end early."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..records import Param
from .contents import MakeInputs, MakeOutputs
from .device import Tensor
from .request import Effort

Check = Callable[[str, Mapping[str, Param], Sequence[Tensor], Sequence[Tensor]], str]


@dataclass(slots=True)
class Tally:
    """What timing used, summed over workloads: of `timed_s` on the host's clock (checks left out)
    the device worked `busy_s`. `unavailable` has the arms that could not be bound, with reasons;
    `checks` counts the checks of timed launches."""

    busy_s: float = 0.0
    timed_s: float = 0.0
    checks: int = 0
    unavailable: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    """How one workload is timed.

    `make_inputs(seed)` gives the scalars and the input tensors of one set, on the device; it is
    called twice or more. `check(arm, params, inputs, outputs)` says what is wrong, or "". Baselines
    fill only the outputs they have: the others are still NaN. `rotate_bytes` is how much memory
    the inputs take in turn (twice the L2 cache); `process` names the process in `Samples`.
    """

    effort: Effort
    rng: random.Random
    make_inputs: MakeInputs
    make_outputs: MakeOutputs
    check: Check
    floor_s: float = 0.0
    rotate_bytes: int = 0
    process: int = 0
    tally: Tally = field(default_factory=Tally)


class WrongResult(Exception):
    """A timed launch left what `check` refuses. `arm` and `text` say which and why."""

    def __init__(self, arm: str, text: str) -> None:
        super().__init__(f"a timed launch of {arm} was wrong: {text}")
        self.arm, self.text = arm, text


class BelowFloor(Exception):
    """A launch took less time than the device needs for the work."""

    def __init__(self, arm: str, seconds: float, floor_s: float) -> None:
        super().__init__(f"{arm} took {seconds * 1e6:.2f} us, the floor is {floor_s * 1e6:.2f} us")
        self.arm, self.seconds, self.floor_s = arm, seconds, floor_s
