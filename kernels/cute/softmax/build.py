"""How the row softmax is compiled for one workload, on a machine without a GPU.

`prepare` and `compile` run inside the sandbox, in the candidate's process; `arguments` is also
called by the engine, so this module imports nothing heavy at its top.
"""

import sys


def prepare(target):
    """Nothing stands in for a GPU: the host code asks no driver. Only torch is kept out.

    tvm_ffi imports torch if it can, which would take longer than all compilations together.
    A candidate that imports torch itself still gets it.
    """
    absent = "torch" not in sys.modules
    if absent:
        sys.modules["torch"] = None
    import tvm_ffi  # noqa: F401

    if absent:
        del sys.modules["torch"]


def compile(params, target):
    """What the candidate's own compile function returns: the same object for the same columns."""
    from row_softmax.softmax import compile_row_softmax

    return compile_row_softmax(params["cols"])


def arguments(params, target):
    """One call: x and out. The stream is not an argument, it comes from the environment."""
    shape = (params["rows"], params["cols"])
    return [("tensor", shape, "bfloat16"), ("tensor", shape, "bfloat16")]
