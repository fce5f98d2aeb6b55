"""A session of a run: a workspace at the incumbent, and the one door between an operator and f.

What is on disk is read back as a tree, that tree is exported, built and judged, and one commit with
its verdict is made: an operator proposes and nothing else. What it says, notes and spends is kept
in git as it comes, so that a killed session costs the step in hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock, RLock
from typing import TYPE_CHECKING

from . import profiles, transcripts, workspace
from .bench import about
from .budget import Spent, spent_on, trailers_of
from .errors import BadInput
from .lineage import Lineage
from .operators import Candidate, Proposal
from .records import Attempt, Facts, Status, Usage, Verdict
from .score import judge_tree
from .treefiles import TreeFiles

if TYPE_CHECKING:
    from .memory import Note
    from .run import Run
    from .supervisor import Directive, Supervisor

SESSION_ATTEMPTS = 16  # a session without success ends here; the next starts from the same parent
BRIEF_TOKENS = 12_000  # what a session is told of the lineage, however long the run
NOTED_SESSIONS = 12  # whose notes are told


class OpenSession:
    """One session of an operator: see `operators.Session`."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        operator: str,
        stop: Callable[[], bool],
        left: Callable[[], str] = str,
    ) -> None:
        self.run, self.folder, self.operator = run, folder, operator
        self._stop, self.left = stop, left
        self.directive: Directive | None = None
        self.number = run.sessions
        self.commit = run.lineage.head(run.name)
        tree = run.lineage.tree(self.commit)
        self.parent = Candidate(tree, TreeFiles(run.lineage.repo, tree))
        self.tried: list[Attempt] = []
        self._usage = _Bill()  # of the whole session
        self._untold = _Bill()  # what no attempt's trailers have yet
        self._notes: list[str] = []
        self._written: set[str] = set()
        self._begun = 0
        self._workspace, self._keeping = RLock(), Lock()
        self._transcript: list[str] = []
        self._kept: dict[str, bytes] = {}  # of the transcript, not in git yet
        self._told = False  # whether the operator keeps a transcript of its own
        workspace.export(run.lineage.repo, tree, folder)

    def direct(self, supervisor: Supervisor | None) -> None:
        """Let the supervisor say where to go, if it has something to say; the bill is ours."""
        if supervisor is None:
            return
        kept = {
            k.number: k.trailers for k in transcripts.sessions(self.lineage.repo, self.run_name)
        }
        given = supervisor.look(self.history(), self.spend, kept, notes_of(self.run))
        if given is not None:
            self.run.watch.phase(f"the supervisor says: {given.trailer}")
            self.directive = given
            self._kept["directive.md"] = given.text.encode("utf-8", "replace")

    # The workspace and the score.

    @property
    def width(self) -> int:
        return self.run.bench.width

    @property
    def editable(self) -> Sequence[str]:
        return self.run.bench.task.settings.editable

    @property
    def max_file_bytes(self) -> int:
        return self.run.bench.task.settings.max_file_bytes

    @property
    def focus(self) -> Sequence[str]:
        return self.run.bench.task.settings.focus.get(self.run.bench.target.family, ())

    def tree(self) -> str:
        """The tree that the workspace is now; `BadInput` for what a candidate must not contain."""
        repo, base = self.run.lineage.repo, self.parent.tree
        with self._workspace:
            back = workspace.read_back(repo, base, self.folder, self.editable, self.max_file_bytes)
        return back.tree

    def evaluate(self, proposal: Proposal) -> Attempt:
        """Judge and record what is in the workspace now."""
        return self.prepare(proposal)()

    def prepare(self, proposal: Proposal) -> Callable[[], Attempt]:
        """What is in the workspace now, as a candidate; it counts as begun."""
        with self._workspace:
            self._write(proposal.files)
            tree = self.tree()
            self._begun += 1
            self.run.begun += 1
        return partial(self._judge, tree, proposal)

    def build(self) -> Verdict:
        """Compile, audit and estimate the workspace; nothing is measured or recorded."""
        bench = replace(self.run.bench, rig=None)
        return judge_tree(self.run.lineage.repo, self.tree(), bench, None)

    def standing_facts(self) -> Mapping[str, Facts]:
        """What the incumbent's machine code is, by workload."""
        return self.run.standing.facts

    def profile(self) -> str:
        """Where the time of what is in the workspace goes, in at most 4 kB."""
        return profiles.profile_of(self.build(), self.run.bench)

    def over(self) -> bool:
        """True once a candidate was accepted, the session is spent, or the run must stop."""
        accepted = any(attempt.status is Status.ACCEPTED for attempt in self.tried)
        return accepted or self._begun >= SESSION_ATTEMPTS or self._stop()

    # The lineage.

    @property
    def lineage(self) -> Lineage:
        return self.run.lineage

    @property
    def run_name(self) -> str:
        return self.run.name

    @property
    def alone(self) -> bool:
        return self.run.alone

    @property
    def start(self) -> str:
        return f"{self.commit[:10]} {self.lineage.subject(self.commit)}"

    def history(self) -> Sequence[Attempt]:
        return self.lineage.attempts(self.run.name)

    def resolve(self, rev: str) -> str:
        """The commit that an agent's words mean; `BadInput` where there is none."""
        if rev in ("", "parent"):
            return self.commit
        return self.lineage.resolve(rev, self.run.name)

    def version(self, rev: str) -> Mapping[str, bytes]:
        """The files of a version."""
        return TreeFiles(self.lineage.repo, self.lineage.tree(self.resolve(rev)))

    # What an operator is told, and what it leaves.

    def about(self) -> dict[str, str]:
        """The task in words, the same in every session of a run."""
        return about(self.run.bench)

    def brief(self) -> str:
        """What the lineage remembers, within a fixed length."""
        from .catalogue import directions_of
        from .memory import MemoryTask, brief

        bench, directive = self.run.bench, self.directive
        ideas = directions_of(bench)
        task = MemoryTask(bench.task.settings.title, bench.target.family, ideas)
        told = directive.text if directive is not None else ""
        return brief(self.history(), notes_of(self.run), told, task, BRIEF_TOKENS)

    def note(self, text: str) -> None:
        """Keep what was learnt, for later sessions."""
        self._notes.append(text.strip())
        written = "\n\n".join(f"* {note}" for note in self._notes) + "\n"
        self.keep(transcripts.NOTES, written.encode("utf-8", "replace"))

    def keep(self, name: str, data: bytes) -> None:
        """Keep a file of the transcript, in git at once."""
        self._told = True
        with self._keeping:
            self._kept[name] = data
            self._flush()

    def spend(self, model: str, usage: Usage) -> None:
        """Count what a model's answer cost; it is in git with what is kept next."""
        spent = spent_on(model, usage)
        self.run.spent += spent
        self._usage.add(usage, spent)
        self._untold.add(usage, spent)

    def close(self) -> None:
        """Keep the rest of the transcript; a session that did nothing leaves none."""
        if not (self.tried or self._told or self._usage.usage.tokens):
            return
        with self._keeping:
            if self._transcript:
                text = "\n".join(self._transcript) + "\n"
                self._kept["transcript.jsonl"] = text.encode("utf-8", "replace")
            self._keep_unjudged()
            self._flush()

    def _judge(self, tree: str, proposal: Proposal) -> Attempt:
        self.run.watch.phase(f"evaluating: {proposal.subject}")
        proposal = replace(proposal, trailers=self._account())
        attempt, verdict = self.run.attempt(self.commit, tree, proposal, self.operator)
        self.tried.append(attempt)
        told = {"proposed": proposal.subject, "why": proposal.body, "attempt": attempt.number}
        told |= {"status": attempt.status, "seen": verdict.reason}
        with self._keeping:
            self._transcript.append(json.dumps(told))
            if verdict.measured is not None:
                raw = verdict.measured.raw.encode()
                self._kept[f"attempt-{attempt.number:04d}.json"] = raw
            if self._usage.usage.tokens:  # a model's session is kept as it goes
                self._flush()
        return attempt

    def _account(self) -> Mapping[str, str]:
        """Trailers for the next attempt: what was spent since the last one, and the directive."""
        found = self._untold.trailers()
        self._untold = _Bill()
        if self.directive is not None:
            found["Directive"] = self.directive.trailer
        return found

    def _flush(self) -> None:
        files, self._kept = self._kept, {}
        facts = {"Operator": self.operator, **self._usage.trailers()}
        if self.directive is not None:
            facts["Directive"] = self.directive.trailer
        transcripts.keep(self.lineage.repo, self.run.name, self.number, files, facts)

    def _keep_unjudged(self) -> None:
        """Edits that no attempt has: the budget or a stop came first, and they were paid for."""
        if not self._told:
            return
        try:
            tree = self.tree()
        except BadInput:
            return
        if tree not in (self.parent.tree, *(attempt.tree for attempt in self.tried)):
            change = self.lineage.diff(self.parent.tree, tree)
            self._kept["unjudged.patch"] = change.encode("utf-8", "replace")

    def _write(self, files: Mapping[str, bytes]) -> None:
        """Make the workspace the parent with these files; what an operator edited itself stays."""
        for path in self._written - set(files):
            (self.folder / path).write_bytes(self.parent.files[path])
        for path, data in files.items():
            (self.folder / path).write_bytes(data)
        self._written = set(files)


class _Bill:
    """Tokens and their price, as they add up."""

    def __init__(self) -> None:
        self.usage, self._spent = Usage(), Spent()

    def add(self, usage: Usage, spent: Spent) -> None:
        self.usage, self._spent = self.usage + usage, self._spent + spent

    def trailers(self) -> dict[str, str]:
        return trailers_of(self.usage, self._spent.usd if self._spent.priced else None)


def notes_of(run: Run) -> list[Note]:
    """What the last sessions of a run noted, oldest first."""
    from .memory import Note

    repo = run.lineage.repo
    kept = transcripts.sessions(repo, run.name)[-NOTED_SESSIONS:]
    texts = ((k.number, transcripts.read(repo, k, transcripts.NOTES)) for k in kept)
    return [Note(number, text) for number, text in texts if text.strip()]
