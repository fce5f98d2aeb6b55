"""Sections of text fitted into a room: everything in short before anything in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..tools.quoting import quoted


@dataclass(frozen=True, slots=True)
class Item:
    """Something to tell: the same in several lengths, the longest first."""

    texts: tuple[str, ...]
    worth: float  # among the items of its section


@dataclass(frozen=True, slots=True)
class Section:
    """Items under a title, in the order they are told. `source` names whose words they are; ""
    is the engine's own. `share` is the part of the room that is its own, if it wants so much."""

    title: str
    items: Sequence[Item]
    share: int
    source: str = "lineage"

    def framed(self, lines: Sequence[str]) -> str:
        """The section with these lines."""
        text = "\n".join(lines)
        return f"# {self.title}\n{quoted(self.source, text) if self.source else text}"

    @property
    def wanted(self) -> int:
        """Characters that it takes in full."""
        return len(self.framed([item.texts[0] for item in self.items])) + _SLACK + 1


def fitted(sections: Sequence[Section], room: int) -> str:
    """The sections in at most `room` characters, in order. What a section does not want of its
    share goes to the others; one that has no room for a single item is left out."""
    rooms = _rooms(sections, room)
    texts = (_cut_down(s, its_room) for s, its_room in zip(sections, rooms, strict=True))
    return "\n\n".join(text for text in texts if text)


def cut(text: str, length: int) -> str:
    """At most `length` characters of a text; an ellipsis says that there was more."""
    return text if len(text) <= length else text[: max(0, length - 1)].rstrip() + "…" * (length > 0)


def _rooms(sections: Sequence[Section], room: int) -> list[int]:
    wants = [s.wanted for s in sections]
    rooms, left = list(wants), list(range(len(sections)))
    while left:
        whole = sum(sections[n].share for n in left)
        shares = {n: room * sections[n].share // whole for n in left}
        content = [n for n in left if wants[n] <= shares[n]]
        if not content:
            for n in left:
                rooms[n] = shares[n]
            break
        room -= sum(wants[n] for n in content)
        left = [n for n in left if n not in content]
    return rooms


def _cut_down(section: Section, room: int) -> str:
    """As many items as there is room for; then those worth most get longer, step by step."""
    room -= len(section.framed([])) + _SLACK
    ranked = sorted(range(len(section.items)), key=lambda n: -section.items[n].worth)
    chosen: dict[int, str] = {}
    steps = max((len(item.texts) for item in section.items), default=0)
    for step in range(1, steps + 1):
        for n in ranked:
            texts = section.items[n].texts
            if step > len(texts) or (step > 1 and n not in chosen):
                continue
            more = len(texts[-step]) - (len(chosen[n]) if n in chosen else -1)
            if more <= room:
                chosen[n], room = texts[-step], room - more
    if not chosen:
        return ""
    out = len(section.items) - len(chosen)
    left_out = [_LEFT_OUT.format(f"{out:,}")] if out else []
    return section.framed([chosen[n] for n in sorted(chosen)] + left_out)


_LEFT_OUT = "(and {} more, in the lineage)"
_SLACK = len(_LEFT_OUT) + 12  # for that line, and the blank line between two sections
