"""What is known, and what was learnt: the knowledge base, and notes for later sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field, StringConstraints

from ..errors import BadInput
from ..operators import Desk
from .quoting import quoted


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of what is known. `id` names it in a knowledge base."""

    id: str
    source: str
    title: str
    text: str


class Knowledge(Protocol):
    """A knowledge base, as tools see one."""

    def search(self, query: str) -> Sequence[Passage]:
        """The passages nearest to a query, the best first."""
        ...

    def read(self, passage: str) -> str:
        """A passage whole; `BadInput` where there is none of that id."""
        ...


Note = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=1500)]


class Study:
    """Tools on the knowledge base and on the session's notes."""

    def __init__(self, session: Desk, knowledge: Knowledge | None) -> None:
        self._session, self._knowledge = session, knowledge

    def knowledge_search(self, query: Annotated[str, Field(min_length=2, max_length=300)]) -> str:
        """Search the knowledge base: the seed's source by function, the CuTe DSL's documentation,
        notes on the hardware, a catalogue of attention optimisations, what the user added."""
        found = self._base().search(query)
        lines = [
            f"[{p.id}] {p.source}: {p.title}\n    {' '.join(p.text.split())[:300]}" for p in found
        ]
        return quoted("knowledge", "\n".join(lines)) if lines else "nothing found: use other words"

    def knowledge_read(
        self,
        passage: Annotated[str, Field(max_length=300, description="The id that a search gave.")],
    ) -> str:
        """Read one passage of the knowledge base whole."""
        return quoted("knowledge", self._base().read(passage))

    def note(self, text: Note) -> str:
        """Write down what you learnt, for the sessions after this one: what works, what does not
        and why, what to try next. They see nothing else of yours but the attempts."""
        self._session.note(text)
        return "noted"

    def _base(self) -> Knowledge:
        if self._knowledge is None:
            raise BadInput("this run has no knowledge base")
        return self._knowledge
