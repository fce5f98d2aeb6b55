"""The knowledge base of a session: what is found, and a passage whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from ..errors import BadInput, Refused
from ..tools.study import Passage
from .query import expression

MOST = 8  # passages of an answer
_EACH = 12  # candidates of a source
_FADE = 0.9  # what each passage of a source takes from the next one's rank


@dataclass(frozen=True, slots=True)
class _Hit:
    number: int
    source: str
    rank: float  # higher is better


class KnowledgeBase:
    """A knowledge base on an index; see `tools.study.Knowledge`. Any thread may use it.

    `missing` says, a line each, which sources are not in it and why. An index that turns out to be
    damaged is built again, once.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        again: Callable[[], sqlite3.Connection],
        missing: Sequence[str] = (),
    ) -> None:
        self._connection, self._again, self._lock = connection, again, Lock()
        self.missing = tuple(missing)

    def search(self, query: str) -> Sequence[Passage]:
        """At most `MOST` passages, the best first, with the part of each that fits the query.

        One source does not crowd out another that has something too. Any text is a query.
        """
        wanted = expression(query)
        if not wanted:
            return []
        rows = self._rows(_RANKED, (wanted, _EACH))
        picked = list(_mixed([_Hit(*row) for row in rows]))
        found = {}
        for hit in picked:
            (row,) = self._rows(_SNIPPET, (wanted, hit.number))
            found[hit.number] = Passage(*row)
        return [found[hit.number] for hit in picked]

    def read(self, passage: str) -> str:
        """A passage whole, below its title; `BadInput` where there is none of that id."""
        rows = self._rows(_WHOLE, (passage.strip().encode("utf-8", "replace").decode(),))
        if not rows:
            raise BadInput(f"there is no passage {passage[:100]!r}: give the id that a search gave")
        ((title, text),) = rows
        return f"{title}\n\n{text}"

    def counts(self) -> dict[str, int]:
        """How many passages each source has."""
        return dict(self._rows("SELECT source, count(*) FROM passages GROUP BY source", ()))

    def close(self) -> None:
        self._connection.close()

    def _rows(self, statement: str, values: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.DatabaseError:
                self._connection.close()
                self._connection = self._again()
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise Refused(f"the knowledge base cannot be read: {error}") from None


def _mixed(hits: Sequence[_Hit]) -> Iterator[_Hit]:
    """The best hits; each one of a source makes the next one of it worth less, and half of the
    answer is the most it gets while another source has one left."""
    left = sorted(hits, key=lambda hit: -hit.rank)
    taken: dict[str, int] = {}
    for _ in range(MOST):
        open_to = [hit for hit in left if taken.get(hit.source, 0) < MOST // 2] or left
        if not open_to:
            return
        best = max(open_to, key=lambda hit: hit.rank * _FADE ** taken.get(hit.source, 0))
        taken[best.source] = taken.get(best.source, 0) + 1
        left.remove(best)
        yield best


_RANKED = """
WITH found AS (
    SELECT rowid AS number, -bm25(words, 6.0, 2.0, 1.0) AS rank FROM words WHERE words MATCH ?
), placed AS (
    SELECT number, source, rank * weight AS rank, row_number() OVER (
        PARTITION BY source ORDER BY rank * weight DESC, number
    ) AS place FROM found JOIN passages USING (number)
)
SELECT number, source, rank FROM placed WHERE place <= ? ORDER BY rank DESC, number
"""
_SNIPPET = """
SELECT p.id, p.source, p.title, snippet(words, 2, '', '', ' … ', 48)
FROM words JOIN passages AS p ON p.number = words.rowid
WHERE words MATCH ? AND words.rowid = ?
"""
_WHOLE = "SELECT title, text FROM passages WHERE id = ?"
