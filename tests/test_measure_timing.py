"""Paired timing: what it measures, what it makes of noise, and what it refuses to count."""

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
import torch
from tests.timing_job import POINT, check_double, double, job_for, needs_gpu

from avo_cute.measure.contents import STRIDE, Contents, dense, poison
from avo_cute.measure.device import Condition, DeviceFault, Unavailable
from avo_cute.measure.simulated import SimulatedArm, SimulatedDevice
from avo_cute.measure.timing import BelowFloor, WrongResult, cold, sustained, timed, typical
from avo_cute.measure.voids import POWER_CAP, Visit, reason_names, void_reason

THERMAL = 0x20


def pair(device, ratio=1.0, seconds=1e-3, **candidate):
    """A candidate that takes `ratio` as long as the incumbent."""
    return [
        SimulatedArm("candidate", double, seconds * ratio, device, **candidate),
        SimulatedArm("incumbent", double, seconds, device),
    ]


def gain(samples):
    """Median log-ratio of the rounds that count."""
    times = zip(samples.times["incumbent"], samples.times["candidate"], samples.void, strict=True)
    return median(math.log(theirs / mine) for theirs, mine, void in times if not void)


# what is measured


def test_every_round_has_one_time_and_one_clock_per_arm():
    device = SimulatedDevice()
    samples = sustained(device, pair(device), POINT, job_for(rounds=12, process=99))
    assert (samples.workload, samples.role, samples.mode) == ("double", "public", "sustained")
    assert samples.process == 99
    assert {arm: len(t) for arm, t in samples.times.items()} == {"candidate": 12, "incumbent": 12}
    assert samples.void == ("",) * 12
    assert set(samples.clocks["candidate"]) == {1700.0}


@pytest.mark.parametrize("ratio", [0.98, 0.995, 1.0, 1.005, 1.02])
def test_a_difference_is_seen_as_what_it_is_through_noise(ratio):
    device = SimulatedDevice(noise=0.003)
    samples = sustained(device, pair(device, ratio), POINT, job_for(rounds=40))
    assert gain(samples) == pytest.approx(-math.log(ratio), abs=0.0015)


def test_drift_cancels_in_pairs():
    device = SimulatedDevice(noise=0.001, drift=0.2)
    samples = sustained(device, pair(device, 0.99), POINT, job_for(rounds=40))
    mine = samples.times["candidate"]
    assert mine[-1] / mine[0] > 1.05  # a block of one arm after the other would be off by percents
    assert gain(samples) == pytest.approx(-math.log(0.99), abs=0.001)


def test_a_clock_that_changes_for_both_is_no_reason_to_void():
    device = SimulatedDevice(noise=0)
    calls = Counter()

    def slower_later(params, inputs, outputs):
        double(params, inputs, outputs)
        calls["all"] += 1
        device.sm_mhz = 1700 - calls["all"] * 0.05

    arms = [replace(arm, function=slower_later) for arm in pair(device)]
    samples = sustained(device, arms, POINT, job_for())
    assert not any(samples.void)
    assert samples.clocks["candidate"][0] > samples.clocks["candidate"][-1]


def test_the_statistic_of_a_visit_is_the_median_of_its_launches():
    device = SimulatedDevice(noise=0)
    calls = Counter()

    class Straggler:
        name = "candidate"

        def bind(self, params, inputs, outputs):
            quick, slow = (SimulatedArm("candidate", double, s, device) for s in (1e-3, 9e-3))
            launches = [arm.bind(params, inputs, outputs) for arm in (quick, slow)]

            def launch():
                calls["all"] += 1
                launches[calls["all"] % 5 == 0]()

            return launch

    samples = sustained(device, [Straggler()], POINT, job_for(visit_s=0.02))
    assert samples.times["candidate"] == pytest.approx([1e-3] * 20, rel=0.01)


