"""The reference of the FA4 task: two forms that agree with each other and with torch."""

import itertools
import math
import subprocess
import sys

import pytest
import torch

from avo_cute.task import find_task

REFERENCE = find_task("fa4").reference


def params(sq=70, sk=70, heads=2, kv_heads=2, head_dim=16, causal=False, batch=2):
    names = "batch", "seqlen_q", "seqlen_k", "heads", "kv_heads", "head_dim", "causal"
    return dict(zip(names, (batch, sq, sk, heads, kv_heads, head_dim, causal), strict=True))


SHAPES = [
    params(causal=causal, **shape)
    for causal, shape in itertools.product(
        (False, True),
        (
            {},
            {"sq": 1, "sk": 1},
            {"sq": 1, "sk": 161},  # two chunk borders and one key more
            {"sq": 33, "sk": 80},
            {"sq": 90, "sk": 40},  # causal: the first 50 queries see nothing
            {"heads": 6, "kv_heads": 2},
            {"heads": 4, "kv_heads": 1, "sq": 5, "sk": 100},
        ),
    )
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_two_forms_agree(shape):
    q, k, v = REFERENCE.inputs(shape, seed=1)
    for scale in (None, 0.3, 4.0):
        direct, online = (
            REFERENCE.reference(q, k, v, shape["causal"], scale, form)
            for form in ("direct", "online")
        )
        assert direct[0].shape == q.shape
        assert direct[1].shape == (shape["batch"], shape["heads"], shape["seqlen_q"])
        for one, other in zip(direct, online, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", ["direct", "online"])
@pytest.mark.parametrize("causal", [False, True])
def test_torch_agrees_where_its_mask_is_the_same(causal, form):
    q, k, v = REFERENCE.inputs(params(heads=6, kv_heads=2), seed=2)
    out, _ = REFERENCE.reference(q, k, v, causal, 0.4, form)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().transpose(1, 2) for x in (q, k, v)),
        is_causal=causal,
        scale=0.4,
        enable_gqa=True,
    )
    torch.testing.assert_close(out, theirs.transpose(1, 2), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", ["direct", "online"])
def test_causal_is_aligned_at_the_bottom_right(form):
    """Equal scores average the visible values, so V with the key's index shows who sees what."""
    q, k = torch.zeros(1, 3, 1, 8), torch.zeros(1, 5, 1, 8)
    v = torch.arange(5.0).reshape(1, 5, 1, 1).expand(1, 5, 1, 8)
    out, lse = REFERENCE.reference(q, k, v, True, form=form)
    assert out[0, :, 0, 0].tolist() == pytest.approx([1.0, 1.5, 2.0])  # means of 0..2, 0..3, 0..4
    assert lse[0, 0].tolist() == pytest.approx([math.log(n) for n in (3, 4, 5)])


@pytest.mark.parametrize("form", ["direct", "online"])
def test_a_query_without_keys_gives_zero_and_minus_infinity(form):
    q, k, v = REFERENCE.inputs(params(sq=5, sk=3, causal=True), seed=3)
    out, lse = REFERENCE.reference(q, k, v, True, form=form)
    assert (out[:, :2] == 0).all() and (lse[:, :, :2] == -math.inf).all()
    assert torch.isfinite(out).all() and torch.isfinite(lse[:, :, 2:]).all()


@pytest.mark.parametrize("form", ["direct", "online"])
def test_large_scores_neither_overflow_nor_vanish(form):
    q, k, v = REFERENCE.inputs(params(), seed=4)
    out, lse = REFERENCE.reference(q, k, v, False, 1e4, form)
    best = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()).amax(-1) * 1e4
    assert torch.isfinite(out).all()
    torch.testing.assert_close(lse, best, rtol=1e-9, atol=1.0)


def test_the_default_scale_is_one_over_the_root_of_the_head_dim():
    q, k, v = REFERENCE.inputs(params(head_dim=64), seed=5)
    default, explicit = (REFERENCE.reference(q, k, v, False, s)[0] for s in (None, 0.125))
    assert torch.equal(default, explicit)


def test_an_unknown_form_is_refused():
    q, k, v = REFERENCE.inputs(params(), seed=6)
    with pytest.raises(ValueError, match="choose one of direct, online"):
        REFERENCE.reference(q, k, v, False, form="fast")


@pytest.mark.parametrize(("sq", "sk"), [(3, 5), (5, 3), (1, 9), (9, 1), (7, 7)])
def test_allowed_pairs_by_counting(sq, sk):
    counted = sum(j <= i + sk - sq for i in range(sq) for j in range(sk))
    assert REFERENCE.allowed_pairs(sq, sk) == counted


def test_flops_and_bytes_by_hand():
    full = params(sq=8, sk=8, heads=4, kv_heads=2, head_dim=16, batch=3)
    assert REFERENCE.flops(full) == 4 * 3 * 4 * 8 * 8 * 16
    assert REFERENCE.flops(full | {"causal": True}) == REFERENCE.flops(full) / 2
    uneven = full | {"seqlen_q": 2, "causal": True}  # two queries see 7 and 8 keys
    assert REFERENCE.flops(uneven) == 4 * 3 * 4 * 15 * 16
    assert REFERENCE.bytes(full) == 2 * 3 * 8 * 16 * (4 + 2 + 2 + 4) + 4 * 3 * 8 * 4


def test_inputs_follow_the_seed():
    first, again, other = (REFERENCE.inputs(params(), seed=s) for s in (1, 1, 2))
    assert all(x.dtype == torch.bfloat16 for x in first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_flops_and_bytes_need_no_torch():
    code = (
        "import sys; from avo_cute.task import find_task; t = find_task('fa4');"
        "[(t.reference.flops(w.params), t.reference.bytes(w.params)) for w in t.workloads];"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
