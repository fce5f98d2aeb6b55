"""What attention costs, what it is called with, and what it should give.

torch is imported inside the functions: the engine reads `flops` and `bytes` without it. Tensors are
(batch, seqlen, heads, head_dim), as FlashAttention takes them; the log-sum-exp is (batch, heads,
seqlen_q), natural logarithm, of the scaled scores.
"""

import math

BF16_BYTES, FP32_BYTES = 2, 4


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


def allowed_pairs(sq, sk):
    """Pairs that a causal mask aligned at the bottom right leaves: key <= query + sk - sq."""
    first = max(0, sq - sk)  # queries before it see no key at all
    rows = sq - first
    return rows * (max(0, sk - sq) + 1 + sk) // 2


def inputs(params, seed):
    """q, k, v: N(0, 1), bf16 on the CPU; the same for the same `seed`."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    batch, head_dim = params["batch"], params["head_dim"]
    keys = (batch, params["seqlen_k"], params["kv_heads"], head_dim)
    queries = (batch, params["seqlen_q"], params["heads"], head_dim)
    return tuple(
        torch.randn(shape, generator=generator).to(torch.bfloat16)
        for shape in (queries, keys, keys)
    )


def reference(q, k, v, causal, scale=None, form="direct"):
    """(out, lse) in fp64, in one of two forms that share nothing but the shape of the mask.

    `scale` multiplies the scores, 1/sqrt(head_dim) if None. A causal mask is aligned at the bottom
    right: query i sees keys j <= i + Sk - Sq. Heads of q divide evenly over the heads of k and v,
    query head h reads h // (heads / kv_heads). A query that sees no key gives 0 and -inf.

    "direct" forms all scores at once, subtracts the maximum and divides by the sum. "online" walks
    over the keys in chunks and merges normalised partial results by their log-sum-exp; its memory
    grows with Sq, not with Sq·Sk.
    """
    if form not in _FORMS:
        raise ValueError(f"unknown form {form!r}: choose one of {', '.join(_FORMS)}")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return _FORMS[form](q.double(), k.double(), v.double(), causal, scale)


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


def _online(q, k, v, causal, scale, chunk=80):
    """Works on (batch, kv_heads, group, ...) so that keys are shared without being repeated."""
    import torch

    batch, sq, heads, head_dim = q.shape
    sk, kv_heads = k.shape[1:3]
    q = q.reshape(batch, sq, kv_heads, heads // kv_heads, head_dim).permute(0, 2, 3, 1, 4)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:-1], -math.inf, dtype=q.dtype, device=q.device)
    last_key = torch.arange(sq, device=q.device) + (sk - sq)
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


_FORMS = {"direct": _direct, "online": _online}
