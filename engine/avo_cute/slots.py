"""Where knobs stand in one file, and the edits that set them; every other byte is kept."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from .branches import Cell, branch_of, decides, replaced
from .errors import BadInput
from .patterns import Places, expression_of, matches, normal

if TYPE_CHECKING:
    from .knobs import Knob, Site, Supply


@dataclass(frozen=True, slots=True)
class Slot:
    """A knob's place in one file: bytes `start` to `end` hold its site's expression."""

    knob: Knob
    start: int
    end: int
    closed: bool  # any expression may stand here without parentheses
    value: str  # of the knob, which is a part of that expression where it has `when` or `part`
    supplies: tuple[tuple[Supply, int, bool], ...] = ()  # where each goes, and if it is there


@lru_cache(maxsize=32)
def slots_in(data: bytes, knobs: tuple[Knob, ...]) -> tuple[Slot, ...]:
    """Parsed once per content (some 50 ms for 3,600 lines); of the tree only the slots are kept."""
    try:
        module = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    places, lines = Places(module), _line_starts(data)
    return tuple(filter(None, (_slot(knob, places, data, lines) for knob in knobs)))


def _slot(knob: Knob, places: Places, data: bytes, lines: list[int]) -> Slot | None:
    node = _only(places, knob.site)
    ends = [_only(places, supply.site) for supply in knob.supplies]
    if node is None or None in ends:
        return None
    start, end = _span(node, lines)
    try:
        # Offsets are those of UTF-8 lines ended by \n. A file of another kind is left alone.
        if normal(data[start:end].decode("utf-8", "replace")) != ast.unparse(node):
            return None
    except ValueError:
        return None
    parent = places.parent(knob.site.scope, node)
    if decides(node, knob.cell) and isinstance(parent, _WHOLE):
        start, end = _with_parentheses(data, start, end)
    value = _inside(knob, data[start:end].decode())
    if value is None:
        return None
    supplies = tuple(
        (supply, at, data[at:].startswith(supply.text.encode()))
        for supply, at in zip(knob.supplies, (_span(e, lines)[1] for e in ends if e), strict=True)
    )
    return Slot(knob, start, end, not isinstance(parent, _OPEN), value, supplies)


def _only(places: Places, site: Site) -> ast.expr | None:
    found = places.find(site.scope, site.pattern)
    return found[site.index] if len(found) == site.count else None


def _inside(knob: Knob, text: str) -> str | None:
    """The knob's own value in its site's expression, or None if its part is not there."""
    branch = branch_of(text, knob.cell)
    if not knob.part:
        return normal(branch)
    found = matches(knob.part, expression_of(branch))
    return None if found is None else ast.unparse(found)


def rewrite(file: str, data: bytes, edits: Mapping[Slot, str]) -> bytes:
    """`data` with the edits done, back to front; slots that share a site are one edit."""
    sites: dict[tuple[int, int], list[Slot]] = {}
    for slot in edits:
        sites.setdefault((slot.start, slot.end), []).append(slot)
    pieces: dict[tuple[int, int], str] = {}
    for site, slots in sites.items():
        pieces[site] = text = _composed(data, site, {slot: edits[slot] for slot in slots})
        pieces |= _supplied(slots, text)
    limit = len(data)
    for (start, end), text in sorted(pieces.items(), reverse=True):
        if end > limit:
            raise BadInput(f"{file}: two changes overlap in {data[start:end].decode()!r}")
        data, limit = data[:start] + text.encode() + data[end:], start
    try:
        ast.parse(data)
    except SyntaxError as error:
        raise BadInput(f"{file}: the change is not Python: {error}") from None
    return data


def _composed(data: bytes, site: tuple[int, int], edits: Mapping[Slot, str]) -> str:
    """What a site's expression becomes when its knobs get these values."""
    text = data[slice(*site)].decode()
    line = data[data.rfind(b"\n", 0, site[0]) + 1 : site[0]].decode()
    column, indent = len(line), len(line) - len(line.lstrip(" "))
    values: dict[Cell, str] = {}
    for slot, value in edits.items():
        cell = slot.knob.cell
        branch = values.get(cell) or branch_of(text, cell)
        values[cell] = _with_part(slot.knob.part, branch, value)
    if (whole := values.pop(Cell(), None)) is not None:
        text = whole
    if values:
        text = replaced(text, values, column, indent)
    closed = next(iter(edits)).closed
    return text if closed or isinstance(expression_of(text), _ATOMS) else f"({text})"


def _with_part(part: str, branch: str, value: str) -> str:
    found = matches(part, expression_of(branch)) if part else None
    if found is None:
        return value
    start, end = _span(found, _line_starts(branch.encode(), -1))
    return (branch.encode()[:start] + value.encode() + branch.encode()[end:]).decode()


def _supplied(slots: Sequence[Slot], text: str) -> dict[tuple[int, int], str]:
    """Insertions of what the site's new expression needs, removals of what it needs no more."""
    used = {n.id for n in ast.walk(expression_of(text)) if isinstance(n, ast.Name)}
    pieces = {}
    for supply, at, there in (s for slot in slots for s in slot.supplies):
        if supply.name in used and not there:
            pieces[at, at] = supply.text
        elif there and supply.name not in used:
            pieces[at, at + len(supply.text.encode())] = ""
    return pieces


def _with_parentheses(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The span with the parentheses around it, if there are any."""
    before, after = data[max(0, start - 200) : start], data[end : end + 200]
    opened, closed = before.rstrip(), after.lstrip()
    if opened.endswith(b"(") and closed.startswith(b")"):
        return start - (len(before) - len(opened)) - 1, end + len(after) - len(closed) + 1
    return start, end


_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.Dict, ast.List)
_OPEN = (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Attribute, ast.Starred)
_WHOLE = (ast.Return, ast.Assign, ast.AnnAssign, ast.keyword)  # parentheses can only be of the slot


def _line_starts(data: bytes, first: int = 0) -> list[int]:
    lengths = (len(line) + 1 for line in data.split(b"\n")[:-1])
    return list(accumulate(lengths, initial=first))


def _span(node: ast.expr, lines: list[int]) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    start = lines[node.lineno - 1] + node.col_offset
    return start, lines[node.end_lineno - 1] + node.end_col_offset
