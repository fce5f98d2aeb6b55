"""What holds of every attention kernel, without a reference: see `avo_cute.measure.oracle`."""

import random

from avo_cute.measure.compare import few_rows
from avo_cute.measure.oracle import Property

ULP_BELOW_1 = 2.0**-8  # of bf16
MEAN_OF_ONES = 1e-3  # P rounded to nearest leaves O = 1 exactly; towards zero it takes 3e-3 off
PERMUTED = 4.5e-3  # P and O are rounded twice, around different maxima: √2 of one kernel's error


def properties(params, seed, device, case):
    """Yields each when it is asked for, since inputs of large workloads are large."""
    rng = random.Random(seed)
    q, k, v = case(params, "normal", rng.getrandbits(62), device)[1]
    yield _ones(params, q, k, v)
    if not params["causal"]:
        yield _permuted(params, q, k, v, rng)
    first = max(0, params["seqlen_q"] - params["seqlen_k"])  # queries before it see no key
    if params["causal"] and first < params["seqlen_q"] - 1:
        yield _future(params, q, k, v, rng.randrange(first, params["seqlen_q"] - 1))
    if params["batch"] > 1:
        yield _alone(params, q, k, v, rng.randrange(params["batch"]))


def _ones(params, q, k, v):
    """V = 1 gives O = 1, to a unit in the last place and without a bias."""
    import torch

    first = max(0, params["seqlen_q"] - params["seqlen_k"]) if params["causal"] else 0

    def judge(runs):
        off = runs[0][0][:, first:].double() - 1
        if not off.numel():
            return 0.0, 1.0
        return max(float(off.abs().max()) / ULP_BELOW_1, abs(float(off.mean())) / MEAN_OF_ONES), 1.0

    return Property("V=1 gives O=1", ((params, (q, k, torch.ones_like(v))),), judge)


def _permuted(params, q, k, v, rng):
    """The order of keys decides nothing but rounding."""
    import torch

    g = torch.Generator(q.device).manual_seed(rng.getrandbits(62))
    order = torch.randperm(k.shape[1], generator=g, device=q.device)
    rows = params["batch"] * params["heads"] * params["seqlen_q"]

    def judge(runs):
        one, other = (run[0].float() for run in runs)
        return float((one - other).norm() / one.norm()), PERMUTED * few_rows(rows)

    cases = ((params, (q, k, v)), (params, (q, k[:, order], v[:, order])))
    return Property("keys permuted", cases, judge)


def _future(params, q, k, v, last):
    """Keys and values that queries up to `last` must not see may be anything."""
    seen = last + 1 + params["seqlen_k"] - params["seqlen_q"]
    others = [x.clone() for x in (k, v)]
    for x in others:
        x[:, seen:] = x[:, seen:].flip(0, 1, 2).mul_(8)

    def judge(runs):
        (o, lse), (other_o, other_lse) = runs
        different = _differing(o[:, : last + 1], other_o[:, : last + 1])
        return different + _differing(lse[..., : last + 1], other_lse[..., : last + 1]), 0.0

    return Property("future keys changed", ((params, (q, k, v)), (params, (q, *others))), judge)


def _alone(params, q, k, v, b):
    """An element of a batch is what it would be without the others."""

    def judge(runs):
        together, alone = runs
        return float(
            sum(_differing(x[b : b + 1], y) for x, y in zip(together, alone, strict=True))
        ), 0.0

    single = tuple(x[b : b + 1].clone() for x in (q, k, v))
    return Property(
        "batch element alone", ((params, (q, k, v)), ({**params, "batch": 1}, single)), judge
    )


def _differing(one, other):
    """Elements whose bits differ."""
    from avo_cute.measure.guarded import differing

    return float(differing(one, other))
