"""Linked objects in the measuring process: loaded, their launch contract checked, called.

Worker side. A candidate is here as machine code only: its host code, which judged itself by
emulation before, and its cubin.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import MachineFailed
from ..records import Param
from .device import DeviceFault, Tensor

FUNCTION = "kernel"  # as the build exports it
RUNTIME = "libcute_dsl_runtime.so"
RUNTIME_VARIABLE = "AVO_CUTE_DSL_RUNTIME"  # where the runtime is, on machines without the DSL

Plain = Sequence[Any]  # an argument as a task's build.py describes it
Arguments = Callable[[Mapping[str, Param]], Sequence[Plain]]


class ObjectArm:
    """One linked object as a contender (`device.Arm`).

    `arguments` gives the plain arguments of a call for a workload's parameters (or is the list, if
    there is only one workload): ("tensor", shape, dtype) | ("none",) | ("float", x) | ("int", n) |
    ("tuple", [...]). Tensors stand for inputs, then outputs, in their order.
    """

    def __init__(self, name: str, library: Path, arguments: Arguments | Sequence[Plain]) -> None:
        self.name = name
        self._arguments = arguments
        self._kernel = _load(library, name)

    def bind(
        self, params: Mapping[str, Param], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        """A launch on the default stream; `DeviceFault` where it is refused.

        Raises `ValueError` where the tensors do not fit the arguments: that is a defect of ours.
        """
        plain = self._arguments(params) if callable(self._arguments) else self._arguments
        tensors = deque((*inputs, *outputs))
        values = tuple(_value(entry, tensors) for entry in plain)
        if tensors:
            raise ValueError(f"{len(tensors)} tensors more than arguments")
        kernel, name = self._kernel, self.name

        # Nobody here makes another stream: this is torch's current one too.
        def launch() -> None:
            try:
                kernel(*values)
            except _REFUSALS as error:
                raise DeviceFault(f"the launch failed: {_line(error)}", name) from None

        return launch

    def signature(self) -> str:
        """Names and types of the parameters, in the object's own words; nothing is launched.

        A call without arguments is refused with them. Raises `DeviceFault` if it is not.
        """
        try:
            self._kernel()
        except _REFUSALS as error:
            if found := _SIGNATURE.search(str(error)):
                return found[1]
            raise DeviceFault(f"refuses a call with {_line(error)}", self.name) from None
        raise DeviceFault("a call without arguments is not refused", self.name)


def contract_breach(arm: ObjectArm, seed: ObjectArm) -> str:
    """How an object's parameters differ from the seed's for the same workload; empty if not.

    Before anything is launched: a kernel that reads its arguments otherwise would read or write
    where it must not.
    """
    expected = parameters(seed.signature())
    try:
        given = parameters(arm.signature())
    except DeviceFault as fault:
        return f"launch contract: {fault}"
    if len(given) != len(expected):
        return f"launch contract: {len(given)} parameters, the seed has {len(expected)}"
    for number, (mine, seeds) in enumerate(zip(given, expected, strict=True), 1):
        if mine != seeds:
            return f"launch contract: parameter {number} is {mine!r}, the seed has {seeds!r}"
    return ""


def parameters(signature: str) -> list[str]:
    """The parameters of "(a: Tensor([n0, n1], float32), b: int32)", one text each."""
    found, depth = [""], 0
    for character in signature:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [text.strip() for text in found if text.strip()]


def find_runtime() -> Path:
    """The DSL's runtime library, found without importing the DSL; `MachineFailed` if it is not."""
    if named := os.environ.get(RUNTIME_VARIABLE):
        path = Path(named)
        if not path.is_file():
            raise MachineFailed(f"{RUNTIME_VARIABLE}={named}: there is no such file")
        return path
    package = find_spec("nvidia_cutlass_dsl")
    places = [] if package is None else [*(package.submodule_search_locations or ())]
    # newest CUDA flavour first, as builds use it
    found = sorted(p for place in places for p in Path(place).glob(f"cu*/lib/{RUNTIME}"))
    if not found:
        remedy = f"pip install 'nvidia-cutlass-dsl[cu13]', or set {RUNTIME_VARIABLE}"
        raise MachineFailed(f"{RUNTIME} is missing: {remedy}")
    return found[-1]


def load_runtime(path: Path | None = None) -> None:
    """Make the DSL's runtime library available to objects; once, before the first is loaded."""
    path = path or find_runtime()
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise MachineFailed(f"{path} cannot be loaded: {error}") from None


def _load(library: Path, arm: str) -> Callable[..., None]:
    """The function of a linked object; `DeviceFault` if the library cannot be loaded."""
    import torch

    if not any(hasattr(torch.Tensor, name) for name in _EXCHANGE):
        # tvm_ffi would compile an extension now; it can do without, a microsecond slower
        os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
    from tvm_ffi import load_module

    try:
        function: Callable[..., None] = load_module(str(library.resolve()))[FUNCTION]
    except _REFUSALS as error:
        raise DeviceFault(f"{library.name} cannot be loaded: {_line(error)}", arm) from None
    return function


def _value(plain: Plain, tensors: deque[Tensor]) -> Any:
    """The Python value of an argument; takes the next of `tensors` where it is a tensor."""
    match plain:
        case ["tensor", [*shape], str(dtype)]:
            if not tensors:
                raise ValueError("more tensor arguments than tensors")
            tensor = tensors.popleft()
            if [*tensor.shape] != shape or str(tensor.dtype) != f"torch.{dtype}":
                given = f"{tensor.dtype} {[*tensor.shape]}"
                raise ValueError(f"a tensor is {given}, the argument is {dtype} {shape}")
            return tensor
        case ["none"]:
            return None
        case ["float", int() | float() as value]:
            return float(value)
        case ["int", int(value)]:
            return value
        case ["tuple", [*items]]:
            return tuple(_value(item, tensors) for item in items)
    raise ValueError(f"a task's arguments() returned {plain!r}")


def _line(error: BaseException) -> str:
    """An error in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


_EXCHANGE = ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__")
_SIGNATURE = re.compile(r"Expects \d+ parameters when calling: `\w+\((.*)\)`", re.DOTALL)
# What tvm_ffi turns an object's error into: the kind is the object's choice, these are all kinds.
_REFUSALS = (
    RuntimeError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    AssertionError,
    MemoryError,
)