def test_arms_are_visited_in_random_order():
    device, order = SimulatedDevice(), []

    def noting(name):
        def run(params, inputs, outputs):
            double(params, inputs, outputs)
            order.append(name)

        return run

    arms = [SimulatedArm(n, noting(n), 1e-3, device) for n in ("candidate", "incumbent", "seed")]
    sustained(device, arms, POINT, job_for(rounds=30, warm_s=0.0, check=lambda *_: ""))
    visits = [n for n, before in zip(order, [None, *order], strict=False) if n != before]
    followers = Counter(pairwise(visits))
    assert len(followers) == 6  # every arm follows every other
    assert min(followers.values()) >= 3


def test_visits_have_random_lengths_and_are_as_long_as_asked():
    launches, lengths = Counter(), []

    class Noting(SimulatedDevice):
        def synchronize(self):
            super().synchronize()
            lengths.append(launches.pop("visit", 0))

    def counting(params, inputs, outputs):
        double(params, inputs, outputs)
        launches["visit"] += 1

    device = Noting(noise=0)
    arms = [SimulatedArm("candidate", counting, 1e-3, device)]
    sustained(device, arms, POINT, job_for(visit_s=0.02, rounds=30, warm_s=0.0))
    visits = [n for n in lengths[2:] if n]  # the first two find out how long a launch takes
    assert len(visits) == 30
    assert min(visits) >= 20 and len(set(visits)) > 1


def test_the_host_stays_ahead_of_short_launches():
    """Between its marks a launch of 3 us takes 3 us, though the host needs five for the call."""
    device = SimulatedDevice(noise=0)
    samples = sustained(device, pair(device, seconds=3e-6), POINT, job_for())
    assert samples.times["incumbent"] == pytest.approx([3e-6] * 20, abs=1e-7)
    assert not any(samples.void)


def test_the_device_is_kept_busy():
    device = SimulatedDevice()
    job = job_for(visit_s=0.02, rounds=40)
    sustained(device, pair(device), POINT, job)
    assert job.tally.busy_s / job.tally.timed_s > 0.9
    assert job.tally.busy_s > 40 * 2 * 0.02


@pytest.mark.parametrize("host_s", [1e-3, -4e-6])
def test_a_host_out_of_step_in_one_visit_is_ahead_again_afterwards(host_s):
    """Slow in one visit; or quick in one, so that the next is given too little lead."""
    visits = Counter()

    class Noting(SimulatedDevice):
        def flush(self):
            super().flush()
            visits["all"] += 1

    def uneven(params, inputs, outputs):
        double(params, inputs, outputs)
        if visits["all"] == 8:
            device.host += host_s

    device = Noting(noise=0)
    arms = [SimulatedArm("candidate", uneven, 3e-6, device)]
    times = sustained(device, arms, POINT, job_for(warm_s=0.0)).times["candidate"]
    assert max(times) > 4e-6
    assert times[-5:] == pytest.approx([3e-6] * 5, abs=1e-7)


def test_isolated_launches_find_the_device_at_rest_and_its_caches_flushed():
    events = []

    class Noting(SimulatedDevice):
        def flush(self):
            super().flush()
            events.append("flush")

        def rest(self, seconds):
            super().rest(seconds)
            events.append(seconds)

    def launch(params, inputs, outputs):
        double(params, inputs, outputs)
        events.append("launch")

    device = Noting(noise=0)
    arms = [replace(arm, function=launch) for arm in pair(device)]
    samples = cold(device, arms, POINT, job_for(cold=6))
    assert samples.mode == "cold"
    assert samples.times["candidate"] == pytest.approx([1e-3] * 6, rel=0.01)
    assert not any(samples.void)
    assert events[-36:] == ["flush", 1e-3, "launch"] * 12


def test_the_caches_are_flushed_at_the_start_of_a_visit():
    class Noting(SimulatedDevice):
        flushes = 0

        def flush(self):
            super().flush()
            Noting.flushes += 1

    device = Noting()
    sustained(device, pair(device), POINT, job_for(rounds=10, warm_s=0.0))
    assert Noting.flushes == 2 * 2 + 2 * 10  # two trials of each arm, and the visits


def test_both_modes_share_one_setup():
    device = SimulatedDevice()
    modes = timed(device, pair(device), POINT, job_for(rounds=5, cold=3))
    assert [(s.mode, len(s.void)) for s in modes] == [("sustained", 5), ("cold", 3)]
    assert timed(device, pair(device), POINT, job_for(rounds=0, cold=0)) == ()


