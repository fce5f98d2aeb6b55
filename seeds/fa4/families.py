"""Inputs of attention, by family. A family is there for mistakes that others do not show.

Everything is drawn on the device it is for, in bf16, and the same for the same seed there. Many
families put a chosen logit into chosen pairs of query and key: both get a component along one
random direction of ±1/√D, of sizes whose product is the logit.
"""

import math

# What an incorrect kernel is caught by; FAMILIES[0] is the ordinary one.
_MEANING = {
    "normal": "N(0, 1): skipped keys, unwritten tiles, FP8",
    "q4": "4·q: softmax over some ten keys; P that is rounded badly",
    "q16": "16·q: one or two keys decide; a maximum of the wrong tile",
    "v-mean-10": "v + 10: errors of P that do not cancel; a normalisation that forgets some keys",
    "decisive": "one decisive key per 64, V carries its index: any key, tile or head mixed up",
    "equal": "equal keys: O = mean(V), small numbers that are sums of large ones",
    "dominant-late": "ever larger keys towards the end of the row: the last tile or block lost",
    "climb-early": "logits climb by up to 200 towards earlier keys, the way FlashAttention walks: "
    "no running maximum, no rescaling, a threshold that lets exponentials or their sum overflow",
    "climb-late": "and towards later keys: the same for a walk the other way",
    "plateau": "one dominant key, the rest equally far below it: each is small, all together are "
    "not; keys or tiles dropped for being small",
    "negative": "stretches of keys at -300, and rows whose every logit is near -200",
    "ternary": "-1, 0 and 1 with exact zeros, whole rows of them: 0·∞, ties, a sum of nothing",
    "small-q-large-k": "q/128, 128·k: a narrower type or a scale folded into the wrong operand",
    "one-sign": "v > 0: a bias, such as P rounded towards zero, adds up",
    "strided": "views into one packed q-k-v tensor: strides that are assumed",
    "transposed": "memory in the order (batch, heads, seqlen, head_dim): the same",
    "scale": "another scale than 1/sqrt(head_dim), given in params: a scale that is assumed",
}
FAMILIES = tuple(_MEANING)
FEW = ("normal", "climb-early", "plateau", "one-sign", "decisive", "strided")

_TILE = 64  # divides the tiles of keys that kernels walk over
_STRETCHES = 8  # of queries, one of them scattered: each has its own dominant key ("plateau")


def case(params, family, seed, device):
    """(params, (q, k, v)) of one family; only "scale" adds to the params."""
    import torch

    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}: choose one of {', '.join(FAMILIES)}")
    g = torch.Generator(device).manual_seed(seed)
    if family == "strided":
        return params, _packed(params, g)
    if family == "transposed":
        return params, tuple(_normal(params, n, g, True) for n in ("q", "k", "v"))
    if family == "scale":
        params = {**params, "scale": _other_scale(params, g)}
    q, k, v = (_normal(params, name, g) for name in ("q", "k", "v"))
    if change := _CHANGES.get(family):
        change(q, k, v, g, params)
    return params, (q, k, v)


def shapes(params):
    """(batch, seqlen, heads, head_dim) of q, k and v."""
    batch, head_dim = params["batch"], params["head_dim"]
    keys = (batch, params["seqlen_k"], params["kv_heads"], head_dim)
    return {"q": (batch, params["seqlen_q"], params["heads"], head_dim), "k": keys, "v": keys}


def _normal(params, name, g, transposed=False):
    import torch

    shape = shapes(params)[name]
    if transposed:
        shape = (shape[0], shape[2], shape[1], shape[3])
    x = torch.randn(shape, generator=g, device=g.device, dtype=torch.bfloat16)
    return x.transpose(1, 2) if transposed else x


