"""Options that several commands share, as decorators. Each has an environment variable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ..config import DEFAULT_LINEAGE, ENV_PREFIX

F = TypeVar("F", bound=Callable[..., Any])


def option(name: str, *more: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` with `AVO_CUTE_<NAME>` as its environment variable, shown in the help."""
    variable = ENV_PREFIX + name.lstrip("-").replace("-", "_").upper()
    return click.option(name, *more, envvar=variable, show_envvar=True, **settings)


def _names_a_gpu(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refused before anything is made; which GPUs there are is found out later."""
    if value:
        from ..measure.devices import names

        names(value)
    return value


lineage = option(
    "--lineage",
    "lineage_path",
    type=click.Path(path_type=Path),
    default=Path(DEFAULT_LINEAGE),
    show_default=True,
    help="The bare repository that holds everything.",
)
task = option("--task", help="Task to evolve: a shipped name or a directory. [default: fa4]")
target = option("--target", help="GPU to build for. [default: the GPU found, else b200]")
run = option("--run", "run_name", help="Name of the run. [default: the latest that fits]")
workloads = option(
    "--workloads",
    "group",
    help="Workload group to judge, e.g. mha, gqa, all. [default: the task's]",
)
jobs = option(
    "--jobs", type=click.IntRange(1, 256), default=2, show_default=True, help="Builds at once."
)
unsafe = option(
    "--unsafe-no-sandbox",
    "unsafe",
    is_flag=True,
    help="Build without any sandbox where none works. The verdicts say so.",
)
devices = option(
    "--devices",
    metavar="LIST",
    default="",
    callback=_names_a_gpu,
    help="GPUs to measure on, e.g. 0,1; none: estimate only. [default: all of the target's]",
)
as_json = option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
