"""Objects become libraries that the measuring process can load: `cc -shared`, in the sandbox.

The judged bytes are what is linked: they are read once, and a private copy goes to the linker.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from ..build.elf import read_object
from ..errors import MachineFailed
from ..records import Failure
from ..sandbox import Limits, Pool, read_regular, remove, run
from .kernel import RUNTIME, find_runtime

MAX_LIBRARY_BYTES = 32 << 20
_PLACES = "/usr/bin:/bin"  # where a confined command finds programs
_SHARED_OBJECT = 3  # ET_DYN
_LIMITS = Limits(wall_s=60.0, cpu_s=60)


def link(objects: Mapping[str, Path], folder: Path, layer: str | None = None) -> Mapping[str, Path]:
    """Library per workload name, from `folder` where it is there already (named by content).

    Objects of the same bytes share one library. `layer` is the sandbox layer to link in. Raises
    `MachineFailed`: an object that was audited can be linked, unless this machine is at fault.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = {path: path.read_bytes() for path in set(objects.values())}
    names = {path: sha256(data).hexdigest() for path, data in contents.items()}
    distinct = {names[path]: data for path, data in contents.items()}
    with Pool(4, "link") as pool:
        made = pool.map(lambda data: _library(data, folder, layer), distinct.values())
        libraries = dict(zip(distinct, made, strict=True))
    return {workload: libraries[names[path]] for workload, path in objects.items()}


def _library(data: bytes, folder: Path, layer: str | None) -> Path:
    library = folder / f"{sha256(data).hexdigest()}.so"
    cubin = _cubin(data)
    if not (library.is_file() and _made_of(library.read_bytes(), cubin)):
        scratch = Path(tempfile.mkdtemp(prefix="link-", dir=folder))
        try:
            made = _linked(data, scratch, layer)
            if not _made_of(made, cubin):
                raise MachineFailed("cc left another library than it was asked for")
            (scratch / "checked.so").write_bytes(made)
            (scratch / "checked.so").rename(library)
        finally:
            remove(scratch)
    return library


def _linked(data: bytes, scratch: Path, layer: str | None) -> bytes:
    if shutil.which("cc", path=_PLACES) is None:
        raise MachineFailed("objects cannot be linked: install a C compiler (apt install gcc)")
    source, runtime = scratch / "kernel.o", find_runtime().resolve()
    source.write_bytes(data)
    output = scratch / "out" / "kernel.so"
    output.parent.mkdir()
    # By name and not by path: the library then asks for the runtime that is loaded already.
    wanted = [f"-L{runtime.parent}", f"-l:{runtime.name}"]
    done = run(
        ["cc", "-shared", "-o", str(output), str(source), *wanted],
        read=[source, runtime],
        write=[output.parent],
        limits=_LIMITS,
        layer=layer,
    )
    made = read_regular(output, MAX_LIBRARY_BYTES)
    if done.returncode != 0 or source.read_bytes() != data or made is None:
        said = (done.stderr.strip() or "no message").splitlines()[-1][:300]
        raise MachineFailed(f"cc cannot link an object with {RUNTIME}: {said}")
    return made


def _cubin(data: bytes) -> bytes:
    found = read_object(data)
    if isinstance(found, Failure):
        raise MachineFailed(f"not an object to link: {found.reason}")
    return found.cubin


def _made_of(library: bytes, cubin: bytes) -> bool:
    """Whether this is a shared library with just that device code in it."""
    kind = int.from_bytes(library[16:18], "little")
    return library[:4] == b"\x7fELF" and kind == _SHARED_OBJECT and library.count(cubin) == 1
