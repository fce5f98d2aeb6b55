"""Commands that take kernels home: export, check-fork."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options as o
from .bundles import bundle

if TYPE_CHECKING:
    from ..export import Change
    from ..forks import Answer, Question
    from ..lineage import Lineage
    from ..plan import Wanted
    from ..repo.scratch import Patch

_module = o.option(
    "--module",
    metavar="NAME",
    help="What the moved package is imported as. [default: the folder's path with dots]",
)


_RESTS = "It rests on earlier accepted steps: --squash has them in it."
_SQUASH = "All that changed since the seed, not REV's own step alone."


def _where(relative: str | None, module: str | None) -> tuple[str, str | None] | None:
    if module is not None and relative is None:
        raise click.UsageError("--module needs --relative DIR")
    return None if relative is None else (relative, module)


def _change(
    rev: str, lineage_path: Path, run_name: str | None, squash: bool, force: bool
) -> tuple[Lineage, Change]:
    from ..export import change_of
    from ..lineage import Lineage

    lineage = Lineage.open(lineage_path)
    return lineage, change_of(lineage, rev, run_name, squash, force)


@click.command(
    epilog="Examples:\n\n  avo-cute export best -o kernel.patch\n\n"
    "  avo-cute export best --squash --relative vllm/vllm_flash_attn/cute -o kernel.patch\n\n"
    "  avo-cute export best --format bundle -o run.bundle"
)
@click.argument("rev")
@o.option(
    "--format",
    "form",
    type=click.Choice(["patch", "files", "bundle"]),
    default="patch",
    show_default=True,
    help="A mail for `git am`; a folder of plain files; the whole run for `git clone`.",
)
@o.option(
    "--output", "-o", type=click.Path(path_type=Path), required=True, help="What to make; new."
)
@o.option("--squash", is_flag=True, help=_SQUASH)
@bundle(
    "where",
    _where,
    o.option("--relative", metavar="DIR", help="For a fork that has the package's folder at DIR."),
    _module,
)
@o.option("--force", is_flag=True, help="Also what was not accepted.")
@o.lineage
@o.run
@o.as_json
def export(
    rev: str,
    form: str,
    output: Path,
    squash: bool,
    where: tuple[str, str | None] | None,
    force: bool,
    lineage_path: Path,
    run_name: str | None,
    as_json: bool,
) -> None:
    """Take a version out of the lineage, to carry it elsewhere. Nothing is overwritten."""
    from ..export import write_bundle, write_files
    from .show import print_json

    if form != "patch" and (squash or where):
        raise click.UsageError("--squash and --relative are for --format patch")
    lineage, change = _change(rev, lineage_path, run_name, squash, force)
    told = _told(form, output, change)
    if form == "patch":
        told |= _patch(lineage, change, output, where)
    elif form == "files":
        told |= {"files": write_files(lineage, change.attempt.commit, output)}
    else:
        told |= {"refs": write_bundle(lineage, change.run, output)}
        told |= {"bytes": output.stat().st_size}
        told |= {"take": f"git clone --mirror {shlex.quote(str(output))} lineage.git"}
    if as_json:
        print_json(told)
    else:
        _print_exported(told, change)


def _told(form: str, output: Path, change: Change) -> dict[str, Any]:
    return {
        "format": form,
        "path": str(output),
        "commit": change.attempt.commit,
        "status": str(change.attempt.status),
        "run": change.run,
    }


def _patch(
    lineage: Lineage, change: Change, output: Path, where: tuple[str, str | None] | None
) -> dict[str, Any]:
    from ..export import patch_of, write_patch
    from ..moved import move_to

    tree = change.attempt.tree
    move = None if where is None else move_to(lineage.repo, tree, *where)
    patch = patch_of(lineage, change, move)
    write_patch(patch, output)
    return {
        "base": change.base,
        "rests_on_earlier_steps": change.rests,
        "bytes": len(patch.data),
        "changed": list(patch.files),
        "steps": [a.commit for a in change.steps],
        "module": move and move.to_module,
        "take": _am(patch, output),
    }


def _am(patch: Patch, path: Path) -> str:
    return f"git am {' '.join(patch.options)} {shlex.quote(str(path.absolute()))}"


def _print_exported(told: dict[str, Any], change: Change) -> None:
    from ..export import LARGE
    from ..history import kind_of

    attempt = change.attempt
    size = f", {told['bytes']:,} bytes" if "bytes" in told else ""
    what = {
        "patch": f"changes {', '.join(told.get('changed', ()))}",
        "files": f"{told.get('files')} files",
        "bundle": f"{told.get('refs')} refs of run {change.run}",
    }[told["format"]]
    click.echo(f"{told['path']}: {attempt.commit[:10]} {attempt.subject}\n{what}{size}")
    if told["format"] == "patch" and told["bytes"] > LARGE:
        click.echo(f"That is large for a patch: {told['bytes'] / LARGE:.1f} MB.")
    if told["format"] == "patch" and change.rests:
        click.echo(_RESTS)
    if attempt.status != "accepted":
        click.echo(f"Its status is {attempt.status}.")
    if kind_of(attempt) == "static":
        click.echo("Its score is an estimate: a candidate to test, nothing was run on a GPU.")
    if "take" in told:
        click.echo(f"\n  {told['take']}")


def _wanted(
    lineage_path: Path, task: str | None, run_name: str | None, jobs: int, unsafe: bool
) -> Wanted:
    from ..plan import Wanted

    return Wanted(lineage_path, task, run=run_name, unsafe=unsafe, devices="none", jobs=jobs)


def _question(directory: str | None, module: str | None, squash: bool) -> Question:
    from ..forks import Question

    if module is not None and directory is None:
        raise click.UsageError("--module needs --directory DIR")
    return Question("", squash, directory, module)


@click.command(
    epilog="Examples:\n\n  avo-cute check-fork ~/src/flash-attention best\n\n"
    "  avo-cute check-fork ~/src/vllm 4 --directory vllm/vllm_flash_attn/cute"
)
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("rev")
@bundle(
    "question",
    _question,
    o.option("--directory", metavar="DIR", help="Where the fork has the package's folder."),
    _module,
    o.option("--squash", is_flag=True, help=_SQUASH),
)
@bundle("wanted", _wanted, o.lineage, o.task, o.run, o.jobs, o.unsafe)
@o.as_json
def check_fork(path: Path, rev: str, question: Question, wanted: Wanted, as_json: bool) -> None:
    """Say beforehand whether REV applies to the fork at PATH and builds there.

    The fork is only read, at its HEAD. Exit 1 where it does not apply or does not build.
    """
    from ..errors import Refused
    from ..forks import check_fork
    from .run import building
    from .show import Progress, print_json

    asked = replace(question, rev=rev)
    with Progress(quiet=as_json) as watch, building(wanted.jobs) as pool:
        answer = check_fork(path, asked, wanted, pool.map, watch)
    if as_json:
        print_json(answer_json(answer))
    else:
        print_answer(answer)
    if not answer.good:
        raise Refused(f"{rev} {refusal(answer)} {path}")


def refusal(answer: Answer) -> str:
    return "does not build in" if answer.applies else "does not apply to"


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer as `--json` shows it."""
    return {
        "fork": str(answer.fork),
        "head": answer.head,
        "dirty": answer.dirty,
        "commit": answer.change.attempt.commit,
        "base": answer.change.base,
        "rests_on_earlier_steps": answer.change.rests,
        "how": answer.how,
        "applies": answer.applies,
        "conflicts": [
            {"path": c.path, "places": [list(p) for p in c.places], "why": c.why}
            for c in answer.conflicts
        ],
        "changed": list(answer.changed),
        "builds": answer.builds,
        "status": answer.status,
        "reason": answer.reason,
        "fork_builds": answer.fork_builds,
        "target": answer.target,
        "same_objects": dict(answer.same),
        "good": answer.good,
    }


