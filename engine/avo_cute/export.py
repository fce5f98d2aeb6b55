"""Taking versions out of a lineage: a patch, plain files, or a whole run as a bundle.

Nothing is ever overwritten, and the lineage is only read.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from . import trailers, workspace
from .errors import AvoError, BadInput, MachineFailed
from .history import UNKNOWN, attempt_ref, branch, kind_of
from .lineage import Lineage
from .moved import Move, moved_tree
from .records import Attempt, Status
from .repo.scratch import Patch, Scratch, scratch

LARGE = 1 << 20  # bytes of a patch that deserve a word


@dataclass(frozen=True, slots=True)
class Change:
    """What is taken out: the change from commit `base` to `attempt`, and the steps in it."""

    attempt: Attempt
    base: str
    run: str
    steps: tuple[Attempt, ...]  # accepted ones between base and attempt, oldest first
    squashed: bool
    rests: bool  # on earlier steps, which are not in it


def change_of(lineage: Lineage, rev: str, run: str | None, squash: bool, force: bool) -> Change:
    """The change that a revision stands for: its own, or with `squash` all of it since the seed.

    `BadInput` for what is no accepted attempt (unless `force`) and for what changes nothing.
    """
    named = lineage.find_run(run)
    attempt = lineage.attempt(lineage.resolve(rev, named))
    here = f"{rev} ({attempt.commit[:10]})" if rev != attempt.commit else attempt.commit[:10]
    if "Upstream" in attempt.trailers or not attempt.parent:
        raise BadInput(f"{here} is a seed: it changes nothing, there is nothing to take home")
    if attempt.run in lineage.runs():
        named = attempt.run
    if not force:
        _must_be_accepted(attempt, here, named)
    seed = lineage.seed_of(named)
    base = seed if squash else attempt.parent
    steps = _steps(lineage, base, attempt, here) if squash else (attempt,)
    if lineage.tree(base) == attempt.tree:
        raise BadInput(f"{here} changes nothing: it has the files of {base[:10]}")
    rests = lineage.tree(base) != lineage.tree(seed)
    return Change(attempt, base, named, steps, squash, rests)


def patch_of(lineage: Lineage, change: Change, move: Move | None) -> Patch:
    """A change as a patch; with `move` for a fork that has the package elsewhere."""
    with scratch(lineage.path / "objects") as room:
        commit = carried(lineage, change, move, room)
        base = room.read_commit(commit).parents[0]
        data = room.patch(commit)
        files = room.changed(base, commit)
    returns = ("--keep-cr",) if b"\r\n" in data else ()
    return Patch(data, ("-3", "--keep-non-patch", *returns), files)


def carried(lineage: Lineage, change: Change, move: Move | None, room: Scratch) -> str:
    """The change as one commit in a scratch repository that borrows from the lineage."""
    trees = [lineage.tree(change.base), change.attempt.tree]
    if move is not None:
        trees = [moved_tree(lineage.repo, tree, move, room) for tree in trees]
    when = change.attempt.when
    base = room.commit(trees[0], (), f"The base of {change.attempt.commit}", when)
    return room.commit(trees[1], [base], _message(lineage, change), when)


def write_patch(patch: Patch, path: Path) -> None:
    """Write a patch to a new file."""
    with _new_file(path) as file:
        file.write(patch.data)


def write_files(lineage: Lineage, commit: str, path: Path) -> int:
    """Write a version's files, byte for byte, into a new folder; how many there are."""
    _must_be_new(path)
    tree = lineage.tree(commit)
    try:
        path.mkdir()
    except OSError as error:
        raise BadInput(f"cannot create {path}: {error.strerror}") from None
    try:
        workspace.export(lineage.repo, tree, path)
    except AvoError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return len(lineage.repo.read_tree(tree))


def write_bundle(lineage: Lineage, run: str, path: Path) -> int:
    """Write a run with its attempts, sessions, notes and tags as a new file; how many refs.

    `git clone` of it checks out the run's branch, `git clone --mirror` makes a lineage.
    """
    _must_be_new(path)
    refs = dict(_refs_of(lineage, run))
    with scratch(lineage.path / "objects") as room, tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "run.bundle"
        room.bundle(branch(run), refs, made)
        with _new_file(path) as file, made.open("rb") as source:
            shutil.copyfileobj(source, file)
    return len(refs)


def _must_be_accepted(attempt: Attempt, here: str, run: str) -> None:
    """Refuse what nobody accepted, and what does not say so."""
    told = attempt.trailers
    unread = [k for k in ("Run", "Attempt", "Status") if k not in told]
    if told.get("Status", "") != str(attempt.status):
        unread.append("Status")
    if attempt.number == UNKNOWN:
        unread.append("Attempt")
    if attempt.status is Status.ACCEPTED and attempt.score is None:
        unread.append("Score")
    if unread:
        names = ", ".join(dict.fromkeys(unread))
        raise BadInput(
            f"{here} is no attempt, or its trailers are damaged: no readable {names}; "
            "--force takes it as it is"
        )
    if attempt.status is not Status.ACCEPTED:
        nothing = f"where run {run} starts" if attempt.number == 0 else str(attempt.status)
        raise BadInput(
            f"{here} is {nothing}, not an accepted attempt; --force takes it all the same"
        )


