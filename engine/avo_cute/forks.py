"""Asking beforehand what a version would do in someone's fork: does it apply, does it build?

The fork is only read. Its HEAD and the change meet in a scratch repository that borrows the objects
of both; what comes out is built in the sandbox like any candidate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from .bench import Bench, Spread
from .errors import BadInput
from .export import Change, carried, change_of, patch_of
from .lineage import Lineage
from .moved import Move, move_to, moved_tree
from .plan import Wanted, make_bench
from .records import Verdict
from .repo.scratch import Carried, Conflict, Fork, Scratch, scratch
from .run import Watch
from .score import judge_tree
from .target import find_target
from .task import find_task, shipped_tasks


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: which version, whole or its own change, for which folder of the fork."""

    rev: str
    squash: bool = False
    directory: str | None = None
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a version does in a fork. `status` and `reason` are of the build, "" without one."""

    fork: Path
    head: str  # the commit of the fork that was looked at
    dirty: bool
    change: Change
    how: str  # "cherry-pick" or "am"
    conflicts: tuple[Conflict, ...] = ()
    changed: tuple[str, ...] = ()  # the fork's files that it would change
    builds: bool = False
    status: str = ""
    reason: str = ""
    fork_builds: bool | None = None  # asked only where the result does not
    target: str = ""
    same: Mapping[str, bool] = field(default_factory=dict)  # workload -> the lineage's object

    @property
    def applies(self) -> bool:
        return not self.conflicts

    @property
    def good(self) -> bool:
        """Whether it can be taken over as it is."""
        return self.applies and self.builds


@dataclass(frozen=True, slots=True)
class _Meeting:
    """Where a fork and a change meet. `tree` is the fork's."""

    lineage: Lineage
    room: Scratch
    change: Change
    move: Move | None
    tree: str


def check_fork(
    path: Path, question: Question, wanted: Wanted, spread: Spread, watch: Watch
) -> Answer:
    """Put a version on a fork's HEAD, out of its sight, and build what comes out."""
    lineage = Lineage.open(wanted.lineage)
    change = change_of(lineage, question.rev, wanted.run, question.squash, force=True)
    fork = Fork.at(path)
    head, tree = fork.rev_parse("HEAD"), fork.rev_parse("HEAD", "tree")
    if head is None or tree is None:
        raise BadInput(f"{path} has no commit yet: commit your files first")
    move = _move(lineage, change, question)
    bench = _bench(lineage, change.run, wanted, spread, watch)
    # `git am` in the fork would see the fork's objects only
    lent = (fork.objects,) if move else (fork.objects, lineage.path / "objects")
    with scratch(*lent) as room:
        watch.phase(f"putting {question.rev} on {head[:10]} of {path}")
        meeting = _Meeting(lineage, room, change, move, tree)
        _must_have_common_files(meeting, path)
        found = _put(meeting)
        how = "cherry-pick" if move is None else "am"
        answer = Answer(path, head, fork.dirty(), change, how, found.conflicts, found.changed)
        if not answer.applies:
            return answer
        return _built(replace(answer, target=bench.target.name), meeting, found.tree, bench, watch)


def _move(lineage: Lineage, change: Change, question: Question) -> Move | None:
    if question.directory is None:
        return None
    tree = change.attempt.tree
    return move_to(lineage.repo, tree, question.directory, question.module)


def _bench(lineage: Lineage, run: str, wanted: Wanted, spread: Spread, watch: Watch) -> Bench:
    """How the run judges, on a machine without a GPU: nothing is measured here."""
    facts = lineage.run_facts(run)
    if wanted.task is None and facts["Task"] not in shipped_tasks():
        raise BadInput(f"task {facts['Task']} is not shipped: give --task DIRECTORY")
    task = find_task(wanted.task or facts["Task"])
    target = find_target(facts["Target"])
    unmeasured = replace(wanted, devices="none")
    return make_bench(task, target, facts["Workloads"], unmeasured, spread, watch)


def _must_have_common_files(meeting: _Meeting, path: Path) -> None:
    """Refuse a fork that has nothing of the lineage: every file would be a conflict."""
    move = meeting.move
    ours = meeting.lineage.repo.read_tree(meeting.change.base)
    nested = [move.path(p) if move else p for p in ours if "/" in p] or list(ours)
    theirs = meeting.room.read_tree(meeting.tree)
    if not any(p in theirs for p in nested):
        folder = PurePosixPath(min(nested)).parent
        remedy = "look at the spelling" if move else "--directory DIR says where it has them"
        raise BadInput(f"{path} has none of the lineage's files in {folder}: {remedy}")


def _put(meeting: _Meeting) -> Carried:
    """As the user would: cherry-pick, or `git am` of the patch where the folder has moved."""
    room, change = meeting.room, meeting.change
    onto = room.commit(meeting.tree, (), "The fork", change.attempt.when)
    if meeting.move is None:
        return room.cherry_pick(carried(meeting.lineage, change, None, room), onto)
    patch = patch_of(meeting.lineage, change, meeting.move)
    return room.am(patch, onto)


def _built(answer: Answer, meeting: _Meeting, result: str, bench: Bench, watch: Watch) -> Answer:
    """Build the result, and the lineage's version to compare the objects with."""
    watch.phase(f"building what comes out, for {bench.target.title}")
    verdict = judge_tree(meeting.room, _candidate(meeting, result), bench, None)
    if not verdict.estimates:
        watch.phase("building the fork as it is")
        alone = judge_tree(meeting.room, _candidate(meeting, meeting.tree), bench, None)
        fine, status = bool(alone.estimates), str(verdict.status)
        return replace(answer, status=status, reason=verdict.reason, fork_builds=fine)
    watch.phase("building the lineage's version")
    theirs = judge_tree(meeting.lineage.repo, answer.change.attempt.tree, bench, None)
    return replace(answer, builds=True, same=_compared(verdict, theirs, bench))


def _candidate(meeting: _Meeting, tree: str) -> str:
    """The part of a fork's tree that the task builds: the folders in which the lineage has files,
    at the lineage's paths. Links are left out: a candidate is plain files."""
    room = meeting.room
    if meeting.move is not None:
        tree = moved_tree(room, tree, meeting.move.back(), room)
    names = meeting.lineage.repo.read_tree(meeting.change.attempt.tree)
    folders = {str(PurePosixPath(name).parent) for name in names if "/" in name}
    kept = {
        path: entry
        for path, entry in room.read_tree(tree).items()
        if path in names or any(path.startswith(f"{folder}/") for folder in folders)
    }
    plain = {path: entry for path, entry in kept.items() if entry.mode in ("100644", "100755")}
    return room.write_tree(plain)


def _compared(verdict: Verdict, theirs: Verdict, bench: Bench) -> dict[str, bool]:
    """For each public workload whether both have the same object, byte for byte."""
    found = {}
    for name in (w.name for w in bench.workloads):
        pair = [v.objects.get(name) for v in (verdict, theirs)]
        ids = {hashlib.sha256(p.read_bytes()).digest() if p else None for p in pair}
        found[name] = len(ids) == 1 and None not in ids
    return found
