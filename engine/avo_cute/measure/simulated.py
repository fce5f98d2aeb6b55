"""A device without a GPU: real work on CPU tensors, and time that is only counted.

For tests, and for developing on a machine without a GPU. Host and device have a clock each, as in
reality: a launch costs the host little and queues behind what the device still has to do.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..records import Param
from .device import Condition, DeviceFault, Mark, Tensor

HOST_S = 5e-6  # of the host, per call
EMPTY_S = 2e-6  # of the device, for an empty launch
BANDWIDTH = 4e12  # bytes per second, a read and a write counted apart

Function = Callable[[Mapping[str, Param], Sequence[Tensor], Sequence[Tensor]], None]


@dataclass(slots=True)
class SimulatedDevice:
    """A device with a seeded generator: the same calls take the same time.

    Its fields may be changed while it is used, to let something happen to it.
    """

    seed: int = 0
    noise: float = 0.002  # relative standard deviation of a launch's time
    drift: float = 0.0  # launches become slower by this share every second
    sm_mhz: float = 1700.0
    throttle: int = 0
    others: int = 0
    skew: float = 0.0  # relative error of the device's clock against the host's
    host: float = 0.0  # seconds on the host's clock
    busy: float = 0.0  # when the stream will have done everything launched so far
    aside: float = 0.0  # the same of a side stream
    fault: str = ""  # what the next synchronisation reports
    hangs: bool = False
    whose: str = ""  # turn it is
    _tail: float = 0.0  # work that the stream does behind the next mark
    _arm: SimulatedArm | None = None  # the last that was launched
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def torch_device(self) -> str:
        return "cpu"

    def synchronize(self) -> None:
        while self.hangs:
            time.sleep(0.1)
        self.host = max(self.host, self.busy, self.aside) + HOST_S
        if self.fault:
            raise DeviceFault(self.fault)

    def mark(self) -> Mark:
        self.host += HOST_S / 5
        self.busy = passed = max(self.busy, self.host)
        self.busy += self._tail
        self._tail = 0.0
        return passed

    def seconds(self, start: Mark, end: Mark) -> float:
        return float(end - start) * (1 + self.skew)

    def clock(self) -> float:
        return self.host

    def condition(self) -> Condition:
        self.host += 20 * HOST_S
        factor, throttle = (self._arm.clock, self._arm.throttle) if self._arm else (1.0, 0)
        mhz = self.sm_mhz * factor
        return Condition(mhz, 500.0, 50.0, self.throttle | throttle, self.others)

    def flush(self) -> None:
        self._spend(EMPTY_S)

    def rest(self, seconds: float) -> None:
        self.synchronize()
        self.host += seconds

    def spin(self, seconds: float) -> None:
        self._spend(seconds + EMPTY_S)

    def copier(self, size: int) -> Callable[[], None]:
        return lambda: self._spend(2 * size / BANDWIDTH)

    def turn(self, arm: str) -> None:
        self.whose = arm

    def launch(self, arm: SimulatedArm) -> None:
        """What a launch of `arm` does to time. Its function has already run."""
        self._arm = arm
        slow = (1 + self.drift * max(self.busy, self.host)) / arm.clock
        self._spend(arm.seconds * slow * max(0.1, 1 + self._random.gauss(0, self.noise)))
        self._tail = arm.tail
        self.aside = max(self.aside, self.busy) + arm.aside if arm.aside else self.aside
        self.fault = self.fault or arm.fault
        self.hangs = self.hangs or math.isinf(arm.seconds)

    def _spend(self, seconds: float) -> None:
        self.host += HOST_S
        self.busy = max(self.busy, self.host) + seconds


@dataclass(frozen=True, slots=True)
class SimulatedArm:
    """A contender whose launch runs `function(params, inputs, outputs)`, or nothing if None, and
    takes `seconds` of the device; infinite seconds never end.

    The rest are ways to be strange: `clock` is the device's clock while it runs, relative; `tail`
    is work that hides behind the mark after a launch, `aside` work on a side stream.
    """

    name: str
    function: Function | None
    seconds: float
    device: SimulatedDevice
    clock: float = 1.0
    throttle: int = 0
    tail: float = 0.0
    aside: float = 0.0
    fault: str = ""

    def bind(
        self, params: Mapping[str, Param], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        def launch() -> None:
            if self.function:
                self.function(params, inputs, outputs)
            self.device.launch(self)

        return launch