def _steps(lineage: Lineage, seed: str, last: Attempt, here: str) -> tuple[Attempt, ...]:
    """The accepted attempts on the way from the seed to one."""
    if not lineage.repo.is_ancestor(seed, last.commit):
        raise BadInput(f"{here} does not rest on the seed {seed[:10]}: leave out --squash")
    way = lineage.repo.log("%H", "--first-parent", "--reverse", last.commit, f"^{seed}")
    found = (lineage.attempt(commit) for (commit,) in way)
    return tuple(a for a in found if a.status is Status.ACCEPTED or a.commit == last.commit)


# The message of a patch.


def _message(lineage: Lineage, change: Change) -> str:
    attempt = change.attempt
    subject, body = attempt.subject, _MACHINE.sub("\n", attempt.body).strip("\n")
    if change.squashed and len(change.steps) > 1:
        subject, body = _squashed(change)
    if kind_of(attempt) == "static":
        body = f"{body}\n\n{_STATIC}"
    left = _OF_A_STEP if change.squashed and len(change.steps) > 1 else set()
    kept = {key: attempt.trailers[key] for key in _KEPT if key in attempt.trailers.keys() - left}
    upstream = lineage.attempt(lineage.seed_of(change.run)).trailers.get("Upstream", "")
    kept |= {"Seed": upstream, "Lineage-commit": attempt.commit}
    return trailers.compose(subject, body, kept)


def _squashed(change: Change) -> tuple[str, str]:
    """Subject and body of all steps together."""
    last, steps = change.attempt, change.steps
    prefix = _PREFIX.match(last.subject)
    subject = f"{prefix[0] if prefix else ''}Take {len(steps)} steps of {change.run}"
    lines = [f"All accepted steps from the seed to attempt {last.number} of run {change.run}:", ""]
    for step in steps:
        gain = "   ?   " if step.gain is None else f"{step.gain - 1:+7.2%}"
        status = "" if step.status is Status.ACCEPTED else f" ({step.status})"
        lines.append(f"  {step.number:>4}  {gain}  {step.subject}{status}")
    if last.score is not None:
        lines += ["", f"Head to head with the seed: {_score(last)}"]
    return subject, "\n".join(lines)


def _score(attempt: Attempt) -> str:
    told = attempt.trailers.get("Score-interval", "")
    interval = f" [{told}]" if told else ""
    return f"{attempt.score:.4f} x the seed{interval}, {kind_of(attempt)}"


# What a search reads again from its own commits.
_MACHINE = re.compile(r"\n+ *knobs \{.*\} [0-9a-f]{16} -> .*(?:\n *before \{.*)?\n")
_PREFIX = re.compile(r"\[[^\]]*\] ")
_STATIC = (
    "The score is an estimate from the machine code. Nothing was run on a GPU: this is\n"
    "a candidate to test."
)
_KEPT = (
    "Task", "Run", "Attempt", "Status", "Score", "Score-interval", "Score-kind", "Gain", "Gains",
    "Cycles", "Tflops", "Latency-us", "Hidden", "Level", "Workloads", "Target", "Device",
    "Toolchain", "Evaluator", "Artifact", "Operator",
)  # fmt: skip
_OF_A_STEP = {"Gain", "Gains"}  # over the version before


# Where it goes.


def _refs_of(lineage: Lineage, run: str) -> Iterator[tuple[str, str]]:
    """Every ref that belongs to a run, its seed's too, and the object it names."""
    repo = lineage.repo
    seed = f"refs/heads/seed/{lineage.run_facts(run)['Task']}"
    attempts = attempt_ref(run, 0).rpartition("/")[0]
    for prefix in (branch(run), seed, attempts, f"refs/sessions/{run}", "refs/notes/bench"):
        yield from repo.refs(prefix).items()
    for prefix in (f"refs/tags/run/{run}", f"refs/tags/milestone/{run}"):
        for name, commit in repo.refs(prefix).items():
            yield name, repo.rev_parse(name, "tag") or commit


def _must_be_new(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise BadInput(f"{path} exists already and is never overwritten: choose another -o PATH")
    if not path.parent.is_dir():
        raise BadInput(f"{path.parent} is no folder: make it first")


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that was not there before, and is not there afterwards if writing fails."""
    _must_be_new(path)
    try:
        file = path.open("xb")
    except OSError as error:
        raise BadInput(f"cannot create {path}: {error.strerror}") from None
    whole = False
    try:
        with file:
            yield file
        whole = True
    except OSError as error:
        raise MachineFailed(f"cannot write {path}: {error.strerror}") from None
    finally:
        if not whole:
            path.unlink(missing_ok=True)
