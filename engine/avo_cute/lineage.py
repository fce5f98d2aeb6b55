"""The lineage: a bare repository in which every evaluated candidate is a commit with its score.

    refs/heads/seed/<task>            upstream's source
    refs/heads/lineage/<run>          accepted attempts, fast-forward only
    refs/attempts/<run>/<nnnn>        every other attempt; parent = what it started from
    refs/sessions/<run>/<nnnn>        a commit whose tree is a session's transcript
    refs/tags/run/<run>               where a run began, and its facts as trailers
    refs/tags/milestone/<run>/…       commits worth finding again
    refs/notes/bench                  later re-measurements

Nothing is cached on disk. Objects are written first and a ref is moved last, so a kill costs at
most the attempt in hand.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from . import history, trailers
from .errors import BadInput
from .history import attempt_ref, branch
from .records import Attempt, Status
from .repo import ABSENT, EMPTY_TREE, FILE, Entry, RefUpdate, Repo
from .runlock import notes_lock, run_lock
from .runs import run_facts, run_names, run_start, start_run

if TYPE_CHECKING:
    from .seed import Seed

PACK_EVERY = 256  # attempts between two packings


@dataclass(frozen=True, slots=True)
class AttemptDraft:
    """An attempt about to be recorded. `number` None: the run's next. `trailers` come ready."""

    run: str
    tree: str
    parent: str
    status: Status
    subject: str
    body: str
    trailers: Mapping[str, str]
    number: int | None = None


