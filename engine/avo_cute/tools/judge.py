"""The engine's judgement of a workspace, as an agent asks for it.

The agent says what it expects; the engine measures, decides and commits. Every `evaluate` is an
attempt in the lineage, whatever comes out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, StringConstraints

from ..errors import MachineFailed, Refused
from ..history import SEEN
from ..operators import Desk, Proposal
from ..records import Attempt, Facts, Status, Verdict
from .quoting import quoted

Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]


class Judge:
    """Tools that build, evaluate and profile what is in the workspace."""

    def __init__(self, session: Desk) -> None:
        self._session = session

    def build(self) -> str:
        """Compile what is in the workspace, without measuring it; nothing is recorded. Gives the
        compiler's error with the lines around it, or the machine code's facts (registers, spills,
        shared memory, instruction mix) beside the incumbent's."""
        return _build_text(self._session.build(), self._session.standing_facts())

    def evaluate(
        self,
        subject: Annotated[
            str,
            StringConstraints(strip_whitespace=True, min_length=4, max_length=55),
            Field(description="Imperative, e.g. Split P at half."),
        ],
        hypothesis: Annotated[Line, Field(description="Why this should be faster.")],
        prediction: Annotated[Line, Field(description="Which workloads gain, and how much.")],
        change: Annotated[Line, Field(description="What you changed, and what it rests on.")],
    ) -> str:
        """Judge what is in the workspace: build, audit, correctness, speed against the incumbent.
        Always becomes a commit; accepted only if it is better beyond doubt: that ends the
        session."""
        parts = {"Hypothesis": hypothesis, "Prediction": prediction, "What changed": change}
        body = "\n\n".join(f"{title}: {text}" for title, text in parts.items())
        judge = self._session.prepare(Proposal(subject, body, {}))
        try:
            return attempt_text(judge())
        except Refused as error:  # the lineage's word, and nothing the agent could do about it
            raise MachineFailed(str(error)) from error

    def profile(self) -> str:
        """Where the time of the version in the workspace goes: hardware counters where this machine
        has them, and the hot loop of its machine code."""
        return quoted("profiler", self._session.profile())


def attempt_text(attempt: Attempt) -> str:
    """How an attempt ended, for the one who made it."""
    told = [f"attempt {attempt.number}: {attempt.status}"]
    if attempt.score is not None:
        told.append(f"score {attempt.score:.4f} over the seed")
    if attempt.gain is not None:
        told.append(f"{attempt.gain - 1:+.2%} against the high-water mark")
    kind = attempt.trailers.get("Score-kind")
    told += [f"{kind} score"] if kind else []
    ended = "The session ends here." if attempt.status is Status.ACCEPTED else _NEXT[attempt.status]
    _, _, details = attempt.body.partition(SEEN)
    return f"{', '.join(told)}\n{quoted('engine', details or attempt.status)}\n{ended}"


_NEXT = {
    Status.EQUAL: "No difference that can be told from noise.",
    Status.REJECTED: "It is correct and not better. Ask what the profile says before the next.",
    Status.INCORRECT: "It computes something else: repair it, or restore and think again.",
    Status.BUILD_FAILED: "Repair it: build gives the same error faster.",
    Status.AUDIT_FAILED: "The machine code breaks a rule that holds for every candidate.",
    Status.CRASHED: "It crashed on the GPU.",
    Status.TIMED_OUT: "It did not come to an end: look at the barriers.",
    Status.NO_CHANGE: "The machine code is the incumbent's: the edit had no effect.",
    Status.INFRA_ERROR: "This machine failed: it says nothing about your change.",
}


def _build_text(verdict: Verdict, before: Mapping[str, Facts]) -> str:
    if verdict.status is not Status.NO_CHANGE:  # a build alone is compared with nothing
        told = "" if verdict.detail.startswith(verdict.reason) else f"{verdict.reason}\n"
        return f"{verdict.status}\n{quoted('compiler', told + verdict.detail)}"
    lines = []
    for name, facts in verdict.facts.items():
        lines.append(f"{name}: {_facts(facts)}")
        if name in before:
            same = before[name].cubin_sha256 == facts.cubin_sha256
            then = "the same machine code" if same else _facts(before[name])
            lines.append(f"  incumbent: {then}")
    lines += [f"worth a look: {line}" for line in verdict.signals]
    told = "\n".join(lines)
    return f"it builds\n{quoted('build', told)}"


def _facts(facts: Facts) -> str:
    roles = "/".join(map(str, facts.register_roles)) or str(facts.registers)
    mix = " ".join(f"{unit}={count}" for unit, count in sorted(facts.mix.items()))
    tmem = f", {facts.tmem_columns} tensor-memory columns" if facts.tmem_columns else ""
    return (
        f"registers {roles}, {facts.spills} spills, {facts.static_smem} bytes static shared{tmem}, "
        f"{facts.instructions} instructions ({mix}), {facts.barrier_waits} barrier waits, "
        f"{facts.fences} fences"
    )