# what launches read and write


def test_no_launch_reads_what_an_earlier_one_read_and_outputs_are_poisoned():
    device, seen = SimulatedDevice(), set()

    def noting(params, inputs, outputs):
        assert torch.isnan(outputs[0]).all()
        assert torch.isfinite(inputs[0]).all()
        seen.add(hash(inputs[0].numpy().tobytes()))
        double(params, inputs, outputs)
        calls["all"] += 1

    calls = Counter()
    arms = [SimulatedArm("candidate", noting, 1e-3, device)]
    sustained(device, arms, POINT, job_for(shape=(64, 256), rounds=10))
    assert len(seen) == calls["all"] > 50


def test_allocations_rotate_and_exceed_the_bytes_asked_for():
    device, addresses = SimulatedDevice(), []

    def noting(params, inputs, outputs):
        addresses.append((inputs[0].data_ptr(), outputs[0].data_ptr()))
        double(params, inputs, outputs)

    arms = [SimulatedArm("candidate", noting, 1e-3, device)]
    sustained(device, arms, POINT, job_for(rotate_bytes=5 * 32 * 64 * 4))
    assert len(set(addresses)) == 5
    assert all(a != b for a, b in pairwise(addresses))


def test_small_rotation_still_has_two_sets_and_a_huge_one_an_end():
    def made(rotate_bytes):
        job = job_for(shape=(1,))
        return Contents(job.make_inputs, job.make_outputs, rotate_bytes, job.rng).sets

    assert len(made(0)) == 2
    assert len(made(10**9)) == 256


def test_a_rewriting_is_sparse_and_hits_every_column():
    job = job_for(shape=(STRIDE, 64))
    contents = Contents(job.make_inputs, job.make_outputs, 0, job.rng)
    x = contents.sets[0].inputs[0]
    columns = set()
    for _ in range(20):
        before = x.clone()
        contents.refresh(0)
        changed = (x != before).nonzero()
        assert len(changed) == 64
        columns |= {int(c) for c in changed[:, 1]}
    assert columns == set(range(64))


@pytest.mark.parametrize("numel", [1, 7, 1020, 1021, 1022])
def test_small_inputs_are_rewritten_too(numel):
    job = job_for(shape=(numel,))
    contents = Contents(job.make_inputs, job.make_outputs, 0, job.rng)
    x = contents.sets[1].inputs[0]
    before = x.clone()
    contents.refresh(1)
    assert (x != before).sum() == 1


def test_dense_views_share_memory_and_gaps_are_refused():
    x = torch.zeros(2, 3, 4).transpose(0, 2)
    dense(x).fill_(1)
    assert x.sum() == 24
    with pytest.raises(ValueError, match="has gaps"):
        dense(torch.zeros(4, 4)[:, :2])


def test_poison_of_every_kind():
    assert math.isnan(poison(torch.bfloat16))
    assert poison(torch.int32) == -(2**31)
    assert poison(torch.bool) is False


def test_integer_inputs_stay_as_they_are():
    def make_inputs(seed):
        return {}, (torch.arange(5000), torch.zeros(5000))

    contents = Contents(make_inputs, tuple, 0, random.Random(1))
    contents.refresh(0)
    lengths, x = contents.sets[0].inputs
    assert torch.equal(lengths, torch.arange(5000))
    assert x.abs().sum() > 0


# results of timed launches are checked


def test_checks_are_at_least_a_tenth_and_the_others_are_checked_once():
    device, checked = SimulatedDevice(), Counter()

    def counting(arm, *rest):
        checked[arm] += 1
        return check_double(arm, *rest)

    job = job_for(rounds=40, check=counting)
    sustained(device, pair(device), POINT, job)
    assert 6 <= checked["candidate"] <= 8  # first, last and one of each ten
    assert checked["incumbent"] == 1
    assert job.tally.checks == sum(checked.values())


