"""Commands that read a lineage: log, show, best, attempts, diff, checkout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..records import Attempt, Status
from . import options as o
from .glance import Wish, bounds, gain_on, story, why, wish, wish_of_accepted, workloads_of

if TYPE_CHECKING:
    from ..lineage import Lineage


@click.command(
    epilog="Examples:\n\n  avo-cute log --run fa4-b200-20261201\n\n"
    "  avo-cute log --workload mha-causal-32k --last 5"
)
@o.lineage
@o.run
@wish_of_accepted
@o.as_json
def log(lineage_path: Path, run_name: str | None, wish: Wish, as_json: bool) -> None:
    """The accepted versions of a run, newest first."""
    lineage, name = _open(lineage_path, run_name)
    accepted = [a for a in lineage.attempts(name) if a.status is Status.ACCEPTED and a.number > 0]
    _print_list(lineage, name, wish, accepted, as_json)


@click.command(
    epilog="Examples:\n\n  avo-cute attempts --status build-failed --status crashed\n\n"
    "  avo-cute attempts --operator agent --text tmem --last 20\n\n  avo-cute attempts --json"
)
@o.lineage
@o.run
@wish
@o.as_json
def attempts(lineage_path: Path, run_name: str | None, wish: Wish, as_json: bool) -> None:
    """Every attempt of a run, oldest first, and why each ended as it did."""
    lineage, name = _open(lineage_path, run_name)
    _print_list(lineage, name, wish, lineage.attempts(name), as_json, reasons=True)


@click.command(epilog="Examples:\n\n  avo-cute show best\n\n  avo-cute show 17")
@click.argument("rev")
@o.lineage
@o.run
@o.as_json
def show(rev: str, lineage_path: Path, run_name: str | None, as_json: bool) -> None:
    """One attempt: what was tried, what was seen, and what changed."""
    from .show import attempt_json, print_json

    lineage, name = _open(lineage_path, run_name)
    commit = lineage.resolve(rev, name)
    attempt = lineage.attempt(commit)
    note = lineage.read_note(commit)
    if as_json:
        print_json(attempt_json(attempt) | {"note": note})
        return
    said = "\n".join(f"{key}: {value}" for key, value in attempt.trailers.items())
    click.echo(f"commit {attempt.commit}\n\n{attempt.subject}\n\n{attempt.body}\n\n{said}")
    if note:
        click.echo(f"\nVerified later:\n\n{note.rstrip()}")
    if attempt.parent:
        click.echo("\n" + lineage.diff(attempt.parent, attempt.commit))


@click.command(epilog="Example:\n\n  avo-cute best --json")
@o.lineage
@o.run
@o.as_json
def best(lineage_path: Path, run_name: str | None, as_json: bool) -> None:
    """The best accepted version of a run."""
    from .show import print_attempt

    lineage, name = _open(lineage_path, run_name)
    print_attempt(lineage.attempt(lineage.resolve("best", name)), as_json)


@click.command(epilog="Examples:\n\n  avo-cute diff best\n\n  avo-cute diff 3 best")
@click.argument("rev")
@click.argument("other", required=False)
@o.lineage
@o.run
@o.as_json
def diff(
    rev: str, other: str | None, lineage_path: Path, run_name: str | None, as_json: bool
) -> None:
    """What changed: in REV against the seed, or from REV to OTHER."""
    from .show import print_json

    lineage, name = _open(lineage_path, run_name)
    if other is None:
        old, new = lineage.seed_of(name), lineage.resolve(rev, name)
    else:
        old, new = lineage.resolve(rev, name), lineage.resolve(other, name)
    if as_json:
        print_json({"from": old, "to": new, "diff": lineage.diff(old, new)})
        return
    click.echo(lineage.diff(old, new), nl=False)


@click.command(epilog="Example:\n\n  avo-cute checkout best work/")
@click.argument("rev")
@click.argument("directory", type=click.Path(path_type=Path))
@o.lineage
@o.run
@o.as_json
def checkout(
    rev: str, directory: Path, lineage_path: Path, run_name: str | None, as_json: bool
) -> None:
    """Write a version as plain files, for a human or any coding agent."""
    from ..errors import BadInput
    from ..workspace import export
    from .show import print_json

    lineage, name = _open(lineage_path, run_name)
    commit = lineage.resolve(rev, name)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BadInput(f"{directory} exists and is not an empty folder: choose another")
    directory.mkdir(parents=True, exist_ok=True)
    export(lineage.repo, lineage.tree(commit), directory)
    if as_json:
        print_json({"directory": str(directory), "commit": commit, "run": name})
        return
    click.echo(f"{directory}: {commit[:10]} {lineage.subject(commit)}")


def _print_list(
    lineage: Lineage,
    run: str,
    wish: Wish,
    attempts: Sequence[Attempt],
    as_json: bool,
    *,
    reasons: bool = False,
) -> None:
    """Attempts under the story of their run; accepted ones alone come newest first."""
    from .show import HEADER, attempt_json, attempt_line, print_json

    workloads = workloads_of(lineage, run)
    found = wish.of(attempts, workloads)
    found = found if reasons else found[::-1]
    if as_json:
        print_json([attempt_json(a) for a in found])
        return
    click.echo("\n".join(story(lineage, run, lineage.attempts(run))))
    if found:
        click.echo(f"\n{HEADER}")
    for attempt in found:
        line = attempt_line(attempt) + ("" if reasons else bounds(attempt))
        if wish.workload is not None:
            line += f"  {(gain_on(attempt, wish.workload, workloads) or 1.0) - 1:+.2%} there"
        click.echo(line)
        if reasons and attempt.number > 0:
            click.echo(click.style(why(attempt), dim=True))


def _open(path: Path, run_name: str | None) -> tuple[Lineage, str]:
    """The lineage and the run meant: the named one, else the latest."""
    from ..lineage import Lineage  # and not plan: that would import what judges

    lineage = Lineage.open(path)
    return lineage, lineage.find_run(run_name)
