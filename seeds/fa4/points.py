"""Shapes of attention that are checked, or drawn, besides the public workloads.

A workload's class says which of its parameters choose a kernel: head dim, mask and the ratio of
query heads to key heads. The judged ones are called as in task.toml, so that odd shapes of the same
kernel are built together with them, and usually are the same object.
"""

import math
import random

JUDGED_HEAD_DIM = 128
_TOKENS = 32768
_LAUNCH_FLOPS = 6e12  # 10 to 15 ms on an H200
_RATIOS, _HEAD_DIMS = (1, 4, 8), (64, 96, 128)

# (batch, seqlen_q, seqlen_k, kv_heads). Tiles have 64, 128, 144 or 192 rows. The first one also
# serves the self-test, so wrong versions must be wrong there: with one key, V itself is right.
_ODD_SHAPES = (
    (2, 113, 203, 2),
    (1, 1, 1, 1),
    (2, 127, 127, 2),
    (1, 128, 128, 1),
    (2, 129, 129, 2),
    (3, 203, 203, 1),  # not a multiple of 8
    (1, 300, 65, 2),  # causal: most queries see no key
    (2, 1, 777, 3),  # decoding
    (1, 641, 127, 1),
    (9, 100, 130, 3),
    (7, 520, 520, 5),  # more tiles than SMs, by a part of a wave
    (2, 1023, 1025, 1),
    (1, 130, 33001, 1),  # keys beyond 32,768
    (1, 131, 149, 35),  # heads beyond 32 …
    (37, 65, 70, 1),  # … and batch elements
)
_LONGEST_ODD = 1023  # of both lengths, above
_OTHER_SHAPES = ((2, 191, 193, 2), (8, 145, 63, 1), (1, 577, 577, 3))
# Kernels next to the judged ones: (head_dim, ratio, which mask). 3 and 6 divide no tile.
_OTHERS = ((64, 1, True), (96, 1, False), (128, 3, True), (128, 6, False))


def checks(judged):
    """Correctness-only workloads: odd shapes of the judged kernels first, then a few of others."""
    drawn = []
    for causal, ratio, head_dim in _variants(judged):
        shapes = (*_ODD_SHAPES, *_long_shapes(judged, (causal, ratio, head_dim)))
        drawn += [_workload(s, ratio, head_dim, causal, "check") for s in shapes]
    for head_dim, ratio, causal in _OTHERS:
        drawn += [_workload(s, ratio, head_dim, causal, "check") for s in _OTHER_SHAPES]
    return list({name: (name, of, params) for name, of, params in drawn}.values())


def hidden(seed, judged, count):
    """`count` workloads of about 32k tokens that no candidate could know; every second one at
    least, the first included, runs a judged kernel."""
    rng = random.Random(seed)
    variants = _variants(judged)
    drawn = {}
    while len(drawn) < count:
        if len(drawn) % 2 == 0:
            causal, ratio, head_dim = rng.choice(variants)
        else:
            causal, ratio = rng.random() < 0.5, rng.choice(_RATIOS)
            head_dim = rng.choice(_HEAD_DIMS)
        name, of, params = _workload(_shape(rng, ratio, causal), ratio, head_dim, causal, "hidden")
        drawn[name] = (name, of, params)
    return list(drawn.values())


def class_of(params):
    """The workload class: judged ones as in task.toml, "mha-causal", "gqa8-full", …"""
    ratio = params["heads"] // params["kv_heads"]
    heads = "mha" if ratio == 1 else f"gqa{ratio}"
    mask = "causal" if params["causal"] else "full"
    other = "" if params["head_dim"] == JUDGED_HEAD_DIM else f"-d{params['head_dim']}"
    return f"{heads}-{mask}{other}"


def _long_shapes(judged, variant):
    """Odd shapes as long as the judged ones of a variant, with one head of K and V: who chooses a
    kernel by length is checked, and not only timed, on every kernel that is chosen."""
    of = [p for p in judged if _variants([p]) == [variant]]
    lengths = dict.fromkeys((p["seqlen_q"], p["seqlen_k"]) for p in of)
    return [(1, sq - 37, sk - 21, 1) for sq, sk in lengths if min(sq, sk) > _LONGEST_ODD]


def _shape(rng, ratio, causal):
    """One draw: lengths, then as many heads as a launch may cost, then batches of 32k tokens."""
    sk = _length(rng)
    sq = sk
    if rng.random() < 0.3:  # longer keys: a chunk of a prompt behind what is cached
        sq = max(1, sk // rng.choice((2, 3, 5, 8)))
    batch = max(1, _TOKENS // sk)
    while (one := _flops(batch * ratio, sq, sk, causal)) > _LAUNCH_FLOPS:
        sq //= 2
    most = min(16 // ratio + 1, int(_LAUNCH_FLOPS / one))
    return batch, sq, sk, rng.randint(max(1, most // 2), most)


def _flops(heads, sq, sk, causal):
    """Of a launch at the judged head dim."""
    pairs = sq * (sk - sq / 2) if causal else sq * sk
    return 4.0 * heads * pairs * JUDGED_HEAD_DIM


def _length(rng):
    """1k to 64k: odd, a tile more or less by one, 2^k or 3·2^k."""
    kind = rng.randrange(4)
    if kind == 0:
        return 2 * int(math.exp(rng.uniform(math.log(512), math.log(32768)))) + 1
    if kind == 1:
        return 128 * int(math.exp(rng.uniform(math.log(8), math.log(511)))) + rng.choice((-1, 1))
    if kind == 2:
        return 2 ** rng.randint(10, 16)
    return 3 * 2 ** rng.randint(9, 14)


def _variants(judged):
    """(causal, ratio, head_dim) of the judged kernels, each once, in their order."""
    found = ((p["causal"], p["heads"] // p["kv_heads"], p["head_dim"]) for p in judged)
    return list(dict.fromkeys(found))


def _workload(shape, ratio, head_dim, causal, kind):
    batch, sq, sk, kv_heads = shape
    params = {
        "batch": batch,
        "seqlen_q": sq,
        "seqlen_k": sk,
        "heads": kv_heads * ratio,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "causal": causal,
    }
    of = class_of(params)
    return f"{kind}-{of}-b{batch}-q{sq}-k{sk}-h{kv_heads * ratio}", of, params
