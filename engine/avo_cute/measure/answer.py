"""A result file from a process in which a candidate's machine code ran: read, believing nothing."""

from __future__ import annotations

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
_MAX_REASON, _MAX_DETAIL = 500, 4096


class Unbelievable(Exception):
    """The file is missing or no result; one line says which."""


def read_answer(path: Path, copy: Path) -> Result:
    """The result at `path`. It is parsed from `copy`, which only we can write to.

    Its values have the types that `Result` declares, one number per round, text that can be
    printed. Raises `Unbelievable`.
    """
    data = read_regular(path, MAX_RESULT_BYTES)
    if data is None:
        raise Unbelievable("left no result")
    copy.write_bytes(data)
    try:
        result = read_result(copy)
        _check(result)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise Unbelievable("left a malformed result") from None
    reason = " ".join(printable(result.reason).split())[:_MAX_REASON]
    return replace(result, reason=reason, detail=printable(result.detail)[:_MAX_DETAIL])


def unasked(request: MeasureRequest, result: Result) -> str:
    """What a result holds that its request did not ask for; "" if nothing.

    Samples name the request's own seed as their process, so none can pass for another's.
    """
    roles = {p.name: p.role for p in request.points}
    arms = {*request.kernels, *request.baselines}
    for s in result.samples:
        if roles.get(s.workload) != s.role or s.role == "correctness-only":
            return f"samples of {s.workload[:60]!a}, which nobody asked for"
        if s.process != request.seed or s.mode not in ("sustained", "cold"):
            return f"samples of {s.workload} by another process"
        if not arms.issuperset(s.times):
            return f"samples of {s.workload} with an unknown arm"
    strange = [f.workload for f in result.findings if f.workload not in roles]
    return f"a finding on {strange[0][:60]!a}, which nobody asked for" if strange else ""


def _check(result: Result) -> None:
    """`ValueError` or `TypeError` where a value is not of its type."""
    if result.status not in _SAYABLE:
        raise ValueError("a status that is not a process's to give")
    _demand(str, (result.reason, result.detail, *result.facts))
    _demand((str, int, float), result.facts.values())
    _demand((int, float), (result.busy_s, result.timed_s, result.wall_s))
    for finding in result.findings:
        _check_finding(finding)
    for samples in result.samples:
        _check_samples(samples)


def _check_finding(finding: Finding) -> None:
    _demand(str, (finding.workload, finding.family, finding.what, finding.failure))
    _demand((int, float), (finding.worst, finding.error, finding.seed_error))


def _check_samples(samples: Samples) -> None:
    _demand(str, (samples.workload, samples.role, samples.mode, *samples.void))
    _demand(int, (samples.process,))
    columns = (*samples.times.values(), *samples.clocks.values())
    if any(len(column) != len(samples.void) for column in columns):
        raise ValueError("an arm without a number for every round")


def _demand(kind: Any, values: Iterable[object]) -> None:
    if not all(isinstance(value, kind) for value in values):
        raise TypeError("a value of another type")
