"""What a row softmax costs, what it is called with, and what it should give.

torch is imported inside the functions: the engine reads `flops` and `bytes` without it. What the
judge of correctness asks for is listed in `avo_cute.measure.oracle.Reference`.
"""

import importlib.util
import math
import sys
from pathlib import Path

from avo_cute.measure.oracle import Output, Property, Sample

BF16_BYTES = 2
FLOPS_PER_ELEMENT = 5


def _sibling(stem):
    """Another file of this task, as a module."""
    spec = importlib.util.spec_from_file_location(
        f"{__name__}_{stem}", Path(__file__).with_name(f"{stem}.py")
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_points = _sibling("points")

INPUTS = ("x",)
OUTPUTS = (
    Output("out", "bfloat16", lambda params: (params["rows"], params["cols"]), "relative", rows=0),
)
FAMILIES = ("normal", "peaky", "shifted", "climbing", "masked", "equal", "zeros", "strided")
FEW = ("normal", "shifted", "climbing", "strided")
FORMS = ("direct", "online")
checks, hidden, class_of = _points.checks, _points.hidden, _points.class_of

_SMALL = 2**22  # elements: 32 MiB in fp64
_CHUNK32 = 2**26  # elements held at a time in fp32
SUM_OFF = 2.1e-3  # every element rounded to bf16 the same way: 2^-9, and fp32
SHIFTED = 1e-3  # fp32 differs in its last bits, so a few results are rounded the other way
_PADDING = 8  # columns between the rows of a strided matrix: 16 bytes


def flops(params):
    """5 per element: maximum, subtraction, exponential, sum, normalisation."""
    return float(FLOPS_PER_ELEMENT * params["rows"] * params["cols"])


def bytes(params):
    """Least traffic: every element is read once and written once, 2 bytes each way."""
    return float(2 * BF16_BYTES * params["rows"] * params["cols"])


def exponentials(params):
    """One per element."""
    return float(params["rows"] * params["cols"])


def inputs(params, seed, family="normal", device="cpu"):
    """x, bf16, (rows, cols); the same for the same `seed` on the same device.

    normal    N(0, 1)
    peaky     N(0, 16): one or two entries carry a row
    shifted   N(0, 1) - 300 in even rows, + 300 in odd ones: fails without the row's maximum
    climbing  from -200 up to 200 along the row: fails where a maximum of a part is kept
    masked    N(0, 1) - 300, and -inf for a random part of each row, always with whole stretches
    equal     one value per row: every result is 1 / cols
    zeros     0 and -0
    strided   N(0, 1), in rows that do not follow each other directly
    """
    import torch

    rows, cols = params["rows"], params["cols"]
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(rows, cols, generator=generator, device=device)
    if family == "peaky":
        x *= 16
    elif family == "shifted":
        x += torch.where(torch.arange(rows, device=device) % 2 == 0, -300.0, 300.0)[:, None]
    elif family == "climbing":
        x += torch.linspace(-200, 200, cols, device=device)
    elif family == "masked":
        x = _masked(x - 300, generator)
    elif family == "equal":
        x = x[:, :1].expand(rows, cols)
    elif family == "zeros":
        x = torch.copysign(torch.zeros((), device=device), x)
    elif family == "strided":
        wide = x.new_empty(rows, cols + _PADDING, dtype=torch.bfloat16)
        return wide[:, :cols].copy_(x)
    elif family != "normal":
        raise ValueError(f"unknown family {family!r}: choose one of {', '.join(FAMILIES)}")
    return x.to(torch.bfloat16).contiguous()


def case(params, family, seed, device):
    """(params, (x,)); no family adds to the params."""
    return params, (inputs(params, seed, family, device),)


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
    where = {"generator": generator, "device": x.device}
    columns = torch.arange(cols, device=x.device)
    start = torch.randint(cols, (rows, 1), **where)
    length = torch.randint(1, cols + 1, (rows, 1), **where)
    alive = (columns >= start) & (columns < start + length)
    alive |= (torch.rand(rows, cols, **where) < 0.5) & (columns < start)
    return x.masked_fill(~alive, -math.inf)


def small(params):
    return params["rows"] * params["cols"] <= _SMALL


def expected(params, inputs, form):
    return (reference(inputs[0], form),)


def whole32(params, inputs):
    """In fp32: rows in chunks."""
    import torch

    (x,) = inputs
    out = torch.empty(x.shape, device=x.device)
    step = max(1, _CHUNK32 // x.shape[1])
    for start in range(0, len(x), step):
        part = x[start : start + step].float()
        e = part.sub_(part.amax(dim=-1, keepdim=True)).exp_()
        torch.div(e, e.sum(dim=-1, keepdim=True), out=out[start : start + step])
    return (out,)


def sampled(params, inputs, seed, count, groups=None):
    """`count` random rows in fp64. All rows are one group."""
    import torch

    (x,) = inputs
    generator = torch.Generator(x.device).manual_seed(seed)
    rows = torch.randperm(len(x), generator=generator, device=x.device)[:count]
    return Sample((_direct(x[rows].double()),), lambda outputs: (outputs[0][rows],))


def properties(params, seed, device):
    """Rows sum to 1; their order does not matter; adding a constant does not."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    x = inputs(params, seed, "normal", device)
    order = torch.randperm(len(x), generator=generator, device=device)
    halves = torch.randint(-32, 32, x.shape, generator=generator, device=device) / 2
    halves = halves.to(torch.bfloat16)  # with 64 added they are still exact: steps of 1/2 there

    def off_one(runs):
        return float((runs[0][0].double().sum(-1) - 1).abs().max()), SUM_OFF

    def reordered(runs):
        return float((runs[0][0][order] != runs[1][0]).sum()), 0.0

    def shifted(runs):
        one, other = (run[0].double() for run in runs)
        return float((one - other).norm() / one.norm()), SHIFTED

    plain = (params, (x,))
    yield Property("rows sum to 1", (plain,), off_one)
    yield Property("rows reordered", (plain, (params, (x[order],))), reordered)
    cases = ((params, (halves,)), (params, (halves + 64,)))
    yield Property("constant added", cases, shifted)


def _fp8(params, inputs):
    import torch

    y = whole32(params, inputs)[0]
    top = y.amax(-1, keepdim=True)
    return ((y / top).to(torch.float8_e4m3fn).float() * top,)


# Results that the rules must refuse.
WRONG = {
    "1 / columns": lambda params, inputs: (
        inputs[0].new_full(inputs[0].shape, 1 / params["cols"]),
    ),
    "x": lambda params, inputs: (inputs[0],),
    "FP8": _fp8,
}
