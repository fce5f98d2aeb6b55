"""What a row softmax costs, what it is called with, and what it should give.

torch is imported inside the functions: the engine reads `flops` and `bytes` without it.
"""

import math

BF16_BYTES = 2
FLOPS_PER_ELEMENT = 5

FAMILIES = ("normal", "peaky", "shifted", "climbing", "masked", "equal", "zeros")


def flops(params):
    """5 per element: maximum, subtraction, exponential, sum, normalisation."""
    return float(FLOPS_PER_ELEMENT * params["rows"] * params["cols"])


def bytes(params):
    """Least traffic: every element is read once and written once, 2 bytes each way."""
    return float(2 * BF16_BYTES * params["rows"] * params["cols"])


def inputs(params, seed, family="normal"):
    """x, bf16 on the CPU, (rows, cols); the same for the same `seed`.

    normal    N(0, 1)
    peaky     N(0, 16): one or two entries carry a row
    shifted   N(0, 1) - 300 in even rows, + 300 in odd ones: fails without the row's maximum
    climbing  from -200 up to 200 along the row: fails where a maximum of a part is kept
    masked    N(0, 1) - 300, and -inf for a random part of each row, always with whole stretches
    equal     one value per row: every result is 1 / cols
    zeros     0 and -0
    """
    import torch

    rows, cols = params["rows"], params["cols"]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, cols, generator=generator)
    if family == "peaky":
        x *= 16
    elif family == "shifted":
        x += torch.where(torch.arange(rows) % 2 == 0, -300.0, 300.0)[:, None]
    elif family == "climbing":
        x += torch.linspace(-200, 200, cols)
    elif family == "masked":
        x = _masked(x - 300, generator)
    elif family == "equal":
        x = x[:, :1].expand(rows, cols)
    elif family == "zeros":
        x = torch.copysign(torch.zeros(()), x)
    elif family != "normal":
        raise ValueError(f"unknown family {family!r}: choose one of {', '.join(FAMILIES)}")
    return x.to(torch.bfloat16).contiguous()


def reference(x, form="direct"):
    """softmax(x) along the last dimension in fp64, in one of two forms that share nothing.

    "direct" subtracts the row's maximum and divides by the sum. "online" walks over the columns
    in chunks with a running log-sum-exp and ends with one exponential per element.
    """
    if form == "direct":
        return _direct(x.double())
    if form == "online":
        return _online(x.double())
    raise ValueError(f"unknown form {form!r}: choose direct or online")


def _direct(x):
    e = (x - x.amax(dim=-1, keepdim=True)).exp()
    return e / e.sum(dim=-1, keepdim=True)


def _online(x, chunk=96):
    import torch

    total = torch.full((*x.shape[:-1], 1), -math.inf, dtype=torch.float64, device=x.device)
    for part in x.split(chunk, dim=-1):
        total = torch.logaddexp(total, part.logsumexp(dim=-1, keepdim=True))
    return (x - total).exp()


def _masked(x, generator):
    """Each row keeps one random stretch at least, and half of the elements elsewhere."""
    import torch

    rows, cols = x.shape
    columns = torch.arange(cols)
    start = torch.randint(cols, (rows, 1), generator=generator)
    length = torch.randint(1, cols + 1, (rows, 1), generator=generator)
    alive = (columns >= start) & (columns < start + length)
    alive |= (torch.rand(rows, cols, generator=generator) < 0.5) & (columns < start)
    return x.masked_fill(~alive, -math.inf)
