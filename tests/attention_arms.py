"""Attention kernels in torch, honest and dishonest, as contenders for the judge of correctness.

`Flash` walks over tiles of keys from the last to the first with a running maximum, P in bf16 and
fp32 sums: the arithmetic of FlashAttention. Each field that differs from its default makes another
kernel; `before` and `after` run around the arithmetic and can spoil anything.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch


def nothing(params, inputs, outputs):
    pass


def nearest(p):
    return p.to(torch.bfloat16).float()


def toward_zero(p):
    return (p.view(torch.int32) & ~0xFFFF).view(torch.float32)


def fp8(p):
    return p.to(torch.float8_e4m3fn).float()


def cubic(x):
    """2^x by a polynomial of degree 3 on [0, 1), as GPUs without enough exponential units do."""
    whole = x.clamp(min=-126).floor()
    part = x.clamp(min=-126) - whole
    poly = 1 + part * (0.695146143436431 + part * (0.227564394474029 + part * 0.077119089663028))
    return torch.where(x < -126, 0.0, torch.ldexp(poly, whole))


def times_reciprocal(o, total):
    """o / total the way GPUs do it: a reciprocal that is too small for a normal number is 0."""
    reciprocal = 1 / total
    return o * reciprocal.masked_fill(reciprocal.abs() < torch.finfo(o.dtype).tiny, 0.0)


@dataclass(frozen=True)
class Flash:
    """An `Arm`: `bind` gives a launch that writes O and the log-sum-exp."""

    name: str = "flash"
    tile: int = 64
    forwards: bool = False  # over the tiles of keys
    lazy: float = 0.0  # log2 by which the maximum may grow before anything is rescaled
    running: bool = True  # False: the first tile's maximum is kept for good
    maximum: bool = True  # False: none is subtracted
    round_p: Callable = nearest
    exp2: Callable = torch.exp2
    skip: Callable = lambda keys: keys < 0  # mask over key indices
    ignored: float = math.inf  # log2 by which a tile must lie below the maximum to be left out
    divide: Callable = torch.div
    scale: Callable = lambda params: params.get("scale", params["head_dim"] ** -0.5)
    before: Callable = nothing
    after: Callable = nothing

    def bind(self, params, inputs, outputs):
        def launch():
            self.before(params, inputs, outputs)
            out, lse = self.attention(params, *inputs)
            outputs[0].copy_(out)
            outputs[1].copy_(lse)
            self.after(params, inputs, outputs)

        return launch

    def attention(self, params, q, k, v):
        group = q.shape[2] // k.shape[2]
        q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        sq, sk = q.shape[2], k.shape[2]
        m = q.new_full((*q.shape[:3], 1), -math.inf)
        total, o = torch.zeros_like(m), torch.zeros_like(q)
        rows = torch.arange(sq, device=q.device)[:, None]
        starts = range(0, sk, self.tile)
        for start in starts if self.forwards else reversed(starts):
            keys = torch.arange(start, min(start + self.tile, sk), device=q.device)
            s = q @ k[:, :, keys].mT * (self.scale(params) * math.log2(math.e))
            hidden = self.skip(keys) | (params["causal"] & (keys > rows + sk - sq))
            s = s.masked_fill(hidden, -math.inf)
            new = self.next_maximum(m, s.amax(-1, keepdim=True))
            anchor = new.masked_fill(new == -math.inf, 0.0)
            s = s.masked_fill(new - s.amax(-1, keepdim=True) > self.ignored, -math.inf)
            shrink = torch.exp2(m - anchor) if self.maximum else torch.ones_like(m)
            p = self.exp2(s - anchor)
            total = total * shrink + p.sum(-1, keepdim=True)
            o = o * shrink + self.round_p(p) @ v[:, :, keys]
            m = new
        o = self.divide(o, total.masked_fill(total == 0, 1.0))
        lse = (m + total.log2()).squeeze(-1) * math.log(2)
        return o.transpose(1, 2), lse

    def next_maximum(self, m, here):
        if not self.maximum:
            return torch.zeros_like(m)
        if not self.running:
            return torch.where(m == -math.inf, here, m)
        return torch.where(here > m + self.lazy, here, m)
