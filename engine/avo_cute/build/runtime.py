"""What the imported functions of an object do, as far as its launches depend on it.

The signatures are the CUDA runtime's and apache-tvm-ffi's C API; the DSL's own three
(`cuda_dialect_init_library_once`, `cuda_dialect_unload_library_once`,
`CuteDSLRT_TVMFFISetRaisedCudaError`) are as the DSL's generated code calls them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ..records import Launch, Target
from .elf import CubinFile, CubinKernel
from .emulate import HostFault, Import, Machine

# Handles that mean nothing to host code: it can only hand them back.
_LIBRARY, _KERNELS, _STREAM, _DEVICE = 0x6000_0000_0000, 0x6100_0000_0000, 0x6200_0000_0000, 0
_CLUSTER, _PROGRAMMATIC_SERIALIZATION, _PROGRAMMATIC_EVENT = 4, 6, 7  # cudaLaunchAttributeID
_STATIC_SMEM = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_CONFIG = struct.Struct("<3I3IQQQI")  # cudaLaunchConfig_t
_ATTRIBUTE = struct.Struct("<I4x3I52x")  # cudaLaunchAttribute: id, union of 64 bytes
_MAX_ATTRIBUTES = 16


@dataclass(frozen=True, slots=True)
class Request:
    """A launch and the bytes of its kernel's parameters."""

    launch: Launch
    parameters: tuple[bytes, ...]


