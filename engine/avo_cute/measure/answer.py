"""A result file from a process in which a candidate's machine code ran: read, believing nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..records import Samples, Status
from ..sandbox import printable, read_regular
from .request import Finding, MeasureRequest, Result, read_result

MAX_RESULT_BYTES = 64 << 20
# What a process may say of itself; that a candidate is better is for the engine to conclude.
_SAYABLE = (
    "",
    Status.INCORRECT,
    Status.REJECTED,
    Status.CRASHED,
    Status.AUDIT_FAILED,
    Status.INFRA_ERROR,
)
_MAX_LINE, _MAX_DETAIL, _MAX_FACTS = 500, 4096, 300


class Unbelievable(Exception):
    """The file is missing or no result; one line says which."""


def read_answer(path: Path, copy: Path) -> Result:
    """The result at `path`. It is parsed from `copy`, which only we can write to.

    Its values have the types that `Result` declares, its numbers fit in a float, its text is
    short and can be printed, in one line but for `detail`. Raises `Unbelievable`.
    """
    data = read_regular(path, MAX_RESULT_BYTES)
    if data is None:
        raise Unbelievable("left no result")
    copy.write_bytes(data)
    try:
        result = read_result(copy)
        _check(result)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise Unbelievable("left a malformed result") from None
    return _cleaned(result)


def unasked(request: MeasureRequest, result: Result) -> str:
    """What a result holds that its request did not ask for; "" if nothing.

    Samples name the request's own seed as their process, so none can pass for another's.
    """
    if result.status not in (*_SAYABLE, Status.TIMED_OUT):
        return f"the status {result.status[:60]!a}, which is not a process's to give"
    seen: set[tuple[str, str]] = set()
    for s in result.samples:
        if why := _strange(s, request):
            return why
        if (s.workload, s.mode) in seen:
            return f"samples of {s.workload} twice"
        seen.add((s.workload, s.mode))
    names = {p.name for p in request.points}
    strange = [f.workload for f in result.findings if f.workload not in names]
    return f"a finding on {strange[0][:60]!a}, which nobody asked for" if strange else ""


def _strange(samples: Samples, request: MeasureRequest) -> str:
    roles = {p.name: p.role for p in request.points}
    if roles.get(samples.workload) != samples.role or samples.role == "correctness-only":
        return f"samples of {samples.workload[:60]!a}, which nobody asked for"
    if samples.process != request.seed or samples.mode not in ("sustained", "cold"):
        return f"samples of {samples.workload} by another process"
    if not {*request.kernels, *request.baselines}.issuperset(samples.times):
        return f"samples of {samples.workload} with an unknown arm"
    return ""


def _check(result: Result) -> None:
    """`ValueError`, `TypeError` or `OverflowError` where a value is not of its type."""
    if result.status not in _SAYABLE:
        raise ValueError("a status that is not a process's to give")
    _demand(str, (result.reason, result.detail, *result.facts))
    _demand((str, int, float), result.facts.values())
    _demand_numbers(v for v in result.facts.values() if not isinstance(v, str))
    spent = result.busy_s, result.timed_s, result.wall_s
    _demand_numbers(spent)
    if not all(map(math.isfinite, spent)):
        raise ValueError("a time that is not finite")
    for finding in result.findings:
        _check_finding(finding)
    for samples in result.samples:
        _check_samples(samples)


def _check_finding(finding: Finding) -> None:
    _demand(str, (finding.workload, finding.family, finding.what, finding.failure))
    _demand_numbers((finding.worst, finding.error, finding.seed_error))


def _check_samples(samples: Samples) -> None:
    _demand(str, (samples.workload, samples.role, samples.mode, *samples.void))
    _demand(int, (samples.process,))
    columns = (*samples.times.values(), *samples.clocks.values())
    if any(len(column) != len(samples.void) for column in columns):
        raise ValueError("an arm without a number for every round")


def _demand(kind: Any, values: Iterable[object]) -> None:
    if not all(isinstance(value, kind) for value in values):
        raise TypeError("a value of another type")


def _demand_numbers(values: Iterable[Any]) -> None:
    """Numbers that a float can hold; JSON has longer ones."""
    for value in values:
        _demand((int, float), (value,))
        float(value)


def _cleaned(result: Result) -> Result:
    """All text as one line that can be printed, of bounded length."""
    facts = {
        _line(name): _line(value) if isinstance(value, str) else value
        for name, value in list(result.facts.items())[:_MAX_FACTS]
    }
    samples = (replace(s, void=tuple(map(_line, s.void))) for s in result.samples)
    findings = (
        replace(f, family=_line(f.family), what=_line(f.what), failure=_line(f.failure))
        for f in result.findings
    )
    return replace(
        result,
        reason=_line(result.reason),
        detail=printable(result.detail)[:_MAX_DETAIL],
        samples=tuple(samples),
        findings=tuple(findings),
        facts=facts,
    )


def _line(text: str) -> str:
    return " ".join(printable(text).split())[:_MAX_LINE]
