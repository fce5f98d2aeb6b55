"""What attention should give where fp64 throughout would take too long: fp32, and fp64 of samples.

Both work on all keys that a chunk of queries sees at once, in a few passes over the scores.
"""

import math
from contextlib import contextmanager

from avo_cute.measure.oracle import Sample

_CHUNK32 = 2**27  # scores held at a time in fp32: 512 MiB
_CHUNK64 = 2**26  # and in fp64: 512 MiB


def whole32(params, inputs, chunk=_CHUNK32):
    """(out, lse) in fp32: rows of queries in chunks, all keys that they see at once.

    Query heads that share keys are rows of one matrix. Without TF32, so errors are near 1e-6.
    """
    import torch

    q, k, v = inputs
    batch, sq, heads, d = q.shape
    sk, kv_heads = k.shape[1:3]
    group = heads // kv_heads
    k, v = (x.transpose(1, 2).contiguous().float().flatten(0, 1) for x in (k, v))
    out = torch.empty(batch, sq, heads, d, device=q.device)
    lse = torch.empty(batch, heads, sq, device=q.device)
    step = max(1, chunk // (batch * heads * sk))
    with _ieee():
        for start in range(0, sq, step):
            rows = q[:, start : start + step].float() * scale(params)
            n = rows.shape[1]
            last = start + sk - sq  # the last key that the first of these queries sees
            seen = max(0, min(sk, last + n)) if params["causal"] else sk
            rows = rows.unflatten(2, (kv_heads, group)).permute(0, 2, 3, 1, 4)
            scores = rows.reshape(batch * kv_heads, group * n, d) @ k[:, :seen].mT
            if params["causal"]:
                hide(scores.view(batch * kv_heads, group, n, seen), last)
            part, total = _softmax_in_place(scores, v[:, :seen])
            part = part.view(batch, kv_heads, group, n, d).permute(0, 3, 1, 2, 4)
            out[:, start : start + n] = part.reshape(batch, n, heads, d)
            lse[:, :, start : start + n] = total.view(batch, heads, n)
    return out, lse


def hide(scores, last):
    """-inf for keys behind `last` + i of row i; `scores` is (…, rows, keys)."""
    import torch

    n, seen = scores.shape[-2:]
    first = max(0, min(seen, last + 1))  # the keys before it are seen by every row
    keys = torch.arange(first, seen, device=scores.device)
    rows = torch.arange(n, device=scores.device)[:, None]
    scores[..., first:].masked_fill_(keys > rows + last, -math.inf)


def _softmax_in_place(scores, values):
    """(softmax(scores) @ values, log-sum-exp) along the last dimension; `scores` is used up."""
    import torch

    if scores.shape[-1] == 0:
        shape = scores.shape[:-1]
        return scores.new_zeros(*shape, values.shape[-1]), scores.new_full(shape, -math.inf)
    top = scores.amax(dim=-1, keepdim=True)
    top.masked_fill_(top == -math.inf, 0.0)
    scores.sub_(top).exp_()
    total = scores.sum(dim=-1, keepdim=True)
    out = torch.matmul(scores, values) / total.masked_fill(total == 0, 1.0)
    return out, (total.log() + top).squeeze(-1)


def sampled(params, inputs, seed, count, groups=None, chunk=_CHUNK64):
    """fp64 results of `count` random rows in each pair of batch element and key head: its rows are
    the queries of all heads that share those keys. `groups`: of so many random pairs only."""
    import torch

    q, k, v = inputs
    batch, sq, heads, _ = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    g = torch.Generator(q.device).manual_seed(seed)
    pairs = torch.randperm(batch * kv_heads, generator=g, device=q.device)[:groups, None]
    count = min(count, group * sq)
    rows = torch.randint(group * sq, (len(pairs), count), generator=g, device=q.device)
    at, of, head = pairs // kv_heads, pairs % kv_heads, pairs % kv_heads * group + rows // sq
    row = rows % sq
    most = max(1, chunk // (k.shape[1] * max(count, k.shape[3])))
    parts = []
    for start in range(0, len(pairs), most):
        b, h, i, kv = (x[start : start + most] for x in (at, head, row, of))
        keys, values = (x[b[:, 0], :, kv[:, 0]].double() for x in (k, v))
        scores = (q[b, i, h].double() * scale(params)) @ keys.mT
        if params["causal"]:
            seen = torch.arange(k.shape[1], device=q.device)
            scores.masked_fill_(seen > i[..., None] + (k.shape[1] - sq), -math.inf)
        parts.append(_softmax_in_place(scores, values))
    expected = tuple(torch.cat(x) for x in zip(*parts, strict=True))
    return Sample(expected, lambda outputs: (outputs[0][at, row, head], outputs[1][at, head, row]))


def scale(params):
    return params.get("scale") or 1 / math.sqrt(params["head_dim"])


@contextmanager
def _ieee():
    """fp32 matrix products in fp32."""
    import torch

    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, False
    try:
        yield
    finally:
        matmul.allow_tf32 = before
