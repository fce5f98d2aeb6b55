"""Text cut at its headings into passages of a readable length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LENGTH = 3000  # characters of a passage, about


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of a document: the heading it stands under, or "", and its text."""

    heading: str
    text: str


def sections(text: str) -> Iterator[Section]:
    """The document's sections in order; a long one is cut between paragraphs, then anywhere."""
    heading, lines, fenced = "", list[str](), False
    for line in text.splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
        found = None if fenced else _HEADING.match(line)
        if found:
            yield from _cut(heading, lines)
            heading, lines = " ".join(found[1].split())[:120], []
        else:
            lines.append(line)
    yield from _cut(heading, lines)


def _cut(heading: str, lines: list[str]) -> Iterator[Section]:
    text = "\n".join(lines).strip()
    while text:
        end = len(text) if len(text) <= LENGTH * 4 // 3 else _break(text)
        yield Section(heading, text[:end].rstrip())
        text = text[end:].strip()


def _break(text: str) -> int:
    """Where to cut: at the end of a paragraph, else of a line, else of a word."""
    for mark in ("\n\n", "\n", " "):
        at = text.rfind(mark, LENGTH // 2, LENGTH)
        if at > 0:
            return at
    return LENGTH


_HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")
