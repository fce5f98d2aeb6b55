"""What the judge of correctness asks of every shipped task's reference.py, and gets."""

import math
import random

import pytest
import torch
from tests.attention_arms import Flash

from avo_cute.measure.correctness import check_point, check_properties
from avo_cute.measure.oracle import Reference
from avo_cute.measure.request import Point
from avo_cute.measure.wrong import WrongArm, self_test
from avo_cute.target import TARGETS
from avo_cute.task import find_task

FA4, SOFTMAX = find_task("fa4"), find_task("softmax")


def attention(sq, sk, heads=2, kv_heads=2, causal=False, batch=2, head_dim=64):
    names = "batch", "seqlen_q", "seqlen_k", "heads", "kv_heads", "head_dim", "causal"
    return dict(zip(names, (batch, sq, sk, heads, kv_heads, head_dim, causal), strict=True))


SMALL = {
    "fa4": [attention(70, 45, 6, 2, True), attention(33, 201), attention(50, 50, 4, 1, True)],
    "softmax": [{"rows": 37, "cols": 1000}],
}
CASES = [(task, params) for task in (FA4, SOFTMAX) for params in SMALL[task.name]]
TASKS = pytest.mark.parametrize("task", [FA4, SOFTMAX], ids=lambda task: task.name)
EACH = pytest.mark.parametrize(("task", "params"), CASES, ids=str)


class Here:
    torch_device = "cpu"

    def synchronize(self):
        pass

    def turn(self, arm):
        pass


@TASKS
def test_everything_the_judge_asks_for_is_there(task):
    asked = set(Reference.__annotations__) | {n for n in vars(Reference) if not n.startswith("_")}
    assert {"case", "OUTPUTS", "WRONG"} < asked
    assert asked <= set(vars(task.reference))
    assert set(task.reference.FEW) < set(task.reference.FAMILIES)
    assert len(task.reference.FORMS) == 2


@EACH
def test_inputs_and_outputs_are_the_tensors_of_a_call(task, params):
    target = {"family": "sm90"}
    tensors = [a[1:] for a in task.build.arguments(params, target) if a[0] == "tensor"]
    for family in task.reference.FAMILIES:
        _, drawn = task.reference.case(params, family, 1, "cpu")
        mine = [(tuple(x.shape), str(x.dtype).removeprefix("torch.")) for x in drawn]
        mine += [(o.shape(params), o.dtype) for o in task.reference.OUTPUTS]
        assert mine == tensors
        assert len(drawn) == len(task.reference.INPUTS)


@EACH
def test_every_family_is_finite_repeatable_and_aligned(task, params):
    for family in task.reference.FAMILIES:
        one, again, other = (task.reference.case(params, family, n, "cpu") for n in (5, 5, 6))
        assert one[0] == again[0]
        assert all(map(torch.equal, one[1], again[1]))
        if family not in ("equal", "zeros"):
            assert not all(map(torch.equal, one[1], other[1])), family
        for x in one[1]:
            assert x.dtype == torch.bfloat16 and not x.isnan().any() and not (x == math.inf).any()
            assert x.stride(-1) == 1
            assert all(s % 8 == 0 for s in x.stride()[:-1])  # 16 bytes
    with pytest.raises(ValueError, match="choose one of normal"):
        task.reference.case(params, "odd", 1, "cpu")


@EACH
def test_fp32_and_sampled_fp64_agree_with_fp64(task, params):
    reference = task.reference
    for family in reference.FAMILIES:
        more, drawn = reference.case(params, family, 2, "cpu")
        direct, online = (reference.expected(more, drawn, form) for form in reference.FORMS)
        sample = reference.sampled(more, drawn, 3, 20)
        whole = reference.whole32(more, drawn)
        for exact, other, rough in zip(direct, online, whole, strict=True):
            torch.testing.assert_close(exact, other, rtol=1e-11, atol=1e-11)
            torch.testing.assert_close(exact.float(), rough, rtol=2e-4, atol=2e-4)
        for exact, some in zip(sample.pick(direct), sample.expected, strict=True):
            torch.testing.assert_close(exact, some, rtol=1e-11, atol=1e-11)


