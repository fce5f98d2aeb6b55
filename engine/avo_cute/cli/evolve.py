"""Commands that vary: evolve and ablate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options as o
from .bundles import arm_budget, base_choice, budget, choice, wanted, wanted_apart

if TYPE_CHECKING:
    from ..budget import Budget
    from ..choice import Choice
    from ..plan import Wanted


@click.command(
    epilog="Examples:\n\n  avo-cute evolve --attempts 8\n\n"
    "  avo-cute evolve --operator agent --hours 168 --budget-usd 2000\n\n"
    "  avo-cute evolve --command 'my-agent --in {workspace} {prompt}' --attempts 20\n\n"
    "  avo-cute evolve --from best --workloads gqa --run gqa-port"
)
@wanted
@choice
@budget
@o.option(
    "--executor",
    type=click.Choice(["local"]),
    default="local",
    show_default=True,
    help="Where builds run.",
)
@o.as_json
def evolve(wanted: Wanted, choice: Choice, budget: Budget, executor: str, as_json: bool) -> None:
    """Evolve: the main job. Resumes the run it finds, creates what is missing.

    Ctrl-C once finishes the attempt in hand, twice stops at once; nothing recorded is lost.
    """
    from ..budget import estimate
    from ..build.cache import Cache
    from ..choice import make_operator
    from ..errors import ModelError
    from ..evolve import Limits
    from ..evolve import evolve as engine
    from ..plan import open_run
    from .run import building
    from .show import Progress, print_outcome

    limits, chosen = Limits(budget), choice.settled()
    with Progress(quiet=as_json) as watch, building(wanted.jobs) as pool:
        run = open_run(wanted, pool.map, watch)
        Cache(run.bench.cache).prune()
        with run.lineage.lock():
            operator, supervisor = make_operator(chosen, run, limits)
            if told := estimate(limits.budget, run.history()):
                watch.phase(f"this budget buys {told}")
            try:
                ended = engine(run, operator, limits, supervisor)
            except ModelError as error:
                print_outcome(run, f"stopped: {error}", as_json)
                raise
    print_outcome(run, ended, as_json)


@click.command(
    epilog="Examples:\n\n  avo-cute ablate --attempts 40 --budget-usd 100\n\n"
    "  avo-cute ablate --arms agent,no-memory,random --repeats 3 --attempts 40"
)
@wanted_apart
@o.option(
    "--name", default="ablation", show_default=True, help="The runs are called NAME-ARM; resumed."
)
@o.option(
    "--arms",
    default="agent,no-knowledge,no-memory,no-supervisor,single-turn,random",
    show_default=True,
    help="What to compare.",
)
@o.option(
    "--repeats",
    type=click.IntRange(1, 99),
    default=1,
    show_default=True,
    help="Runs of each arm: one run says little.",
)
@base_choice
@arm_budget
@o.as_json
def ablate(
    wanted: Wanted,
    name: str,
    arms: str,
    repeats: int,
    choice: Choice,
    budget: Budget,
    as_json: bool,
) -> None:
    """Compare the agent with itself less one part, under equal budgets, side by side.

    The arms: agent (all of it), no-knowledge, no-memory, no-supervisor, single-turn (one prompt,
    one answer), random (search at random, no model). Each is a run of the lineage; they take turns,
    a session each. Asked for again, the ablation goes on until every run has spent its budget.
    """
    from dataclasses import replace

    from ..ablation import ablate as engine
    from ..ablation import arms_of
    from ..evolve import Limits
    from ..plan import open_run
    from .run import building
    from .show import Progress, print_arms

    chosen = arms_of([arm.strip() for arm in arms.split(",") if arm.strip()], repeats)
    wanted = replace(wanted, run=f"{name}-{chosen[0]}")
    with Progress(quiet=as_json) as watch, building(wanted.jobs) as pool:
        first = open_run(wanted, pool.map, watch)
        with first.lineage.lock():
            outcomes = engine(first, name, chosen, choice, Limits(budget))
    print_arms(outcomes, as_json)
