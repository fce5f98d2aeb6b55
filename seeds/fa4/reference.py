"""What attention costs, what it is called with, and what it should give.

torch is imported inside the functions: the engine reads `flops` and `bytes` without it. Tensors are
(batch, seqlen, heads, head_dim), as FlashAttention takes them; the log-sum-exp is (batch, heads,
seqlen_q), natural logarithm, of the scaled scores. What the judge of correctness asks for is listed
in `avo_cute.measure.oracle.Reference`; families.py has inputs, points.py shapes, large.py the
reference for large workloads, properties.py what needs none.
"""

import importlib.util
import math
import sys
from pathlib import Path

from avo_cute.measure.oracle import Output


def _sibling(stem):
    """Another file of this task, as a module."""
    spec = importlib.util.spec_from_file_location(
        f"{__name__}_{stem}", Path(__file__).with_name(f"{stem}.py")
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_families, _large, _points, _properties = map(
    _sibling, ("families", "large", "points", "properties")
)

INPUTS = ("q", "k", "v")
OUTPUTS = (
    Output("out", "bfloat16", lambda params: _families.shapes(params)["q"], "relative", rows=1),
    Output(
        "lse",
        "float32",
        lambda params: (params["batch"], params["heads"], params["seqlen_q"]),
        "absolute",
    ),
)
FAMILIES, FEW, case = _families.FAMILIES, _families.FEW, _families.case
FORMS = ("direct", "online")
whole32, sampled = _large.whole32, _large.sampled
checks, hidden, class_of = _points.checks, _points.hidden, _points.class_of

BF16_BYTES, FP32_BYTES = 2, 4
_SMALL_PAIRS = 2**25  # of query and key, over all heads: 256 MiB in fp64


def flops(params):
    """4·B·H·Sq·Sk·D: a multiplication and an addition in each of Q·K and P·V.

    Causal: only the allowed pairs of query and key count, and for Sq = Sk exactly half, the
    convention of the published tables (the diagonal makes the true count larger by 1/Sk).
    """
    sq, sk = params["seqlen_q"], params["seqlen_k"]
    pairs = sq * sk
    if params["causal"]:
        pairs = pairs / 2 if sq == sk else allowed_pairs(sq, sk)
    return 4.0 * params["batch"] * params["heads"] * pairs * params["head_dim"]


def bytes(params):
    """Least traffic: Q, K and V read once, O (bf16) and the log-sum-exp (fp32) written once."""
    queries = params["batch"] * params["seqlen_q"] * params["heads"]
    keys = params["batch"] * params["seqlen_k"] * params["kv_heads"]
    elements = 2 * (queries + keys) * params["head_dim"]
    return float(BF16_BYTES * elements + FP32_BYTES * queries)


def exponentials(params):
    """At least one exponential per pair of query and key that `flops` counts."""
    return flops(params) / (4.0 * params["head_dim"])


def allowed_pairs(sq, sk):
    """Pairs that a causal mask aligned at the bottom right leaves: key <= query + sk - sq."""
    first = max(0, sq - sk)  # queries before it see no key at all
    rows = sq - first
    return rows * (max(0, sk - sq) + 1 + sk) // 2


def inputs(params, seed):
    """q, k, v: N(0, 1), bf16 on the CPU; the same for the same `seed`."""
    return case(params, "normal", seed, "cpu")[1]


def reference(q, k, v, causal, scale=None, form="direct"):
    """(out, lse) in fp64, in one of two forms that share nothing but the shape of the mask.

    `scale` multiplies the scores, 1/sqrt(head_dim) if None. A causal mask is aligned at the bottom
    right: query i sees keys j <= i + Sk - Sq. Heads of q divide evenly over the heads of k and v,
    query head h reads h // (heads / kv_heads). A query that sees no key gives 0 and -inf.

    "direct" forms all scores at once, subtracts the maximum and divides by the sum. "online" walks
    over the keys in chunks and merges normalised partial results by their log-sum-exp; its memory
    grows with Sq, not with Sq·Sk.
    """
    if form not in FORMS:
        raise ValueError(f"unknown form {form!r}: choose one of {', '.join(FORMS)}")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return {"direct": _direct, "online": _online}[form](
        q.double(), k.double(), v.double(), causal, scale
    )


def _direct(q, k, v, causal, scale):
    import torch

    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if causal:
        sq, sk = scores.shape[-2:]
        seen = torch.ones(sq, sk, dtype=torch.bool, device=q.device).tril(sk - sq)
        scores = scores.masked_fill(~seen, -math.inf)
    top = scores.amax(dim=-1, keepdim=True)
    weights = (scores - top.masked_fill(top == -math.inf, 0.0)).exp()
    total = weights.sum(dim=-1, keepdim=True)
    out = torch.einsum("bhqk,bkhd->bqhd", weights / total.masked_fill(total == 0, 1.0), v)
    return out, (total.log() + top).squeeze(-1)


def _online(q, k, v, causal, scale):
    """Works on (batch, kv_heads, group, ...) so that keys are shared without being repeated."""
    import torch

    batch, sq, heads, head_dim = q.shape
    sk, kv_heads = k.shape[1:3]
    q = q.reshape(batch, sq, kv_heads, heads // kv_heads, head_dim).permute(0, 2, 3, 1, 4)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:-1], -math.inf, dtype=q.dtype, device=q.device)
    last_key = torch.arange(sq, device=q.device) + (sk - sq)
    chunk = max(80, sk // 16)
    for start in range(0, sk, chunk):
        keys, values = (
            x[:, start : start + chunk].permute(0, 2, 3, 1).unsqueeze(2) for x in (k, v)
        )
        scores = (q * scale) @ keys
        if causal:
            position = torch.arange(start, min(start + chunk, sk), device=q.device)
            scores = scores.where(position <= last_key[:, None], -math.inf)
        part = scores.logsumexp(dim=-1)
        merged = torch.logaddexp(lse, part)
        anchor = merged.masked_fill(merged == -math.inf, 0.0)[..., None]
        out = out * (lse[..., None] - anchor).exp() + (scores - anchor).exp() @ values.mT
        lse = merged
    out = out.permute(0, 3, 1, 2, 4).reshape(batch, sq, heads, -1)
    return out, lse.reshape(batch, heads, sq)


def small(params):
    """Whether `expected` is cheap: up to 2^25 pairs of query and key."""
    return params["batch"] * params["heads"] * params["seqlen_q"] * params["seqlen_k"] <= (
        _SMALL_PAIRS
    )


def expected(params, inputs, form):
    """(out, lse) in fp64."""
    return reference(*inputs, params["causal"], params.get("scale"), form)


def properties(params, seed, device):
    """What must hold of results whatever a reference says."""
    return _properties.properties(params, seed, device, case)


def _zeros(params, inputs):
    return inputs[0].new_zeros(inputs[0].shape), whole32(params, inputs)[1]


def _mean_of_v(params, inputs):
    q, _, v = inputs
    mean = v.float().mean(dim=1, keepdim=True).repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    return mean.expand_as(q), whole32(params, inputs)[1]


def _v_itself(params, inputs):
    q, _, v = inputs
    rows = v.repeat_interleave(q.shape[2] // v.shape[2], dim=2)
    rows = rows.repeat(1, -(-q.shape[1] // v.shape[1]), 1, 1)[:, : q.shape[1]]
    return rows, whole32(params, inputs)[1]


def _fp8(params, inputs):
    """P in FP8 (e4m3), everything else right. For small workloads: it holds all scores."""
    import torch

    q, k, v = inputs
    lse = whole32(params, inputs)[1]
    group = q.shape[2] // k.shape[2]
    k, v = (x.float().repeat_interleave(group, dim=2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.float() * _large.scale(params), k)
    if params["causal"]:
        _large.hide(scores, k.shape[1] - q.shape[1])
    p = (scores - lse[..., None]).exp().nan_to_num(nan=0.0)  # NaN where no key is seen
    top = p.amax(-1, keepdim=True).clamp(min=1e-30)
    p = (p / top).to(torch.float8_e4m3fn).float() * top
    return torch.einsum("bhqk,bkhd->bqhd", p, v), lse


# Results that the rules must refuse; the log-sum-exp is right in all of them.
WRONG = {
    "zeros with the right log-sum-exp": _zeros,
    "mean of V": _mean_of_v,
    "V": _v_itself,
    "FP8 P": _fp8,
}