@pytest.mark.parametrize("mode", [sustained, cold])
def test_the_last_launches_are_checked(mode):
    """Wrong in the last visit only; which visits are checked by chance is known for this seed."""
    calls = Counter()

    def run(last):
        def tires(params, inputs, outputs):
            calls["all"] += 1
            if calls["all"] != last:
                double(params, inputs, outputs)

        calls.clear()
        device = SimulatedDevice()
        arms = [SimulatedArm("candidate", tires, 1e-3, device)]
        mode(device, arms, POINT, job_for(rounds=15, cold=15, warm_s=0.0))
        return calls["all"]

    total = run(0)
    with pytest.raises(WrongResult):
        run(total)


@pytest.mark.parametrize("mode", [sustained, cold])
def test_a_wrong_result_ends_the_timing(mode):
    device = SimulatedDevice()
    arms = [SimulatedArm("candidate", None, 1e-3, device), pair(device)[1]]
    with pytest.raises(WrongResult, match="candidate was wrong: not the double") as caught:
        mode(device, arms, POINT, job_for(cold=5))
    assert caught.value.arm == "candidate"


def test_a_kernel_that_stops_working_is_caught():
    """Right for the first hundred launches, nothing afterwards."""
    device, calls = SimulatedDevice(), Counter()

    def tires(params, inputs, outputs):
        calls["all"] += 1
        if calls["all"] <= 100:
            double(params, inputs, outputs)

    arms = [SimulatedArm("candidate", tires, 1e-3, device), pair(device)[1]]
    with pytest.raises(WrongResult):
        sustained(device, arms, POINT, job_for(rounds=30))


def test_a_replayed_result_is_caught():
    """The first result for each address, again and again."""
    device, kept = SimulatedDevice(), {}

    def replays(params, inputs, outputs):
        key = inputs[0].data_ptr()
        if key not in kept:
            kept[key] = inputs[0] * params["factor"]
        outputs[0].copy_(kept[key])

    arms = [SimulatedArm("candidate", replays, 1e-3, device)]
    with pytest.raises(WrongResult):
        sustained(device, arms, POINT, job_for())


def test_results_that_lie_elsewhere_are_collected_for_the_check():
    device = SimulatedDevice()

    class Library:
        name = "cudnn"

        def bind(self, params, inputs, outputs):
            inner = SimulatedArm(self.name, None, 1e-3, device).bind(params, inputs, outputs)

            class Launch:
                def __call__(self):
                    self.result = inputs[0] * params["factor"]
                    inner()

                def collect(self):
                    outputs[0].copy_(self.result)

            return Launch()

    samples = sustained(device, [Library()], POINT, job_for())
    assert len(samples.times["cudnn"]) == 20


# what ends a timing


@pytest.mark.parametrize("mode", [sustained, cold])
def test_below_the_floor_ends_the_timing(mode):
    device = SimulatedDevice()
    with pytest.raises(BelowFloor, match=r"candidate took .* the floor is 600\.00 us") as caught:
        mode(device, pair(device, 0.5), POINT, job_for(floor_s=600e-6, cold=5))
    assert caught.value.arm == "candidate"
    assert caught.value.seconds == pytest.approx(500e-6, rel=0.02)


def test_a_time_of_nothing_is_below_any_floor():
    device = SimulatedDevice(noise=0, skew=-1.0)
    with pytest.raises(BelowFloor):
        sustained(device, pair(device), POINT, job_for())
    device = SimulatedDevice(noise=0, skew=math.nan)
    with pytest.raises(BelowFloor):
        sustained(device, pair(device), POINT, job_for())


def test_a_fault_names_the_arm():
    device = SimulatedDevice()
    with pytest.raises(DeviceFault, match=r"^candidate: illegal address$") as caught:
        sustained(device, pair(device, fault="illegal address"), POINT, job_for())
    assert caught.value.arm == "candidate"


def test_a_runtime_error_of_a_launch_is_a_fault():
    def refuses(params, inputs, outputs):
        raise RuntimeError("CUDA error: invalid configuration\nmore")

    device = SimulatedDevice()
    arms = [SimulatedArm("candidate", refuses, 1e-3, device)]
    with pytest.raises(DeviceFault, match=r"^candidate: CUDA error: invalid configuration$"):
        sustained(device, arms, POINT, job_for())


