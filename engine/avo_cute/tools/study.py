"""What is known, and what was learnt: the knowledge base, and notes for later sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ..errors import BadInput
from ..knowledge import Knowledge
from ..operators import Desk
from .quoting import quoted


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
        self, passage: Annotated[str, Field(description="The id that a search gave.")]
    ) -> str:
        """Read one passage of the knowledge base whole."""
        return quoted("knowledge", self._base().read(passage))

    def note(self, text: Annotated[str, Field(min_length=3, max_length=1500)]) -> str:
        """Write down what you learnt, for the sessions after this one: what works, what does not
        and why, what to try next. They see nothing else of yours but the attempts."""
        self._session.note(text)
        return "noted"

    def _base(self) -> Knowledge:
        if self._knowledge is None:
            raise BadInput("this run has no knowledge base")
        return self._knowledge


def _start(text: str) -> str:
    return " ".join(text.split())[:300]
