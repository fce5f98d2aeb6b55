"""`knowledge`: search and read what an agent knows from the start, and add documents to it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from . import options as o

if TYPE_CHECKING:
    from ..knowledge import KnowledgeBase
    from ..lineage import Lineage


@click.group(
    epilog="Examples:\n\n  avo-cute knowledge search setmaxnreg\n\n  avo-cute knowledge add papers/"
)
def knowledge() -> None:
    """What an agent can look up: the seed's source, the DSL's documentation, notes, documents."""


@knowledge.command(epilog='Example:\n\n  avo-cute knowledge search "exponential throughput"')
@click.argument("query", nargs=-1, required=True)
@o.lineage
@o.task
@o.target
@o.as_json
def search(
    query: tuple[str, ...],
    lineage_path: Path,
    task: str | None,
    target: str | None,
    as_json: bool,
) -> None:
    """Find passages, the best first, as an agent finds them."""
    from ..errors import Refused
    from .show import print_json

    words = " ".join(query)
    base = _base(lineage_path, task, target)
    found = base.search(words)
    if as_json:
        print_json([asdict(passage) for passage in found])
    for line in base.missing:
        click.echo(f"… {line}", err=True)
    if not found:
        raise Refused(f"nothing found for {words[:100]!r}: use other words")
    if not as_json:
        for passage in found:
            text = " ".join(passage.text.split())
            click.echo(f"[{passage.id}] {passage.title}\n    {text[:300]}\n")


@knowledge.command(epilog="Example:\n\n  avo-cute knowledge read notes:blackwell#tensor-memory")
@click.argument("passage")
@o.lineage
@o.task
@o.target
def read(passage: str, lineage_path: Path, task: str | None, target: str | None) -> None:
    """Print the passage with this id whole."""
    click.echo(_base(lineage_path, task, target).read(passage))


@knowledge.command(
    epilog="Examples:\n\n  avo-cute knowledge add paper.pdf notes.md\n\n"
    "  avo-cute knowledge add papers/"
)
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@o.lineage
@o.as_json
def add(paths: tuple[Path, ...], lineage_path: Path, as_json: bool) -> None:
    """Keep documents in the lineage: Markdown, text, HTML, PDF, or folders of them."""
    from ..knowledge import documents, gather
    from ..lineage import Lineage
    from .show import print_json

    repo = Lineage.open(lineage_path).repo
    gathered = gather.gather(paths)
    for line in gathered.skipped:
        click.echo(f"… skipped: {line}", err=True)
    changes = documents.add(repo, gathered.offered)
    if as_json:
        print_json([asdict(change) for change in changes])
        return
    for change in changes:
        other = change.known_as not in ("", change.name)
        click.echo(f"{change.what}: {change.name}{f', here as {change.known_as}' * other}")


@knowledge.command("list", epilog="Example:\n\n  avo-cute knowledge list --json")
@o.lineage
@o.as_json
def list_(lineage_path: Path, as_json: bool) -> None:
    """The documents that were added, by name."""
    from ..knowledge.documents import documents
    from ..lineage import Lineage
    from .show import print_json

    found = documents(Lineage.open(lineage_path).repo)
    if as_json:
        print_json([asdict(document) for document in found])
        return
    for document in found:
        click.echo(f"{document.characters:>9,}  {document.name}")
    click.echo(f"{len(found)} documents, in characters of text", err=True)


@knowledge.command(epilog="Example:\n\n  avo-cute knowledge remove paper.pdf")
@click.argument("name")
@o.lineage
def remove(name: str, lineage_path: Path) -> None:
    """Take a document away, by the name that `list` shows."""
    from ..knowledge import documents
    from ..lineage import Lineage

    documents.remove(Lineage.open(lineage_path).repo, name)
    click.echo(f"removed: {name}")


def _base(path: Path, task: str | None, target: str | None) -> KnowledgeBase:
    """The base for what was asked for, else for the latest run, else for a seed that is there."""
    from ..config import DEFAULT_TARGET, DEFAULT_TASK
    from ..knowledge import open_base
    from ..lineage import Lineage
    from ..target import find_target

    lineage = Lineage.open(path) if Lineage.exists(path) else None
    told = _of_run(lineage) if lineage is not None else {}
    if task is not None:
        from ..task import find_task

        task = find_task(task).name
    family = find_target(target or told.get("Target", DEFAULT_TARGET)).family
    return open_base(lineage, task or told.get("Task", DEFAULT_TASK), family)


def _of_run(lineage: Lineage) -> dict[str, str]:
    from ..config import DEFAULT_TASK

    if lineage.runs():
        return lineage.run_facts(lineage.find_run())
    tasks = lineage.tasks()
    return {"Task": tasks[0]} if tasks and DEFAULT_TASK not in tasks else {}
