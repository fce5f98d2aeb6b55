"""Who varies: the operator that the user chose, its model, and its supervisor."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from .budget import check
from .catalogue import directions_of
from .errors import BadInput
from .operators import OneByOne, Operator
from .run import Run
from .supervisor import Supervisor

if TYPE_CHECKING:
    from .evolve import Limits
    from .knowledge import KnowledgeBase
    from .model import Anthropic

MODEL = "claude-opus-5-5"
OPERATORS = ("auto", "agent", "single-turn", "search", "command")
STRATEGIES = ("sweep", "tpe", "random")
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
TRIES = 48  # of one question: about three hours of an API that refuses


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for. `auto` is `command` where there is one, `agent` where there is a
    key, else `search`."""

    operator: str = "auto"
    command: str | None = None
    model: str = MODEL
    effort: str | None = None
    strategy: Literal["sweep", "tpe", "random"] = "sweep"
    seed: int = 0
    knowledge: bool = True
    memory: bool = True
    supervisor: bool = True

    def settled(self) -> Choice:
        """With `auto` decided. `BadInput` where the operator has no use for what was asked."""
        name = self.operator
        if name == "auto":
            name = "command" if self.command is not None else "agent" if has_key() else "search"
        if name not in OPERATORS:
            raise BadInput(f"unknown operator {name!r}: use {', '.join(OPERATORS)}")
        if (name == "command") != (self.command is not None):
            raise BadInput("--operator command and --command '…' go together")
        for wanted, option, of in (
            (self.knowledge, "--no-knowledge", ("agent",)),
            (self.memory, "--no-memory", ("agent", "command")),
            (self.supervisor, "--no-supervisor", ("agent", "command")),
            (self.effort is None, "--effort", ("agent", "single-turn")),
            (self.strategy == "sweep", "--strategy", ("search",)),
        ):
            if not wanted and name not in of:
                raise BadInput(f"{option} has no effect on --operator {name}")
        return replace(self, operator=name)

    @property
    def asks(self) -> bool:
        """Whether the operator asks a model."""
        return self.operator in ("agent", "single-turn")


def has_key() -> bool:
    """Whether the environment holds a key for the model's API."""
    return any(os.environ.get(key) for key in KEYS)


def make_operator(choice: Choice, run: Run, limits: Limits) -> tuple[Operator, Supervisor | None]:
    """The operator of a settled choice and who supervises it; `BadInput` without a usable key or
    for a budget that cannot be kept."""
    check(limits.budget, choice.model if choice.asks else "")
    model = _model(choice, run, limits) if choice.asks else None
    supervisor = None
    if choice.supervisor and choice.operator in ("agent", "command"):
        task = run.bench.task
        supervisor = Supervisor(model, directions_of(run.bench), task.settings.title)
    return _operator(choice, run, model), supervisor


def _operator(choice: Choice, run: Run, model: Anthropic | None) -> Operator:
    if model is not None and choice.operator == "agent":
        from .agent import Agent

        return Agent(model, open_knowledge(run) if choice.knowledge else None, choice.memory)
    if model is not None:
        from .operators.single import SingleTurn

        return SingleTurn(model, choice.seed)
    if choice.command is not None:
        from .operators.command import CommandOperator

        return CommandOperator(choice.command, remember=choice.memory)
    from .operators.search import SearchOperator

    bench = run.bench
    rules = (bench.task.knobs.KNOBS, bench.task.knobs.check, bench.target, bench.workloads)
    return OneByOne(SearchOperator(*rules, choice.strategy, choice.seed, bench.kind))


def _model(choice: Choice, run: Run, limits: Limits) -> Anthropic:
    from .model import Anthropic, Patience

    stop = partial(limits.stop, run)
    return Anthropic(choice.model, choice.effort, Patience(tries=TRIES), run.watch.phase, stop)


def open_knowledge(run: Run) -> KnowledgeBase:
    """What there is to know for the run's task and target."""
    from .knowledge import open_base

    run.watch.phase("opening the knowledge base")
    return open_base(run.lineage, run.bench.task.name, run.bench.target.family)
