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
are the two branches of `A if causal else B` in the slot; `ladder=("n < 1024", "n < 4096")` and
`rung` 0, 1 or 2 those of `A if n < 1024 else B if n < 4096 else C`, inside of these branches. A
slot without a condition is all branches at once, and `apply` writes conditions only while the
branches differ: setting them all to what stood there first gives the first source back.

What a condition speaks of must be known where the slot is: a `Supply` brings it there, for
instance as one more argument, as long as the slot mentions it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from .branches import Cell
from .errors import BadInput
from .patterns import SLOT, expression_of, normal, pattern_of
from .records import Target, Workload
from .slots import Slot, rewrite, slots_in


@dataclass(frozen=True, slots=True)
class Site:
    """Where an expression stands in a file: match number `index` of exactly `count` in `scope`."""

    pattern: str
    scope: str = ""
    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Supply:
    """How a name gets to a slot: `text` follows the expression at `site` while the slot uses it."""

    name: str
    site: Site
    text: str


@dataclass(frozen=True, slots=True)
class Knob:
    """One replaceable expression. `choices` are Python expressions, for "ordinal" in order.

    The expression that stands in the source is always admissible, whether among them or not.
    Empty `families` and `archs` mean every target; `classes` and `workloads` are globs over the
    workload classes and workloads whose objects the knob can change. `title` continues "Set … to
    184", `effect` says why one would; `at` names the rung, `labels` some choices in short. `expect`
    gives for some choices the gain in percent that was seen elsewhere: a search tries the largest
    first, and those below 0 last. A pattern, part or choice that is not Python is a ValueError.
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
    ladder: tuple[str, ...] = ()
    rung: int = 0
    at: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    workloads: tuple[str, ...] = ("*",)
    expect: tuple[tuple[str, float], ...] = ()
    supplies: tuple[Supply, ...] = ()

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
            and any(map(self.touches, workloads))
        )

    def touches(self, workload: Workload) -> bool:
        """Whether the knob can change the object of this workload, on a target that it is for."""
        return any(fnmatchcase(workload.class_name, glob) for glob in self.classes) and any(
            fnmatchcase(workload.name, glob) for glob in self.workloads
        )

    @property
    def idea(self) -> object:
        """The same for knobs that differ only in the rung on which they stand."""
        return self.file, self.site, self.when, self.part

    @property
    def cell(self) -> Cell:
        """Where in its site's conditional expression it stands."""
        return Cell(self.when, self.ladder, self.rung)


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
    return {file: rewrite(file, files[file], edits) for file, edits in by_file.items()}


def _slots_of(knobs: Sequence[Knob], files: Mapping[str, bytes]) -> dict[str, Slot]:
    slots: dict[str, Slot] = {}
    for file in dict.fromkeys(knob.file for knob in knobs):
        data = files.get(file)
        if data is not None:
            of_file = tuple(knob for knob in knobs if knob.file == file)
            slots.update((s.knob.name, s) for s in slots_in(data, of_file))
    return slots


def _contained(value: str) -> str:
    """`value` in a form that stays one expression wherever one may stand."""
    plain = normal(value)
    bare = isinstance(expression_of(value), (ast.Tuple, ast.NamedExpr, ast.Yield, ast.GeneratorExp))
    return plain if bare or "\n" in value or "#" in value else value.strip()


def _is_slot(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == SLOT


def _same(one: str, other: str) -> bool:
    return normal(one) == normal(other)
