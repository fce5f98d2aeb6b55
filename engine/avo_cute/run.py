"""A run: one evolution, resumed from nothing but its commits.

`begin` judges the seed and the incumbent (from the cache where this machine judged them before);
`session` opens a workspace at the incumbent; the session's `evaluate` is the one door between an
operator and the score: what is on disk is read back as a tree, that tree is exported, built and
judged, and one commit with its verdict is made.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Protocol

from . import sandbox
from .bench import Bench, Side, Standing
from .budget import Spent
from .errors import BadInput, MachineFailed
from .lineage import AttemptDraft, Lineage
from .operators import Proposal
from .readiness import make_ready
from .recording import Origin, body, session_of, subject, trailers
from .records import Attempt, Status, Verdict
from .runs import run_start
from .score import judge_tree, standing_of
from .seen import Seen
from .session import OpenSession
from .transcripts import last_session

INFRA_ERRORS = 5  # attempts in a row that this machine may fail before the run ends
MILESTONE_STEP = 0.01  # a tag at every further whole percent over the seed


class Watch(Protocol):
    """Who wants to see what happens."""

    def phase(self, text: str) -> None: ...

    def attempt(self, attempt: Attempt) -> None: ...


class Run:
    """The state of one run while this process works on it."""

    def __init__(
        self, lineage: Lineage, bench: Bench, name: str, group: str, watch: Watch, start: str = ""
    ) -> None:
        self.lineage, self.bench, self.name, self.group = lineage, bench, name, group
        self._start = start  # the commit of a run that does not exist yet
        self.watch = watch
        self.begun = self.done = 0  # attempts of this invocation: started, and recorded
        self.seen = Seen()
        self.spent = Spent()  # by this invocation
        self.alone = False  # whether its operator may be told nothing of other runs
        self.sessions = self._infra = 0
        self._standing: Standing | None = None
        self._recording = Lock()

    def sibling(self, name: str) -> Run:
        """The run `name` on the same bench, from where this one starts if it does not exist yet."""
        start = ""
        if name not in self.lineage.runs():
            start = self._start or run_start(self.lineage.repo, self.name)
        elif other := set(self._facts().items()) - set(self.lineage.run_facts(name).items()):
            said = ", ".join(f"{key} {value}" for key, value in sorted(other))
            raise BadInput(f"run {name} exists already and is not of {said}: use another name")
        return Run(self.lineage, self.bench, name, self.group, self.watch, start)

    @property
    def standing(self) -> Standing:
        assert self._standing is not None, "begin() first"
        return self._standing

    @property
    def committed(self) -> Spent:
        """What is spent once the attempts that have begun are done."""
        return replace(self.spent, attempts=self.begun)

    def history(self) -> Sequence[Attempt]:
        """Its attempts so far, oldest first; none of a run that is not made yet."""
        return [] if self._start else self.lineage.attempts(self.name)

    def begin(self) -> None:
        """Judge the seed and the incumbent; a new run is created once its start has passed."""
        attempts = self.history()
        kept = 0 if self._start else last_session(self.lineage.repo, self.name)
        self.sessions = max(kept, *(session_of(a) for a in attempts), 0)
        self.seen = Seen(attempts, measuring=self.bench.rig is not None)
        seed = self.lineage.seed(self.bench.task.name)
        head = self._start or self.lineage.head(self.name)
        self.watch.phase(f"judging the seed for {self.bench.target.title}")
        baseline = self._must_judge(seed, None)
        self._standing = standing_of(baseline, baseline, self.seen)
        self._make_ready()
        incumbent = baseline
        if self.lineage.tree(head) != self.lineage.tree(seed):
            self.watch.phase("judging the incumbent")
            incumbent = self._judge_incumbent(head)
            self._standing = standing_of(baseline, incumbent, self.seen)
        self._standing = replace(self.standing, commit=head)
        if self._start:
            self._create()
        if not any(a.number == 0 for a in attempts):
            start = replace(incumbent, status=Status.NO_CHANGE, reason="where this run starts")
            self._record(head, self.lineage.tree(head), START, start, self._origin(0, head))

    def _make_ready(self) -> None:
        if self.bench.rig is not None:
            self.watch.phase("self-test and calibration of this machine")
            margin = make_ready(self.lineage.repo, self.bench, self.standing.seed)
            self.watch.phase(f"gains count from {math.expm1(margin):+.2%} on this machine")

    def _judge_incumbent(self, head: str) -> Verdict:
        """Static scores are computed again; a measured one is read, if it is of these workloads."""
        if self.bench.rig is None:
            return self._must_judge(head, self._standing)
        known = self.lineage.attempt(head)
        told = known.trailers
        of_these = told.get("Workloads") == self.group and known.score is not None
        if told.get("Score-kind") == "measured" and of_these:
            return replace(self._must_judge(head, None), score=known.score, gain=None)
        bench = replace(self.bench, thorough=True)
        tree = self.lineage.tree(head)
        return self._must_pass(head, judge_tree(self.lineage.repo, tree, bench, self._standing))

    def _facts(self) -> dict[str, str]:
        bench = self.bench
        return {"Task": bench.task.name, "Target": bench.target.name, "Workloads": self.group}

    def _create(self) -> None:
        self.lineage.start_run(self.name, self._start, self._facts())
        self._start = ""

    @contextmanager
    def session(
        self, operator: str, stop: Callable[[], bool], left: Callable[[], str] = str
    ) -> Iterator[OpenSession]:
        """A workspace at the incumbent; its transcript is kept when it closes. `stop` ends it at
        its next step; `left` says in words what may still be spent."""
        self.sessions += 1
        folder = Path(tempfile.mkdtemp(prefix="avo-cute-workspace-"))
        try:
            session = OpenSession(self, folder, operator, stop, left)
            try:
                yield session
            finally:
                session.close()
        finally:
            sandbox.remove(folder)

    def attempt(
        self, parent: str, tree: str, proposal: Proposal, operator: str
    ) -> tuple[Attempt, Verdict]:
        """Judge a tree and record it; may be called from several threads.

        What would be accepted, but was compared with an incumbent that has been beaten meanwhile,
        is judged again, against the new one; likewise if its objects have got a verdict meanwhile.
        """
        while True:
            standing = self.standing
            verdict = judge_tree(self.lineage.repo, tree, self.bench, standing)
            with self._recording:
                accepted = verdict.status is Status.ACCEPTED
                stale = standing is not self.standing or verdict.artifact in self.seen
                if accepted and stale:
                    continue
                parent = self.lineage.head(self.name) if accepted else parent
                against = standing.commit
                return self.record(parent, tree, proposal, verdict, operator, against), verdict

    def record(
        self,
        parent: str,
        tree: str,
        proposal: Proposal,
        verdict: Verdict,
        operator: str,
        against: str = "",
    ) -> Attempt:
        """Commit one attempt; an accepted one becomes the incumbent. `against`: the commit that it
        was compared with, if that need not be the parent."""
        number = self.lineage.next_number(self.name)
        origin = self._origin(number, parent, operator)
        if against != parent:
            origin = replace(origin, against=against)
        attempt = self._record(parent, tree, proposal, verdict, origin)
        self.done += 1
        self.seen.add(number, verdict, tree)
        if verdict.status is Status.ACCEPTED:
            self._advance(attempt, verdict)
        self.watch.attempt(attempt)
        self._account(verdict)
        return attempt

    def _must_judge(self, commit: str, standing: Standing | None) -> Verdict:
        tree = self.lineage.tree(commit)
        return self._must_pass(commit, judge_tree(self.lineage.repo, tree, self.bench, standing))

    def _must_pass(self, commit: str, verdict: Verdict) -> Verdict:
        """`BadInput` unless the verdict is one that a run can start from: everything built, and
        where it was measured against the seed, a number that came of it."""
        wrong = verdict.status not in _STARTS
        unmeasured = verdict.measured is not None and verdict.gain is None
        if not verdict.estimates or wrong or unmeasured:
            raise BadInput(
                f"commit {commit[:10]}, which this run starts from, does not pass for target "
                f"{self.bench.target.name}: {verdict.reason}"
            )
        return verdict

    def _account(self, verdict: Verdict) -> None:
        """Count an attempt; `MachineFailed` where this machine fails again and again."""
        seconds = verdict.measured.wall_s if verdict.measured is not None else 0.0
        self.spent += Spent(gpu_seconds=seconds, attempts=1)
        self._infra = self._infra + 1 if verdict.status is Status.INFRA_ERROR else 0
        if self._infra >= INFRA_ERRORS:
            raise MachineFailed(
                f"this machine failed {self._infra} attempts in a row, the last one: "
                f"{verdict.reason}; nothing of it counts against a candidate"
            )

    def _advance(self, attempt: Attempt, verdict: Verdict) -> None:
        before, score = self.standing.score, verdict.score or 1.0
        self._standing = replace(
            self.standing,
            high_water={e.workload: e.cycles for e in verdict.estimates},
            artifact=verdict.artifact,
            facts=verdict.facts,
            score=score,
            incumbent=Side(verdict.tree, verdict.objects),
            commit=attempt.commit,
        )
        if int((score - 1) / MILESTONE_STEP) > int((before - 1) / MILESTONE_STEP):
            percent = int((score - 1) / MILESTONE_STEP)
            name = f"milestone/{self.name}/plus-{percent}-percent"
            self.lineage.tag_milestone(name, attempt.commit, f"{score - 1:+.2%} over the seed")

    def _record(
        self, parent: str, tree: str, proposal: Proposal, verdict: Verdict, origin: Origin
    ) -> Attempt:
        return self.lineage.record(
            AttemptDraft(
                run=self.name,
                number=origin.number,
                tree=tree,
                parent=parent,
                status=verdict.status,
                subject=subject(self.bench, proposal),
                body=body(proposal, verdict, origin),
                trailers={**trailers(self.bench, verdict, origin), **proposal.trailers},
            )
        )

    def _origin(self, number: int, parent: str, operator: str = "engine") -> Origin:
        rests_on = f"{parent[:10]} {self.lineage.subject(parent)}"
        session = self.sessions if number else 0
        return Origin(self.name, number, session, operator, self.group, rests_on)


START = Proposal("Baseline: the source this run starts from", "", {})

# What a commit may be judged as that a run starts from.
_STARTS = (Status.ACCEPTED, Status.EQUAL, Status.REJECTED, Status.NO_CHANGE)