class Lineage:
    """A lineage on disk. Reading needs no lock; whoever records holds `lock()`."""

    def __init__(self, repo: Repo) -> None:
        self.repo, self.path = repo, repo.path
        self._next: dict[str, int] = {}  # run -> number of its next attempt
        self._unpacked = 0
        self._locked = False
        self._commit = lru_cache(4096)(repo.read_commit)  # commits never change

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether there is a lineage (or something that claims to be one) at `path`."""
        return (path / "HEAD").is_file() and (path / "objects").is_dir()

    @classmethod
    def create(cls, path: Path) -> Lineage:
        """Make an empty lineage in a folder that is new, or empty but for a README."""
        if cls.exists(path):
            raise BadInput(f"{path} is a lineage already")
        others = {p.name for p in path.iterdir()} - _SKELETON if path.is_dir() else set()
        if others:
            raise BadInput(f"{path} is not empty (it holds {min(others)!a}): choose another place")
        return cls(Repo.create(path))

    @classmethod
    def open(cls, path: Path) -> Lineage:
        """The lineage at `path`; `BadInput` where there is none or it is damaged."""
        if not cls.exists(path):
            raise BadInput(f"no lineage at {path}: `avo-cute init` or `avo-cute evolve` makes one")
        return cls(Repo.open(path, bare=True))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold this lineage against other processes; `Busy` if one holds it. May be nested."""
        if self._locked:
            yield
            return
        with run_lock(self.path):
            self._locked = True
            self._next.clear()  # someone else may have recorded since
            try:
                yield
            finally:
                self._locked = False

    # Seeds and runs.

    def init_seed(self, task: str, seed: Seed) -> str:
        """Commit the seed of a task; the commit there already if it holds the same files."""
        blobs = self.repo.write_blobs(list(seed.files.values()))
        entries = {path: Entry(FILE, b) for path, b in zip(seed.files, blobs, strict=True)}
        tree = self.repo.write_tree(entries)
        ref = f"refs/heads/seed/{task}"
        there = self.repo.rev_parse(ref)
        if there is not None:
            if self.tree(there) == tree:
                return there
            raise BadInput(
                f"{self.path} starts task {task} at other files than {seed.upstream}: "
                "use another --lineage PATH"
            )
        facts = {"Task": task, "Upstream": seed.upstream}
        message = trailers.compose(seed.subject, "", facts)
        commit = self.repo.commit(tree, (), message, int(time.time()))
        self.repo.update_refs([RefUpdate(ref, commit, ABSENT)], "seed")
        if not self.repo.refs("refs/heads/lineage"):
            self.repo.set_head(ref)
        return commit

    def tasks(self) -> list[str]:
        """Tasks that have a seed here."""
        return [ref.removeprefix("refs/heads/seed/") for ref in self.repo.refs("refs/heads/seed")]

    def seed(self, task: str) -> str:
        """The seed commit of a task."""
        commit = self.repo.rev_parse(f"refs/heads/seed/{task}")
        if commit is None:
            raise BadInput(f"{self.path} has no seed of task {task}: `avo-cute init --task {task}`")
        return commit

    def seed_of(self, run: str) -> str:
        """The seed commit that a run's scores are relative to."""
        return self.seed(self.run_facts(run)["Task"])

    def start_run(self, run: str, start: str, facts: Mapping[str, str]) -> None:
        """Begin a run at commit `start`; its facts (Task, Target, Workloads) are kept with it."""
        start_run(self.repo, run, start, facts)

    def runs(self) -> list[str]:
        """Every run, the latest first."""
        return run_names(self.repo)

    def find_run(self, name: str | None = None) -> str:
        """The run called `name`, or the latest; `BadInput` lists the runs there are."""
        runs = self.runs()
        if not runs:
            raise BadInput(f"{self.path} has no run yet: start one with `avo-cute evolve`")
        if name is not None and name not in runs:
            raise BadInput(f"no run {name!r} in {self.path}: it has {', '.join(runs)}")
        return name or runs[0]

    def run_facts(self, run: str) -> dict[str, str]:
        """Task, Target and Workloads of a run; `BadInput` where there is no such run."""
        return run_facts(self.repo, self.find_run(run))

    # Attempts.

    def record(self, draft: AttemptDraft) -> Attempt:
        """Commit one attempt: an accepted one moves the branch, any other gets a ref of its own.

        `Refused` where the branch is not at the draft's parent any more, or the number is taken;
        nothing is recorded then.
        """
        number = self.next_number(draft.run) if draft.number is None else draft.number
        facts = {
            "Run": draft.run,
            "Attempt": str(number),
            "Status": str(draft.status),
            **{k: v for k, v in draft.trailers.items() if k not in _OURS},
        }
        message = trailers.compose(draft.subject, draft.body, facts)
        when = max(int(time.time()), self._commit(draft.parent).when)  # a clock may jump back
        commit = self.repo.commit(draft.tree, [draft.parent], message, when)
        if draft.status is Status.ACCEPTED:
            update = RefUpdate(branch(draft.run), commit, draft.parent)
        else:
            update = RefUpdate(attempt_ref(draft.run, number), commit, ABSENT)
        self.repo.update_refs([update], f"attempt {number}: {draft.status}")
        self._next[draft.run] = max(self._next.get(draft.run, 0), number + 1)
        self._pack_sometimes()
        return history.attempt_of(commit, draft.tree, draft.parent, when, message)

    def next_number(self, run: str) -> int:
        """The number of the run's next attempt; the baseline is 0, so this is at least 1."""
        if run not in self._next:
            self._next[run] = history.last_number(self.repo, run, self.attempts(run)) + 1
        return self._next[run]

    def attempts(self, run: str, statuses: Collection[Status] = ()) -> list[Attempt]:
        """Attempts of a run (of these statuses, if any are given) by number, newest last."""
        found = history.attempts_of(self.repo, run, run_start(self.repo, run))
        return [a for a in found if a.status in statuses] if statuses else found

    def attempt(self, commit: str) -> Attempt:
        """The attempt that a commit records; a seed reads as status `no-change`."""
        return history.attempt_at(self.repo, commit)

    def head(self, run: str) -> str:
        """The incumbent's commit; `BadInput` where the branch is not what we left there."""
        head = self.repo.rev_parse(branch(run))
        if head is None:
            raise BadInput(f"no run {run!r} in {self.path}")
        start = run_start(self.repo, run)
        if head == start:
            return head
        attempt = self.attempt(head)
        ours = attempt.run == run and attempt.number != history.UNKNOWN
        if not ours or not self.repo.is_ancestor(start, head):
            raise BadInput(
                f"branch lineage/{run} was rewritten: {head[:10]} is not an attempt of this run on "
                f"top of {start[:10]}; put the branch back (`git --git-dir {self.path} reflog "
                f"lineage/{run}`), or start a new run there with --run NAME --from {head[:10]}"
            )
        return head

    def best(self, run: str) -> Attempt:
        """The accepted attempt with the highest score, or attempt 0 where none was accepted."""
        return history.best_of(run, self.attempts(run))

    def resolve(self, rev: str, run: str | None = None) -> str:
        """The commit that an attempt's number, `best` or any git revision means.

        Numbers and `best` are those of `run`, or of the latest run.
        """
        if rev == "best":
            return self.best(self.find_run(run)).commit
        if rev.isascii() and rev.isdigit() and len(rev) < 10 and (run or self.runs()):
            numbered = [a for a in self.attempts(self.find_run(run)) if a.number == int(rev)]
            if numbered:
                return numbered[-1].commit
        commit = self.repo.rev_parse(rev)
        if commit is None:
            raise BadInput(
                f"{self.path} has no revision {rev!r}: give a commit, an attempt's number or best"
            )
        return commit

    # What else is kept.

    def tag_milestone(self, name: str, commit: str, text: str) -> None:
        """Tag a commit `milestone/…`; a tag of that name stays where it is."""
        if self.repo.rev_parse(f"refs/tags/{name}") is None:
            tag = self.repo.tag(name, commit, trailers.compose(text, "", {}), int(time.time()))
            self.repo.update_refs([RefUpdate(f"refs/tags/{name}", tag, ABSENT)], "milestone")

    def add_note(self, commit: str, text: str) -> None:
        """Keep a later re-measurement of a commit (refs/notes/bench), below earlier ones; needs no
        `lock()`, since a run may go on for days."""
        with notes_lock(self.path):
            before = self.read_note(commit)
            whole = f"{before.rstrip()}\n\n{text}" if before else text
            self.repo.write_note("bench", commit, whole, int(time.time()))

    def read_note(self, commit: str) -> str | None:
        """The re-measurement kept for a commit, if any."""
        return self.repo.read_note("bench", commit)

    # Reading commits.

    def tree(self, commit: str) -> str:
        """The tree of a commit."""
        return self._commit(commit).tree

    def subject(self, commit: str) -> str:
        """The first line of a commit's message."""
        return trailers.parse(self._commit(commit).message)[0]

    def read(self, tree: str, path: str) -> bytes:
        """A file of a tree (or commit); KeyError where it has none of that name."""
        (data,) = self.repo.read_blobs([self.repo.read_tree(tree)[path].blob])
        return data

    def diff(self, old: str, new: str) -> str:
        """The change between two commits as text; `old` may be "" for nothing."""
        return self.repo.diff(old or EMPTY_TREE, new)

    def _pack_sometimes(self) -> None:
        """Keep listing fast: every so often pack what was recorded since, under the lock only."""
        self._unpacked += 1
        if self._locked and self._unpacked >= PACK_EVERY:
            self.repo.pack()
            self._unpacked = 0


_OURS = {"Run", "Attempt", "Status"}
# What an interrupted `git init` may have left, and the README.
_SKELETON = set("README.md HEAD config description hooks info branches objects refs".split())
