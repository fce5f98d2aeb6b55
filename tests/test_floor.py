"""The physical floor, worked out by hand for known shapes; what was measured clears it."""

from types import ModuleType

import pytest

from avo_cute.measure.floor import exp_rate, floor, share
from avo_cute.target import PEAKS, TARGETS, find_target
from avo_cute.task import find_task

FA4, SOFTMAX = find_task("fa4"), find_task("softmax")
H200, B200 = find_target("h200"), find_target("b200")


def params(task, name):
    return next(w.params for w in task.workloads if w.name == name)


def test_attention_is_bound_by_the_tensor_cores():
    bound = floor(FA4.reference, params(FA4, "mha-full-16k"), H200, multiplies=True)
    # 4·2·16·16384²·128 FLOP over 132 SMs x 4096 FLOP x 1.98 GHz = 1.0705 PFLOPS
    assert bound.tensor == pytest.approx(4 * 2 * 16 * 16384**2 * 128 / 1.070530e15, rel=1e-6)
    assert bound.seconds == bound.impossible == bound.tensor
    assert bound.bound == "tensor"


def test_a_causal_mask_halves_it():
    full, causal = (
        floor(FA4.reference, params(FA4, f"mha-{mask}-8k"), B200, multiplies=True)
        for mask in ("full", "causal")
    )
    assert causal.tensor == pytest.approx(full.tensor / 2)
    assert causal.exponentials == pytest.approx(full.exponentials / 2)
    assert causal.memory == full.memory


def test_softmax_is_bound_by_memory_and_one_launch_may_leave_l2_full():
    bound = floor(SOFTMAX.reference, params(SOFTMAX, "softmax-4k"), H200, multiplies=False)
    assert bound.tensor == 0
    assert bound.memory == pytest.approx(2**27 / 4.8e12)
    assert bound.bound == "memory"
    assert bound.impossible == pytest.approx((2**27 - 60 * 2**20) / 4.8e12)
    assert bound.impossible < bound.seconds


def test_polynomials_beside_mufu_keep_exponentials_from_deciding():
    """MUFU alone would bind attention of head dimension 64 on a B200; FA4 beats that bound."""
    small = {**params(FA4, "mha-full-8k"), "head_dim": 64}
    bound = floor(FA4.reference, small, B200, multiplies=True)
    mufu_alone = bound.exponentials * exp_rate(PEAKS["b200"]) / PEAKS["b200"].mufu
    assert mufu_alone > bound.tensor > bound.exponentials
    assert bound.bound == "tensor"


def test_a_task_without_exponentials_has_no_such_term():
    plain = ModuleType("reference")
    plain.flops, plain.bytes = (lambda p: 1e12), (lambda p: 1e6)
    assert floor(plain, {}, H200, multiplies=True).exponentials == 0


@pytest.mark.parametrize(
    ("workload", "tflops"),
    [("mha-full-4k", 666), ("mha-causal-4k", 606), ("mha-full-16k", 668), ("mha-causal-16k", 613)],
)
def test_what_was_measured_on_an_h200_clears_the_floor(workload, tflops):
    shape = params(FA4, workload)
    seconds = FA4.reference.flops(shape) / (tflops * 1e12)
    bound = floor(FA4.reference, shape, H200, multiplies=True)
    assert seconds > bound.impossible
    assert share(bound, seconds) == pytest.approx(tflops / 1070.53, rel=1e-4)


def test_the_best_published_time_on_a_b200_clears_the_floor():
    shape = params(FA4, "mha-full-32k")
    bound = floor(FA4.reference, shape, B200, multiplies=True)
    assert FA4.reference.flops(shape) / 1668e12 > bound.impossible
    assert 0.6 < share(bound, FA4.reference.flops(shape) / 1668e12) < 0.8


@pytest.mark.parametrize("name", TARGETS)
def test_every_workload_of_every_task_has_a_floor(name):
    for task, multiplies in ((FA4, True), (SOFTMAX, False)):
        for workload in task.workloads:
            bound = floor(task.reference, workload.params, TARGETS[name], multiplies=multiplies)
            assert 0 < bound.impossible <= bound.seconds < 1
