"""Shapes of a row softmax that are checked, or drawn, besides the public workloads."""

import random

NARROW, WIDE = 4096, 16384  # most columns of the two classes
_MULTIPLE = 8  # of columns: rows start at 16 bytes
_ELEMENTS = 2**25  # of a public workload

_ROWS = (131, 1, 2, 1000)  # fewer than SMs, and no multiple of rows in a block
_OTHER_COLUMNS = (8, 1000, 4088, 4104, 10008)  # one vector, tails, next to the border of classes


def checks(judged):
    """Correctness-only workloads: odd numbers of rows of the judged widths, then other widths."""
    widths = list(dict.fromkeys(p["cols"] for p in judged))
    drawn = [_workload("check", rows, cols) for cols in widths for rows in _ROWS]
    return drawn + [_workload("check", 131, cols) for cols in _OTHER_COLUMNS if cols not in widths]


def hidden(seed, judged, count):
    """`count` workloads that no candidate could know; every second one at least, the first
    included, has a judged width."""
    rng = random.Random(seed)
    widths = [p["cols"] for p in judged]
    drawn = {}
    while len(drawn) < count:
        cols = rng.choice(widths)
        if len(drawn) % 2:
            cols = _MULTIPLE * rng.randint(512 // _MULTIPLE, WIDE // _MULTIPLE)
        rows = int(_ELEMENTS / cols * rng.uniform(0.3, 1.5)) | 1
        name, of, params = _workload("hidden", rows, cols)
        drawn[name] = (name, of, params)
    return list(drawn.values())


def class_of(params):
    """The class, as in task.toml: widths up to 4096 share a tuning, and so do wider ones."""
    return "narrow" if params["cols"] <= NARROW else "wide"


def _workload(kind, rows, cols):
    params = {"rows": rows, "cols": cols}
    return f"{kind}-{rows}x{cols}", class_of(params), params
