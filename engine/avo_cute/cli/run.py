"""Commands that make a lineage or judge one candidate: init, evaluate, record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config import DEFAULT_TASK
from . import options as o

if TYPE_CHECKING:
    from ..executor import LocalExecutor


@click.command(
    epilog="Examples:\n\n  avo-cute init\n\n  avo-cute init --from ~/src/flash-attention@my-branch"
)
@o.lineage
@o.task
@click.option(
    "--from",
    "fork",
    envvar="AVO_CUTE_INIT_FROM",  # AVO_CUTE_FROM is evolve's
    show_envvar=True,
    metavar="PATH[@REV]",
    help="Seed from your own checkout instead of the release.",
)
@o.as_json
def init(lineage_path: Path, task: str | None, fork: str | None, as_json: bool) -> None:
    """Create the lineage and the seed commit: upstream's files, byte for byte."""
    from .. import plan
    from ..seed import from_checkout
    from ..task import find_task
    from .show import print_json

    chosen = find_task(task or DEFAULT_TASK)
    if fork is None:
        seed = plan.seed_of(chosen)
    else:
        whole = Path(fork).exists()  # a path may hold an @ itself
        path, _, rev = (fork, "", "") if whole else fork.rpartition("@")
        path = path or fork
        seed = from_checkout(chosen.directory / "seed.toml", Path(path), rev or None)
    lineage = plan.init(lineage_path, chosen, seed)
    commit = lineage.seed(chosen.name)
    if as_json:
        print_json(
            {
                "lineage": str(lineage_path),
                "task": chosen.name,
                "seed": commit,
                "upstream": seed.upstream,
                "files": len(seed.files),
            }
        )
        return
    click.echo(
        f"{lineage_path}: seed/{chosen.name} {commit[:10]}, {len(seed.files)} files, "
        f"{seed.upstream}"
    )


@click.command(
    epilog="Examples:\n\n  avo-cute evaluate best --json\n\n"
    "  avo-cute evaluate ./my-tree --against 12\n\n  avo-cute evaluate best --profile"
)
@click.argument("candidate", metavar="REV|DIR")
@o.lineage
@o.task
@o.target
@o.run
@o.workloads
@o.option("--against", metavar="REV", help="Compare with this instead of the incumbent.")
@o.option(
    "--profile",
    is_flag=True,
    help="Also say where the time goes: ncu's counters of one launch, and the hot loop.",
)
@o.devices
@o.jobs
@o.unsafe
@o.as_json
def evaluate(
    candidate: str,
    lineage_path: Path,
    task: str | None,
    target: str | None,
    run_name: str | None,
    group: str | None,
    against: str | None,
    profile: bool,
    devices: str,
    jobs: int,
    unsafe: bool,
    as_json: bool,
) -> None:
    """Build, audit and score a candidate exactly as the engine does; records nothing."""
    from ..once import evaluate_once
    from ..plan import Wanted
    from ..profiles import profile_of
    from .show import Progress, print_verdict

    wanted = Wanted(lineage_path, task, target, run_name, group, None, unsafe, devices, jobs)
    with Progress(quiet=as_json) as watch, building(jobs) as pool:
        bench, verdict = evaluate_once(candidate, against, wanted, pool.map, watch)
        if profile:
            watch.phase(f"profiling {candidate}")
        digest = profile_of(verdict, bench) if profile else ""
    print_verdict(bench, verdict, as_json, digest)


@click.command(
    epilog="Example:\n\n  avo-cute checkout best work && $EDITOR work/… && "
    "avo-cute record work -m 'Split P arrive at half of the tile'"
)
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@o.option("--message", "-m", required=True, help="Subject, and after a blank line the reasons.")
@o.lineage
@o.run
@o.devices
@o.jobs
@o.unsafe
@o.as_json
def record(
    directory: Path,
    message: str,
    lineage_path: Path,
    run_name: str | None,
    devices: str,
    jobs: int,
    unsafe: bool,
    as_json: bool,
) -> None:
    """Evaluate DIRECTORY as an attempt of the run: you are the operator."""
    from ..once import record_once
    from ..plan import Wanted
    from .show import Progress, print_attempt

    wanted = Wanted(lineage_path, run=run_name, unsafe=unsafe, devices=devices, jobs=jobs)
    with Progress(quiet=as_json) as watch, building(jobs) as pool:
        attempt = record_once(directory, message, wanted, pool.map, watch)
    print_attempt(attempt, as_json)


@contextmanager
def building(jobs: int) -> Iterator[LocalExecutor]:
    """An executor that is closed in the end, whatever happens."""
    from ..executor import LocalExecutor

    pool = LocalExecutor(jobs)
    try:
        yield pool
    except BaseException:
        pool.stop()  # a second Ctrl-C, or a failing machine: nobody waits for builds
        raise
    finally:
        pool.close()