def print_answer(answer: Answer) -> None:
    """What was looked at, whether it applies, builds, and is the same machine code."""
    attempt = answer.change.attempt
    dirty = ", its uncommitted changes left out" if answer.dirty else ""
    click.echo(f"{answer.fork} at {answer.head[:10]}{dirty}")
    status = "" if attempt.status == "accepted" else f" ({attempt.status})"
    click.echo(f"{attempt.commit[:10]} {attempt.subject}{status}\n")
    how = {"cherry-pick": "git cherry-pick", "am": "git am -3"}[answer.how]
    if answer.change.rests:
        click.echo(_RESTS)
    if not answer.applies:
        click.echo(f"{how}: conflicts")
        for c in answer.conflicts:
            places = ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in c.places)
            click.echo(f"  {c.path}{':' if places else ''}{places}  {c.why}")
        return
    changed = ", ".join(answer.changed) or "nothing: the fork has it already"
    click.echo(f"{how}: applies; changes {changed}")
    if not answer.builds:
        alone = "builds" if answer.fork_builds else "does not build here either"
        click.echo(f"build for {answer.target}: {answer.status}: {answer.reason}")
        click.echo(f"the fork as it is {alone}")
        return
    click.echo(f"build for {answer.target}: passes the audit")
    other = [name for name, same in answer.same.items() if not same]
    if other:
        click.echo(
            f"other objects than the lineage's for {', '.join(other)}: the score is not theirs"
        )
    else:
        click.echo(f"the lineage's objects, byte for byte, for all {len(answer.same)} workloads")
