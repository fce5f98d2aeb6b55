"""compute-sanitizer over a candidate that is about to be accepted: memory errors and races.

One workload for every object that the candidate has for a class, the small ones where there are;
the seed under the same tool is the yardstick, so that
what the tool itself makes of TMA and asynchronous barriers is not held against a candidate.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path

from . import sandbox
from .bench import Bench, Side
from .errors import MachineFailed, Stopped
from .gpu import cuda_tool
from .measure import profiling
from .measure.process import start
from .measure.profiling import Ask
from .measure.rig import Rig, fresh_seed
from .records import Workload

TOOLS = ("memcheck", "racecheck")
AT_ONCE = 4  # nothing is timed meanwhile
_LIMITS = sandbox.Limits(
    wall_s=90.0, cpu_s=3600, memory_bytes=1 << 50, file_bytes=1 << 30, grace_s=60.0
)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")


@dataclass(frozen=True, slots=True)
class Sanitized:
    """`failure`: what a tool found in the candidate and not in the seed, one line, or "".
    `told`: one line per class and tool for the verdict."""

    failure: str
    told: tuple[str, ...]


def sanitize(candidate: Side, seed: Side, bench: Bench) -> Sanitized:
    """Run every tool on the candidate's and the seed's objects. Decides nothing where there is no
    compute-sanitizer, or where it does not get through."""
    tool = cuda_tool("compute-sanitizer")
    if bench.rig is None or tool is None:
        return Sanitized("", ("not sanitized: compute-sanitizer is not installed",))
    runner = _Runner(bench, bench.rig, tool)
    wanted = list(product(chosen(bench, candidate.objects), TOOLS))
    with bench.rig.held() as gpu, sandbox.Pool(AT_ONCE, "sanitize") as pool:
        mine = pool.map(lambda w: runner.twice(candidate, gpu.name, *w), wanted)
        theirs = pool.map(lambda w: runner.twice(seed, gpu.name, *w), wanted)
        found = list(zip(wanted, mine, theirs, strict=True))
    told, failures = [], []
    for (workload, name), (errors, line), (seeds, _) in found:
        told.append(f"{name} of {workload.name}: {_said(errors)}, the seed {_said(seeds)}")
        if errors and seeds == 0:
            failures.append(f"{name} finds {errors} in {workload.name}: {line}")
        elif errors is None and seeds is not None:
            failures.append(f"{name} does not get through {workload.name}, on the seed it does")
    return Sanitized(next(iter(failures), ""), tuple(told))


@dataclass(frozen=True, slots=True)
class _Runner:
    bench: Bench
    rig: Rig
    tool: str

    def twice(
        self, side: Side, device: str, workload: Workload, name: str
    ) -> tuple[int | None, str]:
        """The same, once more where the tool did not get through: that may be the machine's."""
        found = self.errors(side, device, workload, name)
        return found if found[0] is not None else self.errors(side, device, workload, name)

    def errors(
        self, side: Side, device: str, workload: Workload, name: str
    ) -> tuple[int | None, str]:
        """How many errors a tool reports, and the first; None where it did not get through."""
        with tempfile.TemporaryDirectory(prefix="avo-cute-sanitize-") as made:
            folder = Path(made)
            log = folder / "log.txt"
            library = self.rig.link({workload.name: side.objects[workload.name]})[workload.name]
            task, target = str(self.bench.task.directory), self.bench.target.name
            Ask(task, target, library, dict(workload.params), fresh_seed()).write(folder)
            argv = [self.tool, "--tool", name, "--log-file", str(log), *_command(folder)]
            # the tool and its process speak through sockets: outside the sandbox, after the audit
            setting = replace(self.rig.setting, layer="none")
            try:
                start(setting, device, tuple(argv), folder, limits=_LIMITS)
            except Stopped:
                raise
            except MachineFailed:
                return None, ""
            text = log.read_text(errors="replace") if log.is_file() else ""
        return parse(text)


def parse(text: str) -> tuple[int | None, str]:
    """Errors and the first of them in compute-sanitizer's log; None without a summary."""
    found = _SUMMARY.search(text)
    if found is None:
        return None, ""
    lines = (line.lstrip("= ").strip() for line in text.splitlines())
    first = next((s for s in lines if s and "SUMMARY" not in s and "COMPUTE-SAN" not in s), "")
    return int(found[1]), first[:200]


def chosen(bench: Bench, objects: Mapping[str, Path]) -> list[Workload]:
    """A check for each judged class and each object that a candidate has for it: of the small ones
    the one in the middle by its work, some tiles and not many; else the one of least work."""
    groups: dict[tuple[str, bytes], list[Workload]] = {}
    for check in bench.beside:
        if check.name in objects:
            digest = sha256(objects[check.name].read_bytes()).digest()
            groups.setdefault((check.class_name, digest), []).append(check)
    reference = bench.task.reference
    found = []
    for of in groups.values():
        ranked = sorted(of, key=lambda w: float(reference.flops(w.params)))
        small = [w for w in ranked if reference.small(w.params)]
        found.append(small[len(small) // 2] if small else ranked[0])
    return found


def _command(folder: Path) -> Sequence[str]:
    return (sys.executable, "-I", "-W", "ignore", str(Path(profiling.__file__)), str(folder))


def _said(errors: int | None) -> str:
    return "did not get through" if errors is None else f"{errors} errors"