def test_arms_that_cannot_run_are_left_out_by_name():
    device = SimulatedDevice()

    class Missing:
        name = "cudnn"

        def bind(self, params, inputs, outputs):
            raise Unavailable("cudnn: no kernel for this head dim")

    job = job_for()
    samples = sustained(device, [*pair(device), Missing()], POINT, job)
    assert set(samples.times) == {"candidate", "incumbent"}
    assert job.tally.unavailable == {"cudnn": "cudnn: no kernel for this head dim"}


# rounds that do not count


def voids(device, arms, **job):
    samples = sustained(device, arms, POINT, job_for(**job))
    return samples.void


def test_work_hidden_behind_the_mark_voids():
    device = SimulatedDevice()
    void = voids(device, pair(device, 0.9, tail=1e-4))
    assert len(void) == 30 and all("between launches of candidate" in v for v in void)


def test_work_on_a_side_stream_voids():
    device = SimulatedDevice()
    void = voids(device, pair(device, 0.5, aside=1e-3), visit_s=0.02)
    assert all("two clocks disagree for candidate" in v for v in void)


def test_a_device_clock_that_runs_slow_voids():
    device = SimulatedDevice(skew=-0.03)
    assert all("two clocks disagree" in v for v in voids(device, pair(device), visit_s=0.02))


def test_throttling_in_one_arm_only_voids():
    device = SimulatedDevice()
    void = voids(device, pair(device, throttle=THERMAL))
    assert all(v == "throttled in one arm only: candidate (thermal slowdown)" for v in void)
    device = SimulatedDevice(throttle=THERMAL)
    assert not any(voids(device, pair(device)))


def test_clocks_apart_void():
    device = SimulatedDevice()
    void = voids(device, pair(device, clock=0.97))
    assert all("SM clocks apart: " in v and "candidate 1649 MHz" in v for v in void)
    assert not any(voids(device, pair(device, clock=0.99)))


def test_another_process_voids():
    device = SimulatedDevice(others=2)
    assert set(voids(device, pair(device))) == {"2 other processes on the device"}


def test_baselines_may_have_their_own_clock():
    device = SimulatedDevice()
    slow = SimulatedArm("fa2", double, 2e-3, device, clock=1.1, throttle=THERMAL)
    assert not any(voids(device, [*pair(device), slow]))


def test_void_rounds_are_replaced_up_to_a_limit():
    device, calls = SimulatedDevice(), Counter()

    def disturbed(params, inputs, outputs):
        double(params, inputs, outputs)
        calls["all"] += 1
        device.others = int(50 < calls["all"] < 75)

    arms = [SimulatedArm("candidate", disturbed, 1e-3, device), pair(device)[1]]
    samples = sustained(device, arms, POINT, job_for())
    void = [v for v in samples.void if v]
    assert void and len(samples.void) == 20 + len(void) < 30
    assert typical(samples, "candidate") == pytest.approx(1e-3, rel=0.01)


def test_typical_is_nothing_where_nothing_counts():
    device = SimulatedDevice(others=1)
    samples = sustained(device, pair(device), POINT, job_for())
    assert math.isnan(typical(samples, "candidate"))


def visit(arm, mhz=1700.0, throttle=0, between=1e-5, span=0.02, host=0.02):
    condition = Condition(mhz, 600.0, 50.0, throttle, 0)
    return Visit(arm, 1e-3, between, span, host, 20, (condition, condition))


def reason(**candidate):
    arms = {"candidate": visit("candidate", **candidate), "incumbent": visit("incumbent")}
    return void_reason(arms)


def test_the_rules_at_their_edges():
    assert reason() == ""
    assert reason(host=0.02 * 1.019) == ""
    assert "two clocks" in reason(host=0.02 * 1.022)
    assert "two clocks" in reason(host=0.02 * 0.978)
    assert "two clocks" in reason(host=math.nan)
    assert reason(between=34e-6) == ""
    assert "between launches" in reason(between=36e-6)
    assert reason(between=math.nan) == ""
    assert reason(mhz=1700 * 1.0199) == ""
    assert "apart" in reason(mhz=1700 * 1.021)
    assert reason(mhz=math.nan) == ""
    assert reason(throttle=0x1) == ""


