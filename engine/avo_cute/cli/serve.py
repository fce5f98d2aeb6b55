"""The command that lets an agent of another kind vary: mcp."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click

from . import options as o
from .bundles import AMOUNT, budget_of, bundle, wanted

if TYPE_CHECKING:
    from ..budget import Budget
    from ..plan import Wanted


@click.command(epilog="Example:\n\n  avo-cute mcp --lineage ~/lineage.git --run mine --hours 8")
@wanted
@o.option("--no-knowledge", is_flag=True, help="Offer no knowledge base.")
@bundle(
    "budget",
    budget_of,
    o.option("--attempts", type=click.IntRange(1), help="Refuse more attempts than this."),
    o.option("--hours", type=AMOUNT, help="Refuse everything after this long."),
    o.option("--gpu-seconds", type=AMOUNT, help="Refuse attempts after so much measuring."),
)
def mcp(wanted: Wanted, no_knowledge: bool, budget: Budget) -> None:
    """Offer the agent's tools over the Model Context Protocol, on stdin and stdout.

    Any agent that speaks MCP can be the operator of a run: it reads and edits the workspace, and
    every evaluation is an attempt in the lineage, as with evolve.
    """
    from ..choice import open_knowledge
    from ..evolve import Limits, interruptible
    from ..mcp_server import serve
    from ..plan import open_run
    from .run import building
    from .show import Progress

    limits = Limits(budget)
    with Progress() as watch, building(wanted.jobs) as pool:
        run = open_run(wanted, pool.map, watch)
        with run.lineage.lock(), interruptible(limits), closing(run.bench):
            run.begin()
            knowledge = None if no_knowledge else open_knowledge(run)
            watch.phase(f"serving run {run.name} on stdin and stdout")
            serve(run, knowledge, partial(limits.stop, run), lambda: limits.interrupted)