def test_samples_come_from_every_group_of_rows_or_from_some():
    params = attention(40, 30, heads=6, kv_heads=2, batch=3)
    _, drawn = FA4.reference.case(params, "normal", 1, "cpu")
    out, lse = FA4.reference.sampled(params, drawn, 1, 50).expected
    assert out.shape == (3 * 2, 50, 64) and lse.shape == (3 * 2, 50)
    assert FA4.reference.sampled(params, drawn, 1, 500).expected[1].shape == (6, 3 * 40)
    assert FA4.reference.sampled(params, drawn, 1, 7, groups=4).expected[0].shape == (4, 7, 64)
    other = FA4.reference.sampled(params, drawn, 2, 50).expected[0]
    assert not torch.equal(out, other)


@pytest.mark.parametrize("params", SMALL["fa4"], ids=str)
def test_chunks_change_nothing(params):
    more, drawn = FA4.reference.case(params, "climb-early", 2, "cpu")
    whole = FA4.reference.whole32(more, drawn)
    chunks = FA4.reference.whole32(more, drawn, chunk=params["batch"] * 2000)
    for one, other in zip(whole, chunks, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    sample = FA4.reference.sampled(more, drawn, 2, 9)
    singly = FA4.reference.sampled(more, drawn, 2, 9, chunk=1)
    for one, other in zip(sample.expected, singly.expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


# What families of attention promise


def logits(family, params):
    _, (q, k, v) = FA4.reference.case(params, family, 4, "cpu")
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double())
    return scores / math.sqrt(params["head_dim"]), v


def test_climbing_logits_overflow_without_a_running_maximum():
    for family, way in (("climb-early", -1), ("climb-late", 1)):
        scores, _ = logits(family, attention(40, 512, head_dim=128))
        steps = scores.unflatten(-1, (-1, 64)).amax(-1).diff(dim=-1) * way
        assert (steps > -1).all() and (steps[..., 2:5] > 0).all()  # flat at both ends
        octaves = (scores[..., 0] - scores[..., -1]) * -way / math.log(2)
        assert (octaves.max() > 216) and (octaves.min() > 72)
        assert ((octaves > 118) & (octaves < 126)).double().mean() > 0.1  # near fp32's end


@pytest.mark.parametrize("causal", [False, True])
def test_a_plateau_weighs_something_in_rows_whose_dominant_key_is_first_or_last(causal):
    params = attention(800, 1000, head_dim=128, causal=causal)
    scores, _ = logits("plateau", params)
    if causal:
        scores = scores.masked_fill(~torch.ones(800, 1000).tril(200).bool(), -math.inf)
    top, rest = scores.topk(2, dim=-1).values.unbind(-1)
    assert ((top - rest) / math.log(2) > 12).double().mean() > 0.9
    others = 1 - scores.softmax(-1).amax(-1)
    assert (others > 1e-3).all() and (others > 0.02).double().mean() > 0.3
    assert 0.4 < (scores.argmax(-1) == 0).double().mean() < 0.7
    last = torch.arange(800) + 201 if causal else torch.full((800,), 1000)
    near = scores.argmax(-1) + 1 >= last - 800 // 7 - 1
    assert near.double().mean() > 0.4


def test_one_key_in_each_tile_is_decisive_for_some_queries():
    params = attention(300, 512, head_dim=128)
    scores, v = logits("decisive", params)
    weights = scores.softmax(-1)
    assert weights.amax(-1).min() > 0.99
    assert len((weights.argmax(-1) // 64).unique()) == 8
    assert len(v[0, :, 0].unique(dim=0)) == 512  # V tells every key from every other
    causal, _ = logits("decisive", params | {"seqlen_q": 512, "causal": True})
    seen = causal.masked_fill(~torch.ones(512, 512).tril().bool(), -math.inf)[:, :, 64:]
    assert seen.softmax(-1).amax(-1).min() > 0.99


def test_negative_regions_and_rows():
    scores, _ = logits("negative", attention(200, 512))
    assert (scores.amax(-1) < -100).any()  # rows that are low throughout
    assert ((scores < -200).sum(-1) > 100).any()


def test_a_dominant_key_is_late_in_the_row():
    scores, _ = logits("dominant-late", attention(20, 512))
    assert (scores.argmax(-1) >= 504).all()


def test_another_scale_is_far_from_the_usual_and_reaches_the_call():
    for seed in range(20):
        params, _ = FA4.reference.case(SMALL["fa4"][0], "scale", seed, "cpu")
        assert not 0.7 < params["scale"] * math.sqrt(64) < 1.5
        assert ("float", params["scale"]) in FA4.build.arguments(params, {"family": "sm100"})
    assert ("float", 0.125) in FA4.build.arguments(SMALL["fa4"][0], {"family": "sm90"})


def test_strided_inputs_share_one_packed_tensor():
    _, (q, k, v) = FA4.reference.case(attention(40, 70, 6, 2), "strided", 1, "cpu")
    assert q.stride() == k.stride() == v.stride() == (70 * 10 * 64, 10 * 64, 64, 1)
    assert v.data_ptr() - q.data_ptr() == 8 * 64 * 2


# Points


def judged(task, group):
    return [dict(w.params) for w in task.select(group)]


@pytest.mark.parametrize(
    ("task", "group"), [(FA4, "mha"), (FA4, "gqa"), (FA4, "gqa8"), (SOFTMAX, "all")], ids=str
)
def test_points_run_the_judged_kernels_and_others(task, group):
    classes = {w.class_name for w in task.select(group)}
    checks = task.reference.checks(judged(task, group))
    assert checks == task.reference.checks(judged(task, group))
    assert len({name for name, _, _ in checks}) == len(checks) < 100
    own = [of for _, of, _ in checks if of in classes]
    assert set(own) == classes and [of for _, of, _ in checks][: len(own)] == own
    for seed in range(30):
        drawn = task.reference.hidden(seed, judged(task, group), 4)
        assert drawn == task.reference.hidden(seed, judged(task, group), 4)
        assert len({name for name, _, _ in drawn}) == 4
        assert sum(of in classes for _, of, _ in drawn) >= 2
    assert len({str(task.reference.hidden(s, judged(task, group), 4)) for s in range(30)}) == 30


@TASKS
def test_classes_of_public_workloads_are_those_of_task_toml(task):
    for w in task.workloads:
        assert task.reference.class_of(w.params) == w.class_name


@pytest.mark.parametrize("group", ["mha", "gqa"])
def test_odd_shapes_of_attention(group):
    points = [params for _, _, params in FA4.reference.checks(judged(FA4, group))]
    own = [p for p in points if p["head_dim"] == 128 and p["heads"] // p["kv_heads"] in (1, 4, 8)]
    for causal in (False, True):
        mine = [p for p in own if p["causal"] is causal]
        lengths = {p["seqlen_k"] for p in mine}
        assert {1, 127, 129} <= lengths and max(lengths) > 32768
        assert any(p["seqlen_q"] > p["seqlen_k"] for p in mine)
        assert any(p["seqlen_q"] < p["seqlen_k"] for p in mine)
        assert any(p["seqlen_k"] % 8 for p in mine)
        assert {p["batch"] for p in mine} >= {1, 9} and min(p["kv_heads"] for p in mine) == 1
        assert max(p["batch"] for p in mine) > 32 < max(p["kv_heads"] for p in mine)
        assert any(p["kv_heads"] > 16 and p["seqlen_k"] > 128 for p in mine)
    ratios = {p["heads"] // p["kv_heads"] for p in points}
    assert {3, 6} <= ratios and {p["head_dim"] for p in points} == {64, 96, 128}


@pytest.mark.parametrize("group", ["mha", "gqa", "gqa8", "mha-causal-8k"])
def test_every_judged_length_has_an_odd_check_like_it(group):
    """What a candidate chooses for long sequences must be checked there, tile edges and all."""
    points = [params for _, _, params in FA4.reference.checks(judged(FA4, group))]
    for want in judged(FA4, group):
        like = [
            p
            for p in points
            if p["causal"] is want["causal"]
            and p["heads"] // p["kv_heads"] == want["heads"] // want["kv_heads"]
            and all(0.98 < p[n] / want[n] < 1 for n in ("seqlen_q", "seqlen_k"))
        ]
        assert like and all(p["seqlen_q"] % 2 and p["seqlen_k"] % 2 for p in like)
        assert all(FA4.reference.flops(p) <= 5e12 for p in like), "cheap enough for every family"


@pytest.mark.parametrize("group", ["mha", "gqa"])
def test_hidden_shapes_of_attention_stay_affordable(group):
    drawn = [
        params
        for seed in range(100)
        for _, _, params in FA4.reference.hidden(seed, judged(FA4, group), 4)
    ]
    fast = TARGETS["h200"]
    for p in drawn:
        assert 1024 <= p["seqlen_k"] <= 65536 + 1
        assert FA4.reference.flops(p) <= 6.1e12, p
        tokens = p["batch"] * p["seqlen_k"]
        assert tokens <= 65537 and tokens >= 16384
    assert {p["head_dim"] for p in drawn} == {64, 96, 128}
    assert any(p["seqlen_k"] % 2 for p in drawn) and any(p["seqlen_q"] == 65536 for p in drawn)
    assert any(p["seqlen_q"] < p["seqlen_k"] for p in drawn)
    assert any(p["batch"] * p["heads"] % fast.sms for p in drawn)


# Softmax, judged


class RowSoftmax:
    """An `Arm`: softmax in fp32 with the row's maximum, or with what `shift` gives instead."""

    name = "softmax"

    def __init__(self, shift=lambda x: x.amax(-1, keepdim=True), after=lambda inputs, out: None):
        self.shift, self.after = shift, after

    def bind(self, params, inputs, outputs):
        def launch():
            x = inputs[0].float()
            e = (x - self.shift(x)).exp()
            outputs[0].copy_(e / e.sum(-1, keepdim=True))
            self.after(inputs, outputs[0])

        return launch


ROWS = Point("rows", {"rows": 37, "cols": 1000})


def softmax_failures(kernel):
    """Families and properties that refuse a kernel."""
    arms = (kernel, RowSoftmax())
    families = SOFTMAX.reference.FAMILIES
    found = check_point(Here(), SOFTMAX.reference, *arms, ROWS, families, random.Random(1))
    found += check_properties(Here(), SOFTMAX.reference, *arms, ROWS, random.Random(1))
    return {one.family for one in found if one.failure}


def test_the_softmax_task_judges_by_the_same_rules():
    assert softmax_failures(RowSoftmax()) == set()
    assert softmax_failures(RowSoftmax(lambda x: x.amax(-1, keepdim=True) + 3)) == set()
    assert {"shifted"} <= softmax_failures(RowSoftmax(torch.zeros_like))
    assert {"climbing"} <= softmax_failures(RowSoftmax(lambda x: x[:, :1]))

    def by_row(inputs, out):
        out[5] *= 1 + 2**-7

    assert "rows reordered" in softmax_failures(RowSoftmax(after=by_row))
    assert self_test(Here(), SOFTMAX.reference, RowSoftmax(), ROWS, random.Random(1)) == []


@pytest.mark.parametrize(
    ("task", "group", "seed"),
    [(FA4, "mha", Flash()), (FA4, "gqa8", Flash()), (SOFTMAX, "all", RowSoftmax())],
    ids=["mha", "gqa8", "softmax"],
)
def test_the_first_check_serves_the_self_test(task, group, seed):
    name, _, params = task.reference.checks(judged(task, group))[0]
    assert self_test(Here(), task.reference, seed, Point(name, params), random.Random(2)) == []


def test_wrong_versions_have_the_shape_of_outputs():
    for task, params in CASES:
        _, drawn = task.reference.case(params, "normal", 1, "cpu")
        outputs = [torch.empty(o.shape(params)) for o in task.reference.OUTPUTS]
        for name, make in task.reference.WRONG.items():
            WrongArm(name, make).bind(params, drawn, outputs)()
            assert all(x.isfinite().any() for x in outputs), name
