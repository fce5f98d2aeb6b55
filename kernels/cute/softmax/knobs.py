"""What the search operator may turn in the row softmax, and what keeps a choice legal."""

from avo_cute.knobs import Knob, Site

_FILE = "row_softmax/softmax.py"
_CLASSES = {"narrow": 4096, "wide": 16384}  # workload class -> its limit in _TUNING
_MAX_THREADS = 1024
_MAX_ELEMENTS = 128  # of a row in one thread: as many registers hold the exponentials


def _knob(name, choices, title, effect, kind="categorical"):
    """One knob per workload class: the same entry of that class's line of `_TUNING`."""
    return [
        Knob(
            name=f"{name}_{workload_class}",
            file=_FILE,
            site=Site(f'_TUNING = {{{limit}: {{"{name}": SLOT}}}}'),
            choices=tuple(choices),
            title=f"{title} of {workload_class} rows",
            effect=effect,
            classes=(workload_class,),
            kind=kind,
        )
        for workload_class, limit in _CLASSES.items()
    ]


KNOBS = (
    *_knob(
        "threads_per_row",
        ("32", "64", "128", "256", "512", "1024"),
        "threads per row",
        "more loads in flight per row, against wider reductions and fewer elements a thread",
        kind="ordinal",
    ),
    *_knob(
        "rows_per_cta",
        ("1", "2", "4", "8"),
        "rows per block",
        "fewer and larger blocks; a barrier then waits for all of their rows",
        kind="ordinal",
    ),
    *_knob(
        "vector",
        ("2", "4", "8"),
        "elements per load and store",
        "fewer memory instructions, against shorter pieces that fill a short row evenly",
        kind="ordinal",
    ),
    *_knob(
        "reduction",
        ('"online"', '"two-step"'),
        "the reduction",
        "one barrier and a correction, against two barriers and none",
    ),
    *_knob(
        "normalise",
        ('"product"', '"exponent"'),
        "the normalisation",
        "no product with 1/sum and no correction, against a second exponential per element",
    ),
    *_knob(
        "exponent",
        ('"subtract"', '"fold"'),
        "the exponent's form",
        "one FMA per element instead of a subtraction and a product",
    ),
    *_knob(
        "load",
        ('"normal"', '"first"', '"bypass"'),
        "the L1 policy of loads",
        "the row is read once, so a line in L1 is of no use afterwards",
    ),
    *_knob(
        "store",
        ('"back"', '"streaming"'),
        "the L2 policy of stores",
        "results that nobody reads soon make room for inputs",
    ),
)


def check(values, target):
    """Why these values cannot be built or would be hopeless; empty if they are legal.

    `values` maps names of knobs to expressions. A class is judged only where all its sizes are
    literal numbers: what somebody rewrote by hand is left to the compiler.
    """
    return [
        reason
        for workload_class, limit in _CLASSES.items()
        for reason in _check_class(values, workload_class, limit)
    ]


def _check_class(values, workload_class, cols):
    names = [f"{name}_{workload_class}" for name in ("threads_per_row", "rows_per_cta")]
    sizes = [values.get(name, "") for name in names]
    if not all(size.isdecimal() for size in sizes):
        return []
    threads, rows = map(int, sizes)
    if threads % 32 or not 32 <= threads <= _MAX_THREADS:
        return [f"{names[0]}: {threads} threads are not 1 to 32 whole warps"]
    if threads * rows > _MAX_THREADS:
        return [f"{names[1]}: {threads * rows} threads in a block exceed {_MAX_THREADS}"]
    if cols // threads > _MAX_ELEMENTS:
        return [f"{names[0]}: {cols // threads} elements in a thread would spill"]
    return []
