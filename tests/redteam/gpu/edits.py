"""Small anchored edits of Python source: how a red-team case changes FlashAttention-4's files.

An anchor is a fragment of one line. It has to occur on exactly one line of the scope (a function
or class by its qualified name, or the whole file), so that an edit either hits its place or fails
loudly when the seed moves to another release. Edits that speak of a statement take the innermost
one that covers the anchor's line, compound statements with all they hold.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from textwrap import dedent, indent

from avo_cute.records import Status

FOLDER = "flash_attn/cute"
MHA = ("mha-causal", "mha-full")


class Misplaced(LookupError):
    """An anchor or a scope is missing or ambiguous."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change. `how`: swap (the fragment), instead, before, after, guard (the statement;
    `new` is then a condition), or append (to the file)."""

    file: str  # without folder and suffix
    scope: str
    anchor: str
    new: str
    how: str = "instead"


@dataclass(frozen=True, slots=True)
class Case:
    """A candidate that must end in `ends`, or an honest one.

    `classes` are the workload classes whose objects it changes. `sure` is False where one
    evaluation may miss it by luck (races). `needs` says what a check has to contain to see it.
    """

    name: str
    origin: str  # identifiers of the list of cases, "R18" or "B"
    does: str
    edits: tuple[Edit, ...]
    ends: Status
    caught_by: str
    classes: tuple[str, ...] = MHA
    needs: str = ""
    sure: bool = True


def tree_of(case: Case, seed_files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that the case changes, by path in the tree. Raises `Misplaced`."""
    texts: dict[str, str] = {}
    for edit in case.edits:
        path = f"{FOLDER}/{edit.file}.py"
        if path not in texts:
            if path not in seed_files:
                raise Misplaced(f"{case.name}: the seed has no {path}")
            texts[path] = seed_files[path].decode()
        try:
            texts[path] = apply(edit, texts[path])
        except Misplaced as error:
            raise Misplaced(f"{case.name}: {error}") from None
    changed = {path: text.encode() for path, text in texts.items()}
    for text in texts.values():
        ast.parse(text)  # an edit of ours that is no Python is our mistake, not a case
    if unchanged := [path for path, data in changed.items() if data == seed_files[path]]:
        raise Misplaced(f"{case.name}: {unchanged[0]} is as before")
    return changed


def apply(edit: Edit, text: str) -> str:
    """`text` with the edit made."""
    lines = text.splitlines()
    new = dedent(edit.new).strip("\n")
    if edit.how == "append":
        changed = [*lines, "", "", *new.splitlines()]
    elif edit.how == "swap":
        at = _line(edit, text, lines)
        if lines[at].count(edit.anchor) != 1:
            raise Misplaced(f"{edit.anchor!r} occurs twice on its line")
        changed = [*lines[:at], lines[at].replace(edit.anchor, edit.new), *lines[at + 1 :]]
    else:
        changed = _at_statement(edit, text, lines, new)
    return "\n".join(changed) + "\n"


def _at_statement(edit: Edit, text: str, lines: Sequence[str], new: str) -> list[str]:
    at = _line(edit, text, lines) + 1
    covering = [
        node
        for node in ast.walk(_parsed(text))
        if isinstance(node, ast.stmt) and node.lineno <= at <= (node.end_lineno or 0)
    ]
    found = max(covering, key=lambda node: node.lineno)
    start, stop = found.lineno - 1, found.end_lineno or found.lineno
    margin = " " * found.col_offset
    old, fresh = list(lines[start:stop]), indent(new, margin).splitlines()
    middle = {
        "instead": fresh,
        "before": [*fresh, *old],
        "after": [*old, *fresh],
        "guard": [f"{margin}if {new}:", *(indent(line, "    ") for line in old)],
    }[edit.how]
    return [*lines[:start], *middle, *lines[stop:]]


def _line(edit: Edit, text: str, lines: Sequence[str]) -> int:
    """Index of the one line of the scope that holds the anchor."""
    start, stop = _extent(edit.scope, text, len(lines))
    hits = [n for n in range(start, stop) if edit.anchor in lines[n]]
    if len(hits) != 1:
        where = edit.scope or edit.file
        raise Misplaced(f"{edit.anchor!r} is on {len(hits)} lines of {where}, expected one")
    return hits[0]


def _extent(scope: str, text: str, length: int) -> tuple[int, int]:
    nodes: list[ast.stmt] = _parsed(text).body
    start, stop = 0, length
    for name in scope.split(".") if scope else []:
        named = (ast.FunctionDef, ast.ClassDef)
        found = [n for n in nodes if isinstance(n, named) and n.name == name]
        if len(found) != 1:
            raise Misplaced(f"{len(found)} definitions of {name!r} ({scope}), expected one")
        nodes, start, stop = found[0].body, found[0].lineno - 1, found[0].end_lineno or length
    return start, stop


@lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)
