"""What a run has seen: objects that have a verdict keep it, so that chance gets no second try.

Objects are known by their artifact. An attempt that failed on shapes it could not know, by objects
the artifact does not cover, is known by its tree: a repair may leave the public objects as they
are. After `PATIENCE` such failures the public objects are known for them all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from .history import kind_of
from .records import Attempt, Status, Verdict

PATIENCE = 3
BEYOND = "Beyond"  # a trailer: the attempt failed by objects that its artifact does not cover

# What a comparison gave. Where candidates are measured, an estimate's word does not count.
_COMPARED = (Status.ACCEPTED, Status.EQUAL, Status.REJECTED, Status.NO_CHANGE)


class Seen(Mapping[str, tuple[int, Status]]):
    """Artifact, or tree, -> the first attempt that had it, and how that ended."""

    def __init__(self, attempts: Iterable[Attempt] = (), measuring: bool = False) -> None:
        self._first: dict[str, tuple[int, Status]] = {}
        self._beyond: Counter[str] = Counter()
        for attempt in attempts:
            told = attempt.trailers
            estimated = attempt.status in _COMPARED and kind_of(attempt) != "measured"
            if attempt.number > 0 and not (measuring and estimated):
                found = (attempt.number, attempt.status)
                self._take(told.get("Artifact", ""), attempt.tree, found, BEYOND in told)

    def add(self, number: int, verdict: Verdict, tree: str) -> None:
        """Remember a verdict of this run."""
        self._take(verdict.artifact, tree, (number, verdict.status), verdict.beyond)

    def _take(self, artifact: str, tree: str, found: tuple[int, Status], beyond: bool) -> None:
        if not artifact or found[1] is Status.INFRA_ERROR:
            return
        if beyond:
            self._beyond[artifact] += 1
            if self._beyond[artifact] < PATIENCE:
                artifact = tree
        self._first.setdefault(artifact, found)

    def __getitem__(self, key: str) -> tuple[int, Status]:
        return self._first[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)
