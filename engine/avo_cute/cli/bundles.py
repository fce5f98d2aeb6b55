"""Options that belong together, handed to a command as the one value that they make up."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from . import options as o

if TYPE_CHECKING:
    from ..budget import Budget
    from ..choice import Choice
    from ..plan import Wanted

Function = Callable[..., Any]
AMOUNT = click.FloatRange(0, 1e9, min_open=True)


def bundle(name: str, make: Function, *options: Function) -> Callable[[Function], Function]:
    """A decorator: the command has these options and gets `name`, what `make` made of them."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(**given: object) -> object:
            own = {key: given.pop(key) for key in names}
            return function(**{name: make(**own)}, **given)

        decorated: Function = call
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    def nobody() -> None: ...

    for option in options:
        option(nobody)
    parameters: list[click.Parameter] = getattr(nobody, "__click_params__")  # noqa: B009
    names = [parameter.name for parameter in parameters]
    return decorate


# What to work on.


def _wanted(
    lineage_path: Path,
    task: str | None,
    target: str | None,
    run_name: str | None,
    group: str | None,
    from_rev: str | None,
    devices: str,
    jobs: int,
    unsafe: bool,
) -> Wanted:
    from ..plan import Wanted

    return Wanted(lineage_path, task, target, run_name, group, from_rev, unsafe, devices, jobs)


_FROM = o.option(
    "--from", "from_rev", metavar="REV", help="Start a new run at any commit of the lineage."
)
_MACHINE = (_FROM, o.devices, o.jobs, o.unsafe)
wanted = bundle("wanted", _wanted, o.lineage, o.task, o.target, o.run, o.workloads, *_MACHINE)
wanted_apart = bundle(  # of several runs, which have a name of their own
    "wanted",
    functools.partial(_wanted, run_name=None),
    o.lineage,
    o.task,
    o.target,
    o.workloads,
    *_MACHINE,
)

# When to stop.


def budget_of(
    attempts: int | None = None,
    hours: float | None = None,
    budget_usd: float | None = None,
    budget_tokens: int | None = None,
    gpu_seconds: float | None = None,
) -> Budget:
    """The budget of the options; a usage error for what is no number."""
    from ..budget import Budget

    named = {"--budget-usd": budget_usd, "--hours": hours, "--gpu-seconds": gpu_seconds}
    for option, value in named.items():
        if value is not None and value != value:
            raise click.BadParameter("nan is not a number", param_hint=option)
    return Budget(budget_usd, budget_tokens, hours, attempts, gpu_seconds)


def _limits(each: str, needed: bool = False) -> tuple[Function, ...]:
    return (
        o.option(
            "--attempts", type=click.IntRange(1), required=needed, help=f"Attempts of {each}."
        ),
        o.option("--budget-usd", type=AMOUNT, help=f"What a model may cost in {each}."),
        o.option("--budget-tokens", type=click.IntRange(1), help=f"Tokens of {each}."),
        o.option("--gpu-seconds", type=AMOUNT, help=f"Seconds of measuring of {each}."),
    )


_HOURS = o.option("--hours", type=AMOUNT, help="Stop after this long.")
budget = bundle("budget", budget_of, _HOURS, *_limits("this invocation"))
arm_budget = bundle("budget", budget_of, *_limits("each run, over all invocations", needed=True))

# Who varies.


def _choice(
    operator: str = "auto",
    command: str | None = None,
    model: str | None = None,
    effort: str | None = None,
    strategy: Literal["sweep", "tpe", "random"] = "sweep",
    seed: int = 0,
    no_knowledge: bool = False,
    no_memory: bool = False,
    no_supervisor: bool = False,
) -> Choice:
    from ..choice import MODEL, Choice

    parts = (not no_knowledge, not no_memory, not no_supervisor)
    return Choice(operator, command, model or MODEL, effort, strategy, seed, *parts)


_MODEL = (
    o.option("--model", help="Model that is asked. [default: claude-opus-5-5]"),
    o.option(
        "--effort",
        type=click.Choice(["low", "medium", "high", "xhigh", "max"]),
        help="How hard the model thinks. [default: the model's own]",
    ),
    o.option("--seed", type=int, default=0, show_default=True, help="Seed of the proposals."),
)
base_choice = bundle("choice", _choice, *_MODEL)
choice = bundle(
    "choice",
    _choice,
    o.option(
        "--operator",
        type=click.Choice(["auto", "agent", "single-turn", "search", "command"]),
        default="auto",
        show_default=True,
        help="Who varies: an agent with tools, one prompt and one answer, a search over known "
        "knobs, or a command of yours. auto: command where there is one, agent with a key, else "
        "search.",
    ),
    o.option(
        "--command",
        help="Your agent or script; {workspace}, {prompt} and {message} are filled in.",
    ),
    *_MODEL,
    o.option(
        "--strategy",
        type=click.Choice(["sweep", "tpe", "random"]),
        default="sweep",
        show_default=True,
        help="How search proposes: known ideas first and then what served each workload best "
        "combined, by a model of the attempts, or at random (the ablation baseline).",
    ),
    o.option("--no-knowledge", is_flag=True, help="Ablation: the agent has no knowledge base."),
    o.option("--no-memory", is_flag=True, help="Ablation: a session hears of no earlier attempt."),
    o.option("--no-supervisor", is_flag=True, help="Ablation: nobody redirects a stalled run."),
)