def test_a_power_cap_in_one_arm_counts_where_the_clock_shows_it():
    assert reason(throttle=POWER_CAP, mhz=1690) == ""
    assert "candidate (power cap)" in reason(throttle=POWER_CAP, mhz=1675)


def test_isolated_rounds_are_not_compared_but_must_be_alone():
    arms = {"candidate": visit("candidate", mhz=1300), "incumbent": visit("incumbent")}
    assert void_reason(arms, isolated=True) == ""
    alone = replace(arms["candidate"], conditions=(Condition(1700, 600, 50, 0, 1),))
    assert "other processes" in void_reason({"candidate": alone}, isolated=True)


def test_reasons_have_names():
    assert reason_names(0x24) == "power cap, thermal slowdown"
    assert reason_names(0x400) == "0x400"
    assert reason_names(0) == ""


# the same on a GPU

SIZE = 4096  # a product of bf16 matrices: 137 GFLOP, some 200 us


class Product:
    """A matrix product as an arm, `times` times."""

    def __init__(self, name, times=1):
        self.name, self.times = name, times

    def bind(self, params, inputs, outputs):
        (a, b), (out,), times = inputs, outputs, self.times

        def launch():
            for _ in range(times):
                torch.mm(a, b, out=out)

        return launch


class Zeros(Product):
    def bind(self, params, inputs, outputs):
        return outputs[0].zero_


def product_job(**kwargs):
    def make_inputs(seed):
        generator = torch.Generator("cuda").manual_seed(seed)
        shape, place = (2, SIZE, SIZE), {"device": "cuda", "dtype": torch.bfloat16}
        return {}, tuple(torch.randn(shape, generator=generator, **place).unbind())

    def make_outputs():
        return (torch.empty(SIZE, SIZE, device="cuda", dtype=torch.bfloat16),)

    def check(arm, params, inputs, outputs):
        expected = inputs[0][:64].double() @ inputs[1].double()
        off = (outputs[0][:64].double() - expected).norm() / expected.norm()
        return "" if off < 1e-2 else f"relative error {off:.3g}"

    job = job_for(**{"visit_s": 0.02, "warm_s": 1.0, **kwargs})
    return replace(
        job, make_inputs=make_inputs, make_outputs=make_outputs, check=check, rotate_bytes=10**8
    )


@pytest.fixture(scope="module")
def cuda():
    from avo_cute.measure.cuda import CudaDevice

    return CudaDevice()


@pytest.mark.gpu
@needs_gpu
def test_gpu_a_kernel_equals_itself_and_the_device_is_busy(cuda):
    job = product_job(rounds=40, floor_s=1e-6)
    samples = sustained(cuda, [Product("candidate"), Product("incumbent")], POINT, job)
    assert samples.void.count("") >= 35, Counter(samples.void)
    assert gain(samples) == pytest.approx(0, abs=0.003)
    assert job.tally.busy_s / job.tally.timed_s > 0.6


@pytest.mark.gpu
@needs_gpu
def test_gpu_twice_the_work_takes_twice_the_time(cuda):
    arms = [Product("candidate", 2), Product("incumbent")]
    samples = sustained(cuda, arms, POINT, product_job(rounds=10))
    ratio = typical(samples, "candidate") / typical(samples, "incumbent")
    assert 1.8 < ratio < 2.1


@pytest.mark.gpu
@needs_gpu
def test_gpu_isolated_launches(cuda):
    arms = [Product("candidate"), Product("incumbent")]
    samples = cold(cuda, arms, POINT, product_job(cold=20))
    assert samples.void.count("") >= 15, Counter(samples.void)
    assert gain(samples) == pytest.approx(0, abs=0.05)


@pytest.mark.gpu
@needs_gpu
def test_gpu_wrong_results_and_impossible_times(cuda):
    with pytest.raises(WrongResult, match="relative error"):
        sustained(cuda, [Zeros("candidate"), Product("incumbent")], POINT, product_job())
    with pytest.raises(BelowFloor):
        sustained(cuda, [Product("candidate")], POINT, product_job(floor_s=1.0))
