"""Knobs: named expressions in a candidate's source that can be read and replaced.

A knob points at one expression with a pattern, a piece of Python with the hole `SLOT`:

    Knob(
        name="soft_regs_full",
        file="flash_attn/cute/flash_fwd_sm100.py",
        site=Site('_TUNING_CONFIG = {(True, False, 128, False): {"num_regs_softmax": SLOT}}'),
        choices=("168", "176", "184"),
        title="softmax registers",
        effect="room for a fragment of S in registers, against spills",
        families=("sm100",), archs=("sm_100a",), classes=("*-full",), kind="ordinal",
    )

What a pattern says must be there; what it does not say may be:

    `x = SLOT`, `return f(a, SLOT)`     statements and expressions, compared by structure
    `...`                               any expression, any statement; last in a call: any rest
    `{"a": SLOT}`, `f(..., k=SLOT)`     other entries and other keywords may stand beside
    `if a <= 128:\n    return SLOT`     the body holds such a statement; `elif` is an `if`
    `def f(x=SLOT): ...`                the default of parameter x

`scope="Class.method"` says where to look (not inside definitions nested in it; "" is the module's
own level). `index` and `count` choose among several matches, which must be exactly `count`.

`part="F(..., SLOT)"` narrows the slot to a place inside it. `when="causal"` / `when="not causal"`
are the two branches of `A if causal else B` in the slot; a slot without that condition is both
branches at once, and `apply` writes the condition only while the branches differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from .errors import BadInput
from .patterns import SLOT, Places, expression_of, matches, normal, pattern_of
from .records import Target, Workload


@dataclass(frozen=True, slots=True)
class Site:
    """Where an expression stands in a file: match number `index` of exactly `count` in `scope`."""

    pattern: str
    scope: str = ""
    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Knob:
    """One replaceable expression. `choices` are Python expressions, for "ordinal" in order.

    The expression that stands in the source is always admissible, whether among them or not.
    Empty `families` and `archs` mean every target; `classes` are globs over workload classes
    whose objects the knob can change. `title` continues "Set … to 184", `effect` says why one
    would. A pattern, part or choice that is not Python is a ValueError.
    """

    name: str
    file: str
    site: Site
    choices: tuple[str, ...]
    title: str
    effect: str = ""
    families: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    classes: tuple[str, ...] = ("*",)
    kind: Literal["ordinal", "categorical"] = "categorical"
    when: str = ""
    part: str = ""

    def __post_init__(self) -> None:
        for pattern in filter(None, (self.site.pattern, self.part)):
            if sum(_is_slot(n) for n in ast.walk(pattern_of(pattern))) != 1:
                raise ValueError(f"{self.name}: one {SLOT} is needed in {pattern!r}")
        if len({normal(choice) for choice in self.choices}) != len(self.choices):
            raise ValueError(f"{self.name}: a choice is there twice")

    def applies(self, target: Target, workloads: Iterable[Workload]) -> bool:
        """Whether the knob can change an object that these workloads get on this target."""
        return (
            target.family in (self.families or (target.family,))
            and target.arch in (self.archs or (target.arch,))
            and any(fnmatchcase(w.class_name, glob) for w in workloads for glob in self.classes)
        )


def read(knobs: Sequence[Knob], files: Mapping[str, bytes]) -> dict[str, str]:
    """What stands in each knob's slot, as `ast.unparse` writes it.

    A knob whose file or site is missing or ambiguous (someone rewrote that part) is left out.
    """
    slots = _slots_of(knobs, files)
    return {knob.name: slots[knob.name].value for knob in knobs if knob.name in slots}


def apply(
    knobs: Sequence[Knob], files: Mapping[str, bytes], changes: Mapping[str, str]
) -> dict[str, bytes]:
    """The files that the changes alter, each byte outside the replaced expressions kept.

    `changes` maps names of knobs to new expressions. `BadInput` if a knob has no slot in these
    files, if an expression is not one, or if two changes are of overlapping expressions.
    """
    slots = _slots_of(knobs, files)
    if missing := sorted(set(changes) - set(slots)):
        raise BadInput(f"this source has no place for {', '.join(missing)}")
    by_file: dict[str, dict[Slot, str]] = {}
    for name, value in changes.items():
        try:
            value = _contained(value)
        except ValueError as error:
            raise BadInput(f"{name}: {error}") from None
        if not _same(slots[name].value, value):
            by_file.setdefault(slots[name].knob.file, {})[slots[name]] = value
    return {file: _rewrite(file, files[file], edits) for file, edits in by_file.items()}


@dataclass(frozen=True, slots=True)
class Slot:
    """A knob's place in one file: bytes `start` to `end` hold its site's expression."""

    knob: Knob
    start: int
    end: int
    closed: bool  # any expression may stand here without parentheses
    value: str  # of the knob, which is a part of that expression where it has `when` or `part`


def _slots_of(knobs: Sequence[Knob], files: Mapping[str, bytes]) -> dict[str, Slot]:
    slots: dict[str, Slot] = {}
    for file in dict.fromkeys(knob.file for knob in knobs):
        data = files.get(file)
        if data is not None:
            of_file = tuple(knob for knob in knobs if knob.file == file)
            slots.update((s.knob.name, s) for s in _slots_in(data, of_file))
    return slots


@lru_cache(maxsize=32)
def _slots_in(data: bytes, knobs: tuple[Knob, ...]) -> tuple[Slot, ...]:
    """Parsed once per content (some 50 ms for 3,600 lines); of the tree only the slots are kept."""
    try:
        module = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    places, lines = Places(module), _line_starts(data)
    return tuple(filter(None, (_slot(knob, places, data, lines) for knob in knobs)))


def _slot(knob: Knob, places: Places, data: bytes, lines: list[int]) -> Slot | None:
    site = knob.site
    found = places.find(site.scope, site.pattern)
    if len(found) != site.count:
        return None
    node = found[site.index]
    start, end = _span(node, lines)
    text = data[start:end].decode("utf-8", "replace")
    try:
        # Offsets are those of UTF-8 lines ended by \n. A file of another kind is left alone.
        if normal(text) != ast.unparse(node):
            return None
    except ValueError:
        return None
    value = _inside(knob, text)
    closed = not isinstance(places.parent(site.scope, node), _OPEN)
    return None if value is None else Slot(knob, start, end, closed, value)


def _inside(knob: Knob, text: str) -> str | None:
    """The knob's own value in its site's expression, or None if its part is not there."""
    branch = _branch(knob, text)
    if not knob.part:
        return normal(branch)
    found = matches(knob.part, expression_of(branch))
    return None if found is None else ast.unparse(found)


def _rewrite(file: str, data: bytes, edits: Mapping[Slot, str]) -> bytes:
    """`data` with the edits done, back to front; slots that share a site are one edit."""
    sites: dict[tuple[int, int], list[Slot]] = {}
    for slot in edits:
        sites.setdefault((slot.start, slot.end), []).append(slot)
    limit = len(data)
    for (start, end), slots in sorted(sites.items(), reverse=True):
        if end > limit:
            raise BadInput(f"{file}: two changes overlap in {data[start:end].decode()!r}")
        text = data[start:end].decode()
        for slot in slots:
            text = _compose(slot.knob, text, edits[slot])
        if not slots[0].closed and not isinstance(expression_of(text), _ATOMS):
            text = f"({text})"
        data, limit = data[:start] + text.encode() + data[end:], start
    try:
        ast.parse(data)
    except SyntaxError as error:
        raise BadInput(f"{file}: the change is not Python: {error}") from None
    return data


def _compose(knob: Knob, text: str, value: str) -> str:
    """The site's expression `text` after the knob was set to `value`."""
    branch = _branch(knob, text)
    found = matches(knob.part, expression_of(branch)) if knob.part else None
    if found is not None:
        start, end = _span(found, _line_starts(branch.encode(), -1))
        value = (branch.encode()[:start] + value.encode() + branch.encode()[end:]).decode()
    if not knob.when:
        return value
    condition, positive = _condition(knob.when)
    other = _branch_text(text, condition, not positive)
    if _same(value, other):
        return value
    first, second = (value, other) if positive else (other, value)
    if isinstance(expression_of(first), (ast.IfExp, ast.Lambda)):
        first = f"({first})"
    return f"{first} if {condition} else {second}"