def _packed(params, g):
    """Views of a tensor (batch, seqlen, heads of q, k and v, head_dim), as a model makes them.

    Rows of head_dim elements, so that all strides are multiples of 16 bytes as for plain tensors.
    """
    import torch

    heads, kv_heads = params["heads"], params["kv_heads"]
    rows = max(params["seqlen_q"], params["seqlen_k"])
    shape = (params["batch"], rows, heads + 2 * kv_heads, params["head_dim"])
    packed = torch.randn(shape, generator=g, device=g.device, dtype=torch.bfloat16)
    q, k, v = packed.split([heads, kv_heads, kv_heads], dim=2)
    return q[:, : params["seqlen_q"]], k[:, : params["seqlen_k"]], v[:, : params["seqlen_k"]]


def _other_scale(params, g):
    """Between a quarter and three times the usual one, never near it."""
    import torch

    x = float(torch.rand((), generator=g, device=g.device))
    factor = 0.25 + 0.7 * x if x < 0.5 else 1.6 + 2.8 * (x - 0.5)
    return factor / math.sqrt(params["head_dim"])


def _times_4(q, k, v, g, params):
    q.mul_(4)


def _times_16(q, k, v, g, params):
    q.mul_(16)


def _mean_10(q, k, v, g, params):
    v.add_(10)


