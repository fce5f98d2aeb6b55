"""Which kernels an object launches for given arguments: grid, block, cluster, shared memory.

The object's own host code decides, so it is asked: called as apache-tvm-ffi calls it, on an
emulated CPU, twice. Tensors are described, not allocated; host code that looks at their contents,
keeps anything from call to call or differs in the second is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..records import Failure, Launch, Status, Target
from .elf import CubinFile, ObjectFile, read_cubin, read_object
from .emulate import HostFault, Machine
from .runtime import Runtime

ENTRY = "__tvm_ffi_kernel"
DESTRUCTOR = "__cute_internal_kernel___dtor_cuda_dialect_unload_library_once"
_NONE, _INT, _BOOL, _FLOAT, _DLTENSOR, _TENSOR, _ARRAY = 0, 1, 2, 3, 7, 70, 71  # TVMFFITypeIndex
_CUDA = 2  # kDLCUDA
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}  # DLDataTypeCode
_DEVICE_MEMORY = 0x7000_0000_0000  # never mapped


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in device memory. `strides` in elements, `dtype` as "bfloat16", `align` in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    align: int = 1024


@dataclass(frozen=True, slots=True)
class Scalar:
    """A Python int, bool or float."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Nothing:
    """Python's None."""


@dataclass(frozen=True, slots=True)
class Tuple:
    """A tuple of arguments."""

    items: tuple[Argument, ...]


Argument = Tensor | Scalar | Nothing | Tuple


def launches(
    object_bytes: bytes, arguments: Sequence[Argument], target: Target
) -> tuple[Launch, ...] | Failure:
    """The launches of one call with these arguments on `target`, in order.

    A `Failure` (audit-failed) says what the host code did instead; where it refuses the arguments
    the reason is its own message, which spells the expected signature.
    """
    obj = read_object(object_bytes)
    if isinstance(obj, Failure):
        return obj
    cubin = read_cubin(obj.cubin)
    if isinstance(cubin, Failure):
        return cubin
    try:
        return _emulate(obj, cubin, arguments, target)
    except HostFault as fault:
        return Failure(Status.AUDIT_FAILED, f"launch: {fault}")


def parse_arguments(plain: Sequence[Any]) -> tuple[Argument, ...]:
    """Arguments from the plain tuples of a task's `arguments`, tensors in row-major order.

    ("tensor", shape, dtype) | ("none",) | ("float", x) | ("int", n) | ("tuple", [...])
    """
    return tuple(_parse_argument(entry) for entry in plain)


def _parse_argument(plain: Any) -> Argument:
    match plain:
        case ["tensor", [*shape], str(dtype)]:
            sizes = tuple(int(n) for n in shape)
            return Tensor(sizes, _row_major(sizes), dtype)
        case ["none"]:
            return Nothing()
        case ["float", int() | float() as value]:
            return Scalar(float(value))
        case ["int", int(value)]:
            return Scalar(value)
        case ["tuple", [*items]]:
            return Tuple(parse_arguments(items))
    raise ValueError(f"a task's arguments() returned {plain!r}")


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _emulate(
    obj: ObjectFile, cubin: CubinFile, arguments: Sequence[Argument], target: Target
) -> tuple[Launch, ...]:
    runtime = Runtime(cubin, obj.symbols[obj.binary].name, target)
    machine = Machine(obj, runtime.imports)
    values = _Writer(machine)
    packed = machine.place(b"".join(values.value(a, inside=False) for a in arguments))
    entry, result = machine.address(ENTRY), machine.scratch + 64
    seen = []
    for _ in range(2):
        machine.write(result, bytes(16))
        code = machine.call(entry, 0, packed, len(arguments), result)
        if code or runtime.errors:
            said = "; ".join(runtime.errors) or f"it returned {code} without a message"
            raise HostFault(f"the call was refused: {said}")
        seen.append((tuple(runtime.requests), machine.state()))
        runtime.requests.clear()
    if seen[0] != seen[1]:
        raise HostFault("host code behaves differently when it is called again")
    machine.call(machine.address(DESTRUCTOR))
    if runtime.unloaded != 1 or runtime.requests:
        raise HostFault("the destructor does something else than unload the library")
    return tuple(request.launch for request in seen[0][0])


class _Writer:
    """Lays arguments out in a machine's memory as apache-tvm-ffi's C ABI has them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._tensors = 0

    def value(self, argument: Argument, *, inside: bool) -> bytes:
        """The 16 bytes of a TVMFFIAny. Containers hold tensor objects, calls hold DLTensor*."""
        match argument:
            case Nothing():
                return struct.pack("<iIq", _NONE, 0, 0)
            case Scalar(bool(value)):
                return struct.pack("<iIq", _BOOL, 0, value)
            case Scalar(int(value)):
                return struct.pack("<iIq", _INT, 0, value)
            case Scalar(value):
                return struct.pack("<iId", _FLOAT, 0, value)
            case Tensor():
                data = self._dltensor(argument)
                kind, data = (_TENSOR, _header(_TENSOR) + data) if inside else (_DLTENSOR, data)
                return struct.pack("<iIQ", kind, 0, self._machine.place(data))
            case Tuple(items):
                held = self._machine.place(b"".join(self.value(i, inside=True) for i in items))
                cell = struct.pack("<QqqQ", held, len(items), len(items), 0)
                return struct.pack("<iIQ", _ARRAY, 0, self._machine.place(_header(_ARRAY) + cell))

    def _dltensor(self, tensor: Tensor) -> bytes:
        rank = len(tensor.shape)
        shape = self._machine.place(struct.pack(f"<{rank}q", *tensor.shape))
        strides = self._machine.place(struct.pack(f"<{rank}q", *tensor.strides))
        self._tensors += 1
        address = _DEVICE_MEMORY + (self._tensors << 36) + tensor.align
        name = tensor.dtype.rstrip("0123456789")
        bits = int(tensor.dtype[len(name) :] or 8)
        code = _CODES[name]
        return struct.pack("<QiiiBBHQQQ", address, _CUDA, 0, rank, code, bits, 1, shape, strides, 0)


def _header(kind: int) -> bytes:
    """A TVMFFIObject with one reference and no deleter."""
    return struct.pack("<QiIQ", 1, kind, 0, 0)