def _branch(knob: Knob, text: str) -> str:
    return _branch_text(text, *_condition(knob.when)) if knob.when else text


def _branch_text(text: str, condition: str, positive: bool) -> str:
    node = expression_of(text)
    if not (isinstance(node, ast.IfExp) and _same(ast.unparse(node.test), condition)):
        return text
    return ast.unparse(node.body if positive else node.orelse)


def _condition(when: str) -> tuple[str, bool]:
    positive = when.removeprefix("not ")
    return positive, positive == when


_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.Dict, ast.List)
_OPEN = (ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Attribute, ast.Starred)


def _contained(value: str) -> str:
    """`value` in a form that stays one expression wherever one may stand."""
    plain = normal(value)
    bare = isinstance(expression_of(value), (ast.Tuple, ast.NamedExpr, ast.Yield, ast.GeneratorExp))
    return plain if bare or "\n" in value or "#" in value else value.strip()


def _is_slot(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == SLOT


def _same(one: str, other: str) -> bool:
    return normal(one) == normal(other)


def _line_starts(data: bytes, first: int = 0) -> list[int]:
    lengths = (len(line) + 1 for line in data.split(b"\n")[:-1])
    return list(accumulate(lengths, initial=first))


def _span(node: ast.expr, lines: list[int]) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    start = lines[node.lineno - 1] + node.col_offset
    return start, lines[node.end_lineno - 1] + node.end_col_offset
