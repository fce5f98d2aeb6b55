"""Build: a candidate's tree becomes objects, in the sandbox, cached by content.

`build_class` is the unit of work: one process builds all judged workloads of one workload class.
A request is plain data, so an executor may carry it to another process or machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from site import getsitepackages

from ..errors import MachineFailed
from ..records import Failure, Status, Target, Workload
from ..sandbox import Completed, Limits, remove, run
from ..task import Task
from .cache import Cache, digest
from .toolchain import toolchain

WORKER = Path(__file__).with_name("worker.py")
MAX_OBJECT_BYTES = 16 << 20
NEEDED_BYTES = 1 << 20  # with less free space a failed build says nothing about the candidate
MAX_RECORD_BYTES = 1 << 20
NICE = 5  # a build must not take the processor from the host side of a measurement
DETAIL_BYTES = 4096  # all that an operator is told of one failure


@dataclass(frozen=True, slots=True)
class Source:
    """A candidate as plain files: `directory` holds exactly the git tree `tree`."""

    tree: str
    directory: Path


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """Build the workloads of one class. `layer` is a sandbox layer, `cache` a folder."""

    source: Source
    task: Path
    target: Target
    workloads: tuple[Workload, ...]
    layer: str
    cache: Path
    wall_s: float = 300.0

    @property
    def key(self) -> str:
        """Names everything that decides the objects' bytes."""
        task = Task(self.task)
        return digest(
            self.source.tree,
            task.name,
            sha256((self.task / "build.py").read_bytes() + WORKER.read_bytes()).hexdigest(),
            json.dumps(asdict(self.target), sort_keys=True),
            json.dumps([(w.name, dict(w.params)) for w in self.workloads], sort_keys=True),
            toolchain(),
            f"python {sys.version_info.major}.{sys.version_info.minor}",
            "not sandboxed" if self.layer == "none" else "",
        )


def build_class(request: BuildRequest) -> Mapping[str, Path] | Failure:
    """Object file per workload name, from the cache or built now; or why there is none.

    Raises `MachineFailed` where this machine and not the candidate is at fault.
    """
    cache = Cache(request.cache)
    if (hit := cache.get_build(request.key)) is not None:
        return hit
    with _scratch() as scratch:
        out = Path(scratch) / "out"
        out.mkdir()
        done = _run_worker(request, Path(scratch), out)
        taken = _take(request, out, done)
        if isinstance(taken, Failure) and shutil.disk_usage(scratch).free < NEEDED_BYTES:
            raise MachineFailed(f"the disk of {scratch} is full: free space, or set TMPDIR")
    if isinstance(taken, Failure):
        return taken
    files, objects = taken
    cache.put_build(request.key, objects, files)
    if (hit := cache.get_build(request.key)) is None:
        raise MachineFailed(f"the build cache {request.cache} lost an entry while it was written")
    return hit


def _run_worker(request: BuildRequest, scratch: Path, out: Path) -> Completed:
    packages = Task(request.task).settings.packages
    message = {
        "tree": str(request.source.directory),
        "task": str(request.task),
        "packages": list(packages),
        "target": asdict(request.target),
        "workloads": [{"name": w.name, "params": dict(w.params)} for w in request.workloads],
    }
    ask = scratch / "request.json"
    ask.write_text(json.dumps(message))
    return run(
        [sys.executable, "-I", "-W", "ignore", str(WORKER), str(ask), str(out)],
        read=[request.source.directory, request.task, WORKER, ask],
        write=[out],
        hide=[Path(site) / name for site in getsitepackages() for name in packages],
        limits=Limits(request.wall_s, cpu_s=2 * int(request.wall_s), nice=NICE),
        layer=request.layer,
    )


def _take(
    request: BuildRequest, out: Path, done: Completed
) -> tuple[dict[str, str], dict[str, bytes]] | Failure:
    """Read what the worker left, believing nothing: names, sizes and kinds are checked."""
    if (failure := _ended_badly(request, done)) is not None:
        return failure
    text = _read_regular(out / "record.json", MAX_RECORD_BYTES)
    if text is None:
        return Failure(
            Status.BUILD_FAILED,
            "the build process ended with status 0 before its record was complete",
            _tail(done),
        )
    try:
        record = json.loads(text)
        if "error" in record:
            error = record["error"]
            return _build_failed(str(error["reason"]), str(error["detail"]), done)
        files = {str(name): str(file) for name, file in record["workloads"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Failure(Status.BUILD_FAILED, "the build process left a malformed record")
    return _take_objects(request, out, files)


def _take_objects(
    request: BuildRequest, out: Path, files: dict[str, str]
) -> tuple[dict[str, str], dict[str, bytes]] | Failure:
    wanted = {w.name for w in request.workloads}
    if set(files) != wanted:
        missing = ", ".join(sorted(wanted - set(files))) or "none"
        return Failure(Status.BUILD_FAILED, f"the build record does not fit: missing {missing}")
    objects = {}
    for file in sorted(set(files.values())):
        data = (
            _read_regular(out / file, MAX_OBJECT_BYTES) if re.fullmatch(r"\d+\.o", file) else None
        )
        if data is None:
            return Failure(Status.BUILD_FAILED, f"the build left no object {file[:40]!r}")
        objects[file] = data
    return files, objects


def _ended_badly(request: BuildRequest, done: Completed) -> Failure | None:
    if done.timed_out:
        reason = f"the build took longer than {request.wall_s:.0f} s"
        return Failure(Status.TIMED_OUT, reason, _tail(done))
    code = done.returncode
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        return Failure(Status.CRASHED, f"the build process was killed by {name}", _tail(done))
    if code != 0:
        return Failure(Status.CRASHED, f"the build process exited with status {code}", _tail(done))
    return None


def _build_failed(reason: str, detail: str, done: Completed) -> Failure:
    room = DETAIL_BYTES - len(detail)
    text = f"{detail}\n\nstderr:\n{_tail(done)}" if done.stderr.strip() and room > 400 else detail
    return Failure(Status.BUILD_FAILED, _printable(reason), _printable(text)[:DETAIL_BYTES])


def _tail(done: Completed) -> str:
    return done.stderr.strip()[-1500:]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _read_regular(path: Path, limit: int) -> bytes | None:
    """The bytes of a regular file of at most `limit` bytes; never follows a link, never blocks."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
            return None
        return file.read(limit)


@contextmanager
def _scratch() -> Iterator[str]:
    try:
        folder = tempfile.mkdtemp(prefix="avo-cute-build-")
    except OSError as error:
        raise MachineFailed(f"no temporary folder for a build: {error}") from None
    try:
        yield folder
    finally:
        remove(Path(folder))
