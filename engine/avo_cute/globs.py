"""Path patterns, the same for editable paths and for the files of a seed."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a `/`-separated path fits a pattern; `*` stays inside a folder, `**` does not."""
    parts = path.split("/")
    return any(_fits(parts, pattern.split("/")) for pattern in patterns)


def _fits(parts: list[str], pattern: list[str]) -> bool:
    """In one pass, however many `**` there are: `reached` counts parts that may be used up."""
    reached = {0}
    for piece in pattern:
        if piece == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            fit = (n for n in reached if n < len(parts) and fnmatchcase(parts[n], piece))
            reached = {n + 1 for n in fit}
        if not reached:
            return False
    return len(parts) in reached
