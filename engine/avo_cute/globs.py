"""Path patterns, the same for editable paths and for the files of a seed."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a `/`-separated path fits a pattern; `*` stays inside a folder, `**` does not."""
    parts = path.split("/")
    return any(_fits(parts, pattern.split("/")) for pattern in patterns)


def _fits(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits(parts[n:], pattern[1:]) for n in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])
