"""Devices: the simulated one keeps time as a real one does; CUDA and NVML where there are any."""

import math
import threading

import pytest
import torch
from tests.timing_job import needs_gpu

from avo_cute.measure.device import DeviceFault, device_faults, one_line
from avo_cute.measure.nvml import Nvml
from avo_cute.measure.simulated import HOST_S, SimulatedArm, SimulatedDevice


def launch_of(arm):
    return arm.bind({}, (), ())


def test_launches_queue_behind_each_other_while_the_host_runs_ahead():
    device = SimulatedDevice(noise=0)
    launch = launch_of(SimulatedArm("a", None, 1e-3, device))
    start = device.mark()
    for _ in range(10):
        launch()
    end = device.mark()
    assert device.clock() < 1e-4  # the host has only launched
    device.synchronize()
    assert device.seconds(start, end) == pytest.approx(10e-3, rel=0.01)
    assert device.clock() == pytest.approx(10e-3, rel=0.01)


def test_a_device_that_waits_for_the_host_is_idle_in_between():
    device = SimulatedDevice(noise=0)
    launch = launch_of(SimulatedArm("a", None, 1e-6, device))
    start = device.mark()
    for _ in range(10):
        launch()
    assert device.seconds(start, device.mark()) > 9 * HOST_S


def test_the_same_seed_gives_the_same_times_and_another_does_not():
    def times(seed):
        device = SimulatedDevice(seed=seed)
        launch = launch_of(SimulatedArm("a", None, 1e-3, device))
        marks = [device.mark()]
        for _ in range(5):
            launch()
            marks.append(device.mark())
        return marks

    assert times(1) == times(1) != times(2)


def test_a_tail_hides_behind_one_mark_and_a_side_stream_behind_all():
    device = SimulatedDevice(noise=0)
    start = device.mark()
    launch_of(SimulatedArm("a", None, 1e-3, device, tail=2e-3))()
    first, second = device.mark(), device.mark()
    assert device.seconds(start, first) == pytest.approx(1e-3, rel=0.02)
    assert device.seconds(first, second) == pytest.approx(2e-3, rel=0.02)
    launch_of(SimulatedArm("b", None, 1e-3, device, aside=5e-3))()
    third = device.mark()
    assert device.seconds(second, third) == pytest.approx(1e-3, rel=0.02)
    device.synchronize()
    assert device.clock() > third + 4e-3


def test_a_failed_launch_surfaces_at_the_synchronisation():
    device = SimulatedDevice()
    launch_of(SimulatedArm("a", None, 1e-3, device, fault="illegal address"))()
    with pytest.raises(DeviceFault, match=r"^illegal address$"):
        device.synchronize()


def test_an_endless_launch_never_lets_the_host_go_on():
    device = SimulatedDevice()
    launch_of(SimulatedArm("a", None, math.inf, device))()
    waiting = threading.Thread(target=device.synchronize, daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    device.hangs = False
    waiting.join(5)
    assert not waiting.is_alive()


def test_faults_are_one_line_and_name_the_arm_once():
    with pytest.raises(DeviceFault) as caught, device_faults("candidate"):
        raise RuntimeError("CUDA error: an illegal memory access\nCompile with …\n")
    assert str(caught.value) == "candidate: CUDA error: an illegal memory access"
    assert caught.value.arm == "candidate"
    with pytest.raises(DeviceFault) as caught, device_faults("candidate"):
        raise DeviceFault("candidate: the launch failed")
    assert str(caught.value) == "candidate: the launch failed"
    with pytest.raises(ZeroDivisionError), device_faults():
        _ = 1 / 0
    with pytest.raises(torch.OutOfMemoryError), device_faults("candidate"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert one_line(RuntimeError()) == "RuntimeError"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver here")
def test_without_a_driver_every_reading_is_nothing():
    condition = Nvml("no-such-device").condition()
    assert math.isnan(condition.sm_mhz) and math.isnan(condition.power_w)
    assert (condition.throttle, condition.others) == (0, 0)


@pytest.fixture(scope="module")
def cuda():
    from avo_cute.measure.cuda import CudaDevice

    return CudaDevice()


@pytest.mark.gpu
@needs_gpu
def test_cuda_marks_agree_with_the_host(cuda):
    cuda.spin(0.001)
    cuda.synchronize()
    began, start = cuda.clock(), cuda.mark()
    cuda.spin(0.02)
    end = cuda.mark()
    assert cuda.clock() - began < 0.01  # nothing has been waited for
    cuda.synchronize()
    assert cuda.clock() - began == pytest.approx(cuda.seconds(start, end), rel=0.02, abs=50e-6)


@pytest.mark.gpu
@needs_gpu
def test_cuda_waits_as_long_as_it_is_told(cuda):
    for _ in range(3):  # the clock rises
        cuda.spin(0.05)
        cuda.condition()
        cuda.synchronize()
    start = cuda.mark()
    cuda.spin(0.005)
    end = cuda.mark()
    cuda.condition()
    cuda.synchronize()
    assert cuda.seconds(start, end) == pytest.approx(0.005, rel=0.1)
    assert cuda.measured_hz() == pytest.approx(cuda.condition().sm_mhz * 1e6, rel=0.1)


@pytest.mark.gpu
@needs_gpu
def test_cuda_condition_is_plausible_and_quick(cuda):
    cuda.spin(0.1)
    condition = cuda.condition()
    assert 200 < condition.sm_mhz < 4000
    assert 5 < condition.power_w < 2000
    assert 5 < condition.temperature_c < 110
    assert condition.others >= 0
    began = cuda.clock()
    for _ in range(20):
        cuda.condition()
    assert (cuda.clock() - began) / 20 < 5e-3
    cuda.synchronize()


@pytest.mark.gpu
@needs_gpu
def test_cuda_flush_and_copies_take_their_time(cuda):
    copy = cuda.copier(64 * 1024 * 1024)
    copy()
    cuda.flush()
    cuda.synchronize()
    cuda.spin(0.001)
    marks = [cuda.mark()]
    for work in (cuda.flush, copy):
        work()
        marks.append(cuda.mark())
    cuda.synchronize()
    assert cuda.seconds(marks[0], marks[1]) > 2 * cuda.l2_bytes / 12e12
    assert cuda.seconds(marks[1], marks[2]) > 128 * 1024 * 1024 / 12e12
    cuda.rest(0.001)
