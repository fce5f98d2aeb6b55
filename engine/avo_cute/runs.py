"""The runs of a lineage: each a branch, and a tag that says where it began and what it is about."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from . import trailers
from .errors import BadInput
from .history import attempts_of, branch
from .repo import ABSENT, RefUpdate, Repo

FACTS = frozenset({"Task", "Target", "Workloads"})


def start_run(repo: Repo, run: str, start: str, facts: Mapping[str, str]) -> None:
    """Make the branch and the tag of a new run at commit `start`, and point HEAD at it."""
    check_name(run)
    if repo.rev_parse(branch(run)) is not None:
        raise BadInput(f"run {run} exists already: choose another --run NAME")
    message = trailers.compose(f"Run {run}", "", {"Run": run, **facts})
    tag = repo.tag(f"run/{run}", start, message, int(time.time()))
    left = repo.rev_parse(f"{_TAG}/{run}", "tag")  # of a run whose branch was deleted
    updates = [
        RefUpdate(f"{_TAG}/{run}", tag, left or ABSENT),
        RefUpdate(branch(run), start, ABSENT),
    ]
    repo.update_refs(updates, "start")
    repo.set_head(branch(run))


def check_name(run: str) -> None:
    """`BadInput` for a name that git or a shell would not take."""
    if not _NAME.fullmatch(run) or run.endswith((".lock", ".")) or ".." in run:
        raise BadInput(f"{run!r} cannot name a run: use letters, digits, '.', '_' and '-'")


def run_names(repo: Repo) -> list[str]:
    """Every run, the latest first."""
    stem = branch("")
    names = [ref.removeprefix(stem) for ref in repo.refs(stem.rstrip("/"))]
    tags = repo.refs(_TAG, newest_first=True)
    order = {tag.removeprefix(f"{_TAG}/"): n for n, tag in enumerate(tags)}
    order[repo.head().removeprefix(stem)] = -1
    return sorted(names, key=lambda name: (order.get(name, len(tags)), name))


def run_start(repo: Repo, run: str) -> str:
    """The commit a run began at; where its tag did not come along, the seed it rests on."""
    start = repo.rev_parse(f"{_TAG}/{run}")
    if start is None:
        seeds = repo.log("%H", "-1", "--max-parents=0", branch(run))
        start = seeds[0][0]
    return start


def run_facts(repo: Repo, run: str) -> dict[str, str]:
    """Task, Target and Workloads of a run, from its tag or else from its attempts."""
    facts: dict[str, str] = {}
    if repo.rev_parse(f"{_TAG}/{run}", "tag"):
        facts = trailers.parse(repo.read_tag(f"run/{run}"))[2]
    if not facts.keys() >= FACTS:
        for attempt in attempts_of(repo, run, run_start(repo, run)):
            facts |= {k: v for k, v in attempt.trailers.items() if k in FACTS - facts.keys()}
    if missing := sorted(FACTS - facts.keys()):
        raise BadInput(f"run {run} does not say its {', '.join(missing)}: start another run")
    return facts


_TAG = "refs/tags/run"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