class Runtime:
    """CUDA and TVM FFI for one emulated process; its public attributes tell what was done."""

    def __init__(self, cubin: CubinFile, fatbin: str, target: Target) -> None:
        self.requests: list[Request] = []
        self.errors: list[str] = []
        self.unloaded = 0
        self._kernels: dict[int, CubinKernel] = {}
        self._cubin, self._fatbin, self._target = cubin, fatbin, target
        major, minor = divmod(int("".join(c for c in target.arch if c.isdigit())), 10)
        self._device = {  # cudaDeviceAttr -> value
            1: 1024,  # threads per block
            8: 48 << 10,  # shared memory per block without opting in
            10: 32,  # warp size
            16: target.sms,
            38: target.l2_bytes,
            75: major,
            76: minor,
            97: target.smem_bytes,  # shared memory per block with opting in
        }

    @property
    def imports(self) -> Mapping[str, Import]:
        """Name -> implementation of everything that an unmodified build imports."""
        return {
            "_cudaLibraryLoadData": self._load,
            "_cudaLibraryGetKernel": self._get_kernel,
            "_cudaGetDevice": self._get_device,
            "_cudaSetDevice": _succeed,
            "_cudaDeviceGetAttribute": self._device_attribute,
            "_cuKernelGetAttribute": self._kernel_attribute,
            "_cudaFuncSetAttribute": _succeed,
            "_cudaKernelSetAttributeForDevice": _succeed,
            "_cudaLaunchKernelEx": self._launch,
            "cuda_dialect_init_library_once": self._init_once,
            "cuda_dialect_unload_library_once": self._unload,
            "TVMFFIEnvGetStream": lambda *_: _STREAM,
            "TVMFFIErrorSetRaisedFromCStr": self._error,
            "TVMFFIErrorSetRaisedFromCStrParts": self._error_parts,
            "CuteDSLRT_TVMFFISetRaisedCudaError": self._cuda_error,
        }

    def _init_once(self, m: Machine, a: tuple[int, ...]) -> int:
        """(handle*, init, load, error): load the library and its kernels unless it is done."""
        if m.read(a[0], 8) != bytes(8):
            return 0
        holder = m.scratch
        m.write(holder, bytes(8))
        if m.call(a[1], holder) or m.call(a[2], holder, _DEVICE):
            self.errors.append("loading the kernels failed")
            return -1
        m.write(a[0], m.read(holder, 8))
        return 0

    def _unload(self, m: Machine, a: tuple[int, ...]) -> int:
        """(handle*): the library, or null where nothing was called before."""
        self.unloaded += int.from_bytes(m.read(a[0], 8), "little") in (0, _LIBRARY)
        return 0

    def _load(self, m: Machine, a: tuple[int, ...]) -> int:
        """(library*, code, …): only the one fatbin that was read from the object may be loaded."""
        if a[1] != m.address(self._fatbin):
            raise HostFault("host code loads other device code than the object's one cubin")
        m.write(a[0], _LIBRARY.to_bytes(8, "little"))
        return 0

    def _get_kernel(self, m: Machine, a: tuple[int, ...]) -> int:
        """(kernel*, library, name)."""
        name = m.cstring(a[2])
        for index, kernel in enumerate(self._cubin.kernels):
            if a[1] == _LIBRARY and kernel.name == name:
                handle = _KERNELS + 16 * index
                self._kernels[handle] = kernel
                m.write(a[0], handle.to_bytes(8, "little"))
                return 0
        raise HostFault(f"host code asks for the kernel {name[:80]!r}, which the cubin lacks")

    def _get_device(self, m: Machine, a: tuple[int, ...]) -> int:
        m.write(a[0], _DEVICE.to_bytes(4, "little"))
        return 0

    def _device_attribute(self, m: Machine, a: tuple[int, ...]) -> int:
        """(int*, attribute, device)."""
        if a[1] not in self._device:
            raise HostFault(f"host code asks for device attribute {a[1]}")
        m.write(a[0], self._device[a[1]].to_bytes(4, "little"))
        return 0

    def _kernel_attribute(self, m: Machine, a: tuple[int, ...]) -> int:
        """(int*, attribute, kernel, device)."""
        if a[1] != _STATIC_SMEM or a[2] not in self._kernels:
            raise HostFault(f"host code asks for kernel attribute {a[1]}")
        m.write(a[0], self._kernels[a[2]].static_smem.to_bytes(4, "little"))
        return 0

    def _launch(self, m: Machine, a: tuple[int, ...]) -> int:
        """(config*, kernel, parameters**)."""
        if a[1] not in self._kernels:
            raise HostFault("host code launches something that is no kernel of the cubin")
        kernel = self._kernels[a[1]]
        config = _CONFIG.unpack(m.read(a[0], _CONFIG.size))
        smem, stream, attributes, count = config[6:]
        if stream != _STREAM:
            raise HostFault("host code launches on another stream than the caller's")
        if count > _MAX_ATTRIBUTES:
            raise HostFault(f"a launch with {count} attributes")
        table = m.read(attributes, count * _ATTRIBUTE.size) if count else b""
        # The DSL always names attributes 2 and 6; a value of zero asks for nothing.
        asked = {i: value for i, *value in _ATTRIBUTE.iter_unpack(table) if any(value)}
        launch = Launch(
            kernel.name,
            config[0:3],
            config[3:6],
            tuple(asked.get(_CLUSTER, (1, 1, 1))),
            smem,
            not asked.keys().isdisjoint((_PROGRAMMATIC_SERIALIZATION, _PROGRAMMATIC_EVENT)),
            tuple(sorted(asked)),
        )
        sizes = kernel.parameters
        pointers = struct.unpack(f"<{len(sizes)}Q", m.read(a[2], 8 * len(sizes)))
        values = (m.read(p, size) for p, size in zip(pointers, sizes, strict=True))
        self.requests.append(Request(launch, tuple(values)))
        return 0

    def _error(self, m: Machine, a: tuple[int, ...]) -> int:
        """(kind, message)."""
        self.errors.append(f"{m.cstring(a[0])}: {m.cstring(a[1])}")
        return 0

    def _error_parts(self, m: Machine, a: tuple[int, ...]) -> int:
        """(kind, parts**, count); a part may be null."""
        count = min(a[2] & 0xFFFF_FFFF, 64)
        parts = struct.unpack(f"<{count}Q", m.read(a[1], 8 * count))
        text = "".join(m.cstring(part) for part in parts if part)
        self.errors.append(f"{m.cstring(a[0])}: {text}")
        return 0

    def _cuda_error(self, m: Machine, a: tuple[int, ...]) -> int:
        self.errors.append(f"CUDA error {a[0] & 0xFFFF_FFFF}")
        return 0


def _succeed(m: Machine, a: tuple[int, ...]) -> int:
    return 0
