"""Analysis: what the objects of one workload class are, judged as bytes; no candidate code runs.

Facts and SASS come from the cubin inside the object, launches from emulating its host code, then
the audit rules and the static estimate. A pure function of the object, its workloads, the target
and this code, therefore cached by exactly these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache as cached
from hashlib import sha256
from pathlib import Path

from pydantic import TypeAdapter

from ..estimate import Work, estimate, implausible
from ..records import Artifact, Estimate, Facts, Failure, Launch, Status, Workload
from ..task import Task
from . import BuildRequest, build_class
from .audit import Violation, audit, unchecked_descriptors
from .cache import Cache, digest
from .elf import read_cubin, read_object
from .facts import facts
from .launch import launches, parse_arguments
from .sass import disassemble
from .toolchain import version


@dataclass(frozen=True, slots=True)
class ClassResult:
    """Everything about one workload class of one candidate."""

    artifacts: tuple[Artifact, ...]
    estimates: tuple[Estimate, ...]  # of its public workloads
    signals: tuple[str, ...]  # worth a look, decides nothing


def judge_class(request: BuildRequest) -> ClassResult | Failure:
    """Build, read, audit and estimate one workload class. The executor's unit of work."""
    built = build_class(request)
    if isinstance(built, Failure):
        return built
    sharing: dict[Path, list[Workload]] = {}
    for workload in request.workloads:
        sharing.setdefault(built[workload.name], []).append(workload)
    results: dict[str, tuple[Artifact, Estimate | None]] = {}
    signals: list[str] = []
    for path, workloads in sharing.items():
        data = path.read_bytes()
        judged = _judge_object(request, data, workloads)
        if isinstance(judged, Failure):
            return judged
        signals += [f"{workloads[0].name}: {line}" for line in judged.signals]
        for w in workloads:
            artifact = Artifact(
                w, path, sha256(data).hexdigest(), judged.facts, judged.launches[w.name]
            )
            results[w.name] = (artifact, judged.estimates.get(w.name))
    pairs = [results[w.name] for w in request.workloads]
    estimates = tuple(e for _, e in pairs if e is not None)
    return ClassResult(tuple(a for a, _ in pairs), estimates, tuple(signals))


def evaluator_id(task: Task) -> str:
    """`Evaluator:` of a verdict: sha256 of the task and of the code that judges and measures."""
    return digest(_analysis_id(task), _code("measure/*.py", *_DECIDING))


def _analysis_id(task: Task) -> str:
    """Everything but the object that an analysis depends on."""
    code = _code("build/*.py", "estimate.py", "score.py")
    return digest(task.sha256, code, version("nvidia-cuda-nvdisasm"))


@dataclass(frozen=True, slots=True)
class _Judged:
    facts: Facts
    launches: Mapping[str, tuple[Launch, ...]]  # by workload name
    estimates: Mapping[str, Estimate]  # of public workloads
    signals: tuple[str, ...]


_ADAPTER: TypeAdapter[_Judged | Failure] = TypeAdapter(_Judged | Failure)


def _judge_object(
    request: BuildRequest, data: bytes, workloads: Sequence[Workload]
) -> _Judged | Failure:
    cache = Cache(request.cache)
    key = digest(
        sha256(data).hexdigest(),
        _analysis_id(Task(request.task)),
        json.dumps(asdict(request.target), sort_keys=True),
        json.dumps([(w.name, dict(w.params)) for w in workloads], sort_keys=True),
    )
    if (text := cache.get_analysis(key)) is not None:
        return _ADAPTER.validate_json(text)
    judged = _analyse(request, data, workloads)
    cache.put_analysis(key, _ADAPTER.dump_json(judged).decode())
    return judged


def _analyse(
    request: BuildRequest, data: bytes, workloads: Sequence[Workload]
) -> _Judged | Failure:
    task, target = Task(request.task), request.target
    obj = read_object(data)
    if isinstance(obj, Failure):
        return obj
    cubin = read_cubin(obj.cubin)
    if isinstance(cubin, Failure):
        return cubin
    kernels = disassemble(obj.cubin)
    if isinstance(kernels, Failure):
        return kernels
    all_launches, estimates = {}, {}
    for w in workloads:
        plain = task.build.arguments(dict(w.params), asdict(target))
        found = launches(data, parse_arguments(plain), target)
        if isinstance(found, Failure):
            return found
        if violations := audit(obj, cubin, kernels, found, task.settings.audit, target):
            return _refusal(violations, w)
        work = Work(task.reference.flops(w.params), task.reference.bytes(w.params))
        all_launches[w.name] = found
        if not w.groups:  # a check: its speed is of no interest
            continue
        estimates[w.name] = estimate(w, kernels, found, target, work)
        matrix = bool(task.settings.audit.matrix.get(target.family))
        line = implausible(estimates[w.name], kernels, found, target, work, multiplies=matrix)
        if line:
            return Failure(Status.AUDIT_FAILED, f"floor: {line} (workload {w.name})")
    unchecked = unchecked_descriptors(kernels)
    return _Judged(facts(obj.cubin, kernels), all_launches, estimates, unchecked)


def _refusal(violations: Sequence[Violation], workload: Workload) -> Failure:
    lines = "\n".join(f"{v.rule}: {v.line}" for v in violations)
    first = violations[0]
    reason = f"{first.rule}: {first.line} (workload {workload.name})"
    return Failure(Status.AUDIT_FAILED, reason, lines[:4096])


@cached
def _code(*patterns: str) -> str:
    """sha256 over the package's files that match."""
    root = Path(__file__).parent.parent
    files = sorted({f for pattern in patterns for f in root.glob(pattern)})
    return digest(*(f"{f.name} {sha256(f.read_bytes()).hexdigest()}" for f in files))


_DECIDING = (
    "measured.py",
    "beyond.py",
    "decision.py",
    "stats.py",
    "summary.py",
    "sanitize.py",
    "readiness.py",
    "inert.py",
)