def _decisive(q, k, v, g, params):
    """Key j of a tile and the queries that look for the tile share a random code of ±a.

    Their logit is 36; two codes that differ reach about 20 at most. Each query looks for a tile
    whose decisive key it sees, as far as there is one.
    """
    import torch

    batch, sq, heads, d = q.shape
    sk, kv_heads = k.shape[1:3]
    a = 6 / d**0.25
    where, tiles = {"generator": g, "device": g.device}, -(-sk // _TILE)
    codes = a * (2 * torch.randint(2, (tiles, d), **where) - 1).to(q.dtype)
    inside = torch.randint(_TILE, (tiles,), **where)
    position = (torch.arange(tiles, device=g.device) * _TILE + inside).clamp(max=sk - 1)
    k.mul_(0.1)
    k[:, position] = codes[:, None]
    first_unseen = torch.full((sq,), sk, device=g.device)
    if params["causal"]:
        first_unseen = torch.arange(sq, device=g.device) + sk - sq + 1
    seen = torch.searchsorted(position, first_unseen).clamp(min=1)
    wanted = torch.rand((batch, sq, heads), **where) * seen[:, None]
    q.copy_(codes[wanted.long()])
    bits = torch.arange(d, device=g.device) % 17
    index = 2 * (torch.arange(sk, device=g.device)[:, None] >> bits & 1) - 1
    signs = 2 * torch.randint(2, (batch, 1, kv_heads, 1), **where) - 1
    v.copy_(index[:, None].to(v.dtype) * signs.to(v.dtype))


def _equal(q, k, v, g, params):
    k.copy_(k[:, :1].clone().expand_as(k))


def _dominant_late(q, k, v, g, params):
    """A key near the end of each eighth, of logit 10, 20, … 80; others are ordinary."""
    import torch

    sk = k.shape[1]
    sizes = torch.zeros(sk, device=g.device)
    for eighth in range(8):
        end = (eighth + 1) * sk // 8
        back = int(torch.randint(7, (), generator=g, device=g.device))
        sizes[max(0, end - 1 - back)] = 2.5 * (eighth + 1)
    _logits(q, k, g, torch.full((q.shape[1],), 4.0, device=g.device), sizes)


def _climb(q, k, g, ramp):
    """Logits that climb with `ramp` (0 to 1 over the keys) by 60 to 200, depending on the row.

    Half of the rows end near 2^127, the end of fp32, with a quarter of all keys up there: a maximum
    that is nearly reached only once leaves sums that overflow or have no reciprocal.
    """
    import torch

    q.mul_(0.25)
    k.mul_(0.25)
    any_, near, coin = torch.rand(3, q.shape[1], generator=g, device=g.device)
    steep = torch.where(coin < 0.5, 3 + 7 * any_, 4 + 0.5 * near)  # 20 times: 115 to 130 octaves
    _logits(q, k, g, steep, 20 * ramp)


def _climb_early(q, k, v, g, params):
    _climb(q, k, g, 1 - _ramp(k))


def _climb_late(q, k, v, g, params):
    _climb(q, k, g, _ramp(k))


def _plateau(q, k, v, g, params):
    """Ordinary keys have logits near 0 and values near 1, a row's one dominant key has a logit of
    9 or more (13 octaves) and values near -1. All that a row sees beside it together has from
    0.4 % of its weight, where that logit is largest, up to a few times its weight.

    A row's dominant key is the first of all or the last that all of its stretch of queries see:
    whichever way a kernel walks, in half of the rows it meets it before it meets the others.
    """
    import torch

    sq, sk, d = q.shape[1], k.shape[1], q.shape[3]
    where = {"generator": g, "device": g.device}
    rows = torch.arange(sq, device=g.device)
    sees = (rows + sk - sq + 1 if params["causal"] else torch.full_like(rows, sk)).clamp(min=1)
    stretch = 1 + rows * (_STRETCHES - 1) // sq
    stretch[torch.rand(sq, **where) < 0.5] = 0
    starts = torch.arange(_STRETCHES - 1, device=g.device) * sq // (_STRETCHES - 1)
    at = torch.cat((starts.new_zeros(1), sees[starts] - 1))
    highest = (sees.log() + 5.5).clamp(min=9.5)
    logit = 9 + (highest - 9) * torch.rand(sq, **where)
    q.mul_(0.25)
    k.mul_(1 / 32)
    of = torch.arange(d, device=g.device) % _STRETCHES  # each stretch has coordinates of its own
    size = (d**0.25) * (d / _STRETCHES) ** -0.5
    q.add_(((of == stretch[:, None]) * (size / 2 * logit)[:, None])[:, None].to(q.dtype))
    v.add_(1)
    for n, key in enumerate(at.tolist()):
        k[:, key] += (of == n).to(k.dtype) * (2 * size)
    v[:, at.unique()] -= 2


def _negative(q, k, v, g, params):
    import torch

    sq, sk = q.shape[1], k.shape[1]
    low = torch.zeros(sk, device=g.device)
    for start in torch.randint(sk, (3,), generator=g, device=g.device).tolist():
        low[start : start + max(1, sk // 4)] = -17.0
    _logits(q, k, g, torch.full((sq,), 17.0, device=g.device), low)
    half = torch.rand(sq, generator=g, device=g.device) < 0.5
    _logits(q, k, g, -14.0 * half, torch.full((sk,), 14.0, device=g.device))


def _ternary(q, k, v, g, params):
    import torch

    for x, period in ((q, 5), (k, 7), (v, 3)):
        x.copy_(torch.randint(-1, 2, x.shape, generator=g, device=g.device, dtype=torch.int8))
        x[:, ::period] = 0
    if v.shape[2] > 1:
        v[:, :, -1] = 0


def _small_q_large_k(q, k, v, g, params):
    q.div_(128)
    k.mul_(128)


def _one_sign(q, k, v, g, params):
    v.abs_().add_(0.25)


def _logits(q, k, g, of_queries, of_keys):
    """Add of_queries[i]·of_keys[j] to the logit of query i and key j, in all heads alike.

    The direction has unit length, so the usual scale 1/√D asks for a factor D^¼ on both sides.
    """
    import torch

    d = q.shape[-1]
    signs = 2 * torch.randint(2, (d,), generator=g, device=g.device) - 1
    direction = signs * (d**0.25 / math.sqrt(d))
    for x, sizes in ((q, of_queries), (k, of_keys)):
        x.add_((sizes[:, None] * direction)[:, None].to(x.dtype))


def _ramp(k):
    """From 0 to 1 over the keys, flat in the first and the last quarter."""
    import torch

    return (2 * torch.linspace(0, 1, k.shape[1], device=k.device) - 0.5).clamp(0, 1)


_CHANGES = {
    "q4": _times_4,
    "q16": _times_16,
    "v-mean-10": _mean_10,
    "decisive": _decisive,
    "equal": _equal,
    "dominant-late": _dominant_late,
    "climb-early": _climb_early,
    "climb-late": _climb_late,
    "plateau": _plateau,
    "negative": _negative,
    "ternary": _ternary,
    "small-q-large-k": _small_q_large_k,
    "one-sign": _one_sign,
}
