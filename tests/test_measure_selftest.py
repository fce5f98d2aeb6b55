"""The self-test of a session passes on a machine in order, and names what is not."""

import math
import random
from dataclasses import replace

import pytest
import torch
from tests.timing_job import POINT, double, job_for, needs_gpu

from avo_cute.measure.selftest import (
    COPY_SHARE,
    DELAY,
    Delayed,
    delayed,
    median_interval,
    selftest,
)
from avo_cute.measure.simulated import BANDWIDTH, EMPTY_S, SimulatedArm, SimulatedDevice
from avo_cute.measure.timing import sustained, typical


def run(device, *, function=double, peak=BANDWIDTH, wrong=None, **job):
    arm = SimulatedArm("seed", function, 1e-3, device)
    return selftest(device, arm, POINT, job_for(**job), peak, wrong)


def test_a_machine_in_order_passes():
    found = run(SimulatedDevice(noise=0.002))
    assert found.failed == ()
    assert found.empty_s == pytest.approx(EMPTY_S, rel=0.01)
    assert found.copy_bytes_s == pytest.approx(BANDWIDTH, rel=0.01)
    assert found.same_low <= 0 <= found.same_high
    assert abs(found.same) < 0.001
    assert found.delay == pytest.approx(DELAY, abs=0.002)
    assert found.void == 0


def test_a_clock_that_does_not_count_seconds_fails():
    found = run(SimulatedDevice(skew=9.0))
    assert any("an empty launch takes 20.00 us" in line for line in found.failed)
    assert any("a copy moves 0.40 TB/s" in line for line in found.failed)
    assert any("24 of 36" in line or "36 of 36 rounds void" in line for line in found.failed)


@pytest.mark.parametrize("share", [COPY_SHARE[0] * 0.9, COPY_SHARE[1] * 1.1])
def test_a_bandwidth_out_of_bounds_fails(share):
    found = run(SimulatedDevice(), peak=BANDWIDTH / share)
    assert len(found.failed) == 1 and "a copy moves 4.00 TB/s" in found.failed[0]


def test_a_machine_that_prefers_one_side_fails():
    class Partial(SimulatedDevice):
        """Slows every other bound arm: the side that is bound last."""

        bound = 0

        def launch(self, arm):
            super().launch(arm)
            if self.side == "incumbent":
                self._spend(1e-5)

    device = Partial(noise=0.001)

    class Seed:
        name = "seed"
        count = 0

        def bind(self, params, inputs, outputs):
            Seed.count += 1
            side = "candidate" if (Seed.count - 1) // 2 % 2 == 0 else "incumbent"  # two sets each
            launch = SimulatedArm("seed", double, 1e-3, device).bind(params, inputs, outputs)

            def sided():
                Partial.side = side
                launch()

            return sided

    found = selftest(device, Seed(), POINT, job_for(), BANDWIDTH)
    assert any(line.startswith("the seed differs from itself") for line in found.failed)


def test_a_delay_that_is_not_seen_fails():
    class Blind(SimulatedDevice):
        def spin(self, seconds):
            super().spin(min(seconds, 1e-6) if seconds < 50e-6 else seconds)

    found = run(Blind())
    assert any(line.startswith("a delay of 2.0% took 0.") for line in found.failed)


def test_a_delay_that_takes_longer_than_asked_for_is_seen_as_what_it_took():
    """The waiting kernel counts cycles, and the clock under load is lower than before."""

    class Slower(SimulatedDevice):
        def spin(self, seconds):
            super().spin(seconds * 1.3)

    found = run(Slower())
    assert found.failed == () and found.delay == pytest.approx(1.3 * DELAY, abs=0.003)


def test_a_check_that_passes_anything_fails():
    found = run(SimulatedDevice(), check=lambda *_: "")
    assert found.failed == ("a wrong kernel passes",)


def test_the_wrong_kernel_may_be_another_sides_business():
    assert run(SimulatedDevice(), check=lambda *_: "", wrong=lambda: "1.9 times").failed == ()
    assert run(SimulatedDevice(), wrong=lambda: "").failed == ("a wrong kernel passes",)


def test_a_seed_that_is_wrong_is_said_to_be():
    found = run(SimulatedDevice(), function=None)
    assert any("the seed: a timed launch of candidate was wrong" in x for x in found.failed)
    assert math.isnan(found.same) and math.isnan(found.delay)


def test_a_delay_is_put_behind_one_arm_and_an_empty_launch_behind_the_others():
    device = SimulatedDevice(noise=0)
    arms = [SimulatedArm(n, double, 1e-3, device) for n in ("candidate", "incumbent", "seed")]
    samples = sustained(device, delayed(device, arms, "candidate", 5e-6), POINT, job_for(rounds=3))
    plain = typical(samples, "incumbent")
    assert plain == pytest.approx(1e-3 + EMPTY_S, rel=1e-4)
    assert typical(samples, "seed") == pytest.approx(plain, rel=1e-6)
    assert typical(samples, "candidate") - plain == pytest.approx(5e-6, rel=0.01)


def test_no_delay_adds_no_launch():
    device = SimulatedDevice(noise=0)
    arm = Delayed(SimulatedArm("seed", double, 1e-3, device), device, None, "candidate")
    assert typical(sustained(device, [arm], POINT, job_for()), "candidate") == pytest.approx(
        1e-3, rel=1e-6
    )


def test_the_interval_of_a_median_covers_it_as_often_as_it_says():
    rng, missed = random.Random(5), 0
    for _ in range(4000):
        low, high = median_interval([rng.expovariate(1) for _ in range(24)], doubt=0.1)
        missed += not low <= math.log(2) <= high
    assert 0.03 < missed / 4000 <= 0.1  # conservative: ranks are whole numbers


def test_the_interval_of_few_values_is_their_range():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert median_interval([1.0]) == (1.0, 1.0)
    assert all(math.isnan(x) for x in median_interval([]))


@pytest.mark.gpu
@needs_gpu
def test_gpu_selftest_passes():
    from tests.test_measure_timing import Product, product_job

    from avo_cute.measure.cuda import CudaDevice

    device = CudaDevice()
    job = replace(product_job(), floor_s=0.0)
    tries = [selftest(device, Product("seed", 8), POINT, job, torch_bandwidth()) for _ in range(3)]
    assert any(found.failed == () for found in tries), tries


def torch_bandwidth():
    """Bytes a second of this device's memory: from its clock and the width of its bus."""
    properties = torch.cuda.get_device_properties(0)
    kilohertz = getattr(properties, "memory_clock_rate", 0)
    bits = getattr(properties, "memory_bus_width", 0)
    return 2 * kilohertz * 1e3 * bits / 8 or 4.8e12
