"""Baselines: a task's libraries as arms, refused by name where they cannot run."""

import pytest
import torch
from tests.timing_job import needs_gpu

from avo_cute.measure.baselines import TaskBaseline, task_baselines
from avo_cute.measure.device import Unavailable
from avo_cute.task import find_task

FA4 = find_task("fa4")
OURS = """
NAMES = ("ours", "broken")

def bind(name, params, inputs):
    if name == "broken":
        raise RuntimeError("no kernel\\nfor this")
    return lambda: (inputs[0] * params["factor"],)
"""


def attention(causal, heads=4, kv_heads=4, lengths=(96, 96), device="cpu", **params):
    generator = torch.Generator().manual_seed(3)
    queries, keys = lengths
    q, k, v = (
        torch.randn(2, s, h, 64, generator=generator).to(device, torch.bfloat16)
        for s, h in ((queries, heads), (keys, kv_heads), (keys, kv_heads))
    )
    outputs = (torch.full_like(q, torch.nan), torch.full((2, heads, queries), torch.nan))
    return {"causal": causal, **params}, (q, k, v), outputs


def relative_error(params, inputs, out):
    expected, _ = FA4.reference.reference(*inputs, params["causal"], params.get("scale"))
    return float((out.double() - expected).norm() / expected.norm())


def arm(name):
    return next(a for a in task_baselines(FA4.directory, FA4.baselines.NAMES) if a.name == name)


def test_a_task_says_which_baselines_it_has():
    assert [a.name for a in task_baselines(FA4.directory, ("fa2", "cudnn", "other"))] == [
        "fa2",
        "cudnn",
    ]
    assert task_baselines(FA4.directory, ()) == ()
    softmax = find_task("softmax")
    assert softmax.baselines is None
    assert task_baselines(softmax.directory, ("cudnn",)) == ()


def test_a_launch_leaves_the_outputs_alone_until_it_collects(tmp_path):
    (tmp_path / "baselines.py").write_text(OURS)
    (ours,) = task_baselines(tmp_path, ("ours",))
    x, out, further = torch.ones(4), torch.zeros(4), torch.zeros(4)
    launch = ours.bind({"factor": 3.0}, (x,), (out, further))
    x.fill_(2.0)
    launch()
    assert out.sum() == 0
    launch.collect()
    assert torch.equal(out, torch.full((4,), 6.0)) and further.sum() == 0


def test_a_library_that_cannot_is_unavailable_in_one_line(tmp_path):
    (tmp_path / "baselines.py").write_text(OURS)
    (broken,) = task_baselines(tmp_path, ("broken",))
    with pytest.raises(Unavailable, match=r"^broken: no kernel$"):
        broken.bind({}, (), ())


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("causal", [True, False])
def test_fa2_does_the_same_work(causal, kv_heads, scale):
    extra = {} if scale is None else {"scale": scale}
    params, inputs, outputs = attention(causal, kv_heads=kv_heads, **extra)
    launch = arm("fa2").bind(params, inputs, outputs)
    launch()
    launch.collect()
    assert relative_error(params, inputs, outputs[0]) < 5e-3
    assert torch.isnan(outputs[1]).all()  # no log-sum-exp


@pytest.mark.parametrize("name", ["cudnn", "fa2"])
def test_a_causal_mask_of_unequal_lengths_has_no_baseline(name):
    with pytest.raises(Unavailable, match="top left"):
        arm(name).bind(*attention(True, lengths=(64, 96)))


@pytest.mark.skipif(torch.cuda.is_available(), reason="cuDNN may run here")
def test_cudnn_never_falls_back_to_something_else():
    with pytest.raises(Unavailable, match=r"^cudnn: "):
        arm("cudnn").bind(*attention(False))


def test_the_reason_holds_what_torch_warns_of(tmp_path):
    module = type("module", (), {"NAMES": ("x",), "bind": staticmethod(warn_and_refuse)})
    with pytest.raises(Unavailable, match=r"^x: no kernel; head dim 7 is odd$"):
        TaskBaseline("x", module).bind({}, (), ())


def warn_and_refuse(name, params, inputs):
    import warnings

    warnings.warn("head dim\n7 is odd", stacklevel=1)
    raise RuntimeError("no kernel")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", ["cudnn", "fa2"])
@pytest.mark.parametrize("kv_heads", [8, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_gpu_baselines_do_the_same_work(name, causal, kv_heads):
    params, inputs, outputs = attention(
        causal, heads=8, kv_heads=kv_heads, lengths=(1024, 1024), device="cuda"
    )
    launch = arm(name).bind(params, inputs, outputs)
    launch()
    launch.collect()
    torch.cuda.synchronize()
    assert relative_error(params, inputs, outputs[0]) < 1e-2
