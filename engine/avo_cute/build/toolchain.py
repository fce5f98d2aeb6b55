"""Which released packages decide an object's bytes."""

from __future__ import annotations

from functools import cache
from importlib import metadata

from ..errors import MachineFailed

DSL = "nvidia-cutlass-dsl"
_PARTS = ("quack-kernels", "apache-tvm-ffi")


@cache
def toolchain() -> str:
    """`Toolchain:` of a build, e.g. `nvidia-cutlass-dsl 4.8.1 cu13; quack-kernels 0.6.5; …`."""
    dsl = f"{DSL} {version(DSL)} {flavour()}"
    return "; ".join([dsl, *(f"{name} {version(name)}" for name in _PARTS)])


def flavour() -> str:
    """The CUDA flavour that builds use: the newest one installed (see worker.hide_driver)."""
    for name in ("cu14", "cu13", "cu12"):
        if installed(f"{DSL}-libs-{name}"):
            return name
    raise MachineFailed(f"{DSL} has no CUDA libraries: pip install '{DSL}[cu13]'")


def version(name: str) -> str:
    """The installed version; `MachineFailed` names the package to install."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        raise MachineFailed(f"{name} is not installed: pip install {name}") from None


def installed(name: str) -> bool:
    """Whether a distribution is there."""
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
