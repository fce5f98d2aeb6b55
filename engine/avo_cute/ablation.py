"""Ablation: what each part of the agent is worth, as runs side by side under equal budgets.

Every arm is a run of its own, from the same commit on the same bench, and takes one session at a
time in turn with the others, so that what changes on the machine changes for all of them. Budgets
are of an arm's whole life, read from its commits: an ablation that was stopped goes on when it is
asked for again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from . import transcripts
from .budget import Spent, run_total
from .choice import Choice, make_operator
from .errors import BadInput
from .evolve import Limits, interruptible, sessions
from .history import kind_of
from .records import Attempt, Status
from .run import Run

# AVO's ablation (arXiv 2603.24517) and its two baselines: one turn without tools, and chance.
ARMS: Mapping[str, Mapping[str, object]] = {
    "agent": {},
    "no-knowledge": {"knowledge": False},
    "no-memory": {"memory": False},
    "no-supervisor": {"supervisor": False},
    "single-turn": {"operator": "single-turn"},
    "random": {"operator": "search", "strategy": "random", "effort": None},
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one arm, over all its invocations."""

    arm: str
    run: str
    attempts: int
    statuses: Mapping[str, int]
    score: float  # the best accepted one, over the seed; 1.0 where there is none
    interval: str  # its bounds as the commit tells them; empty for an estimate
    kind: str
    best_at: int  # the attempt that has it; 0 where there is none
    spent: Spent
    ended: str


def arms_of(names: Sequence[str], repeats: int) -> list[str]:
    """The arms by name, each as often as it is repeated: agent, or agent-1, agent-2, …"""
    unknown = [name for name in names if name not in ARMS]
    if unknown or len(set(names)) < len(names) or not names:
        raise BadInput(f"--arms {','.join(names)}: choose from {', '.join(ARMS)}, each once")
    if repeats == 1:
        return list(names)
    return [f"{name}-{n}" for n in range(1, repeats + 1) for name in names]


def choice_of(arm: str, base: Choice) -> Choice:
    """What an arm is: the base, with what it does without. The seed tells repeats apart."""
    name, _, number = arm.rpartition("-") if arm not in ARMS else (arm, "", "")
    changed = {"operator": "agent", "seed": base.seed + int(number or 0), **ARMS[name]}
    return replace(base, **changed).settled()  # type: ignore[arg-type]


def ablate(
    first: Run, prefix: str, arms: Sequence[str], base: Choice, limits: Limits
) -> Sequence[Outcome]:
    """Run every arm until its own budget is spent; `first` is the run of the first arm."""
    runs = [first, *(first.sibling(f"{prefix}-{arm}") for arm in arms[1:])]
    made = [make_operator(choice_of(a, base), r, limits) for a, r in zip(arms, runs, strict=True)]
    with interruptible(limits), closing(first.bench):
        turns = []
        for run, (operator, supervisor) in zip(runs, made, strict=True):
            run.alone, run.spent = True, _total(run)
            run.begun = run.spent.attempts
            run.begin()
            turns.append((run, sessions(run, operator, limits, supervisor)))
        _in_turn(turns)
    return [_outcome(run, arm, limits) for run, arm in zip(runs, arms, strict=True)]


def _in_turn(turns: list[tuple[Run, Iterator[str]]]) -> None:
    """One session of each, again and again, until all have ended."""
    while turns:
        for turn in list(turns):
            run, going = turn
            if ended := next(going):
                run.watch.phase(f"{run.name}: {ended}")
                turns.remove(turn)


def _total(run: Run) -> Spent:
    """What a run has cost so far, by its commits."""
    kept = transcripts.sessions(run.lineage.repo, run.name) if run.history() else []
    return run_total(run.history(), {k.number: k.trailers for k in kept})


def _outcome(run: Run, arm: str, limits: Limits) -> Outcome:
    """What the commits of an arm's run say."""
    attempts = [a for a in run.history() if a.number > 0]
    accepted = [a for a in attempts if a.status is Status.ACCEPTED and a.score is not None]
    best = max(accepted, key=_score, default=None)
    spent = _total(run)
    return Outcome(
        arm=arm,
        run=run.name,
        attempts=len(attempts),
        statuses=dict(Counter(str(a.status) for a in attempts)),
        score=1.0 if best is None else _score(best),
        interval="" if best is None else best.trailers.get("Score-interval", ""),
        kind=run.bench.kind if best is None else kind_of(best),
        best_at=0 if best is None else best.number,
        spent=spent,
        ended=limits.reached(spent) or "its budget is not spent yet",
    )


def _score(attempt: Attempt) -> float:
    return attempt.score or 0.0
