"""Conditional expressions whose branches belong to knobs: `A if causal else B`, and ladders.

A ladder chooses by size: `A if n < 1024 else B if n < 4096 else C`. Neighbours that are equal are
written once, so an expression whose branches are all the same has no condition at all.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .patterns import expression_of, normal

_WIDTH = 100  # columns of a line; a longer conditional expression is broken at its conditions


@dataclass(frozen=True, slots=True)
class Cell:
    """The conditions under which a value counts; without any, it always does.

    `when` is a condition, or "not " and a condition. Each condition of `ladder` implies the next;
    in the cell those before number `rung` are false, the others true.
    """

    when: str = ""
    ladder: tuple[str, ...] = ()
    rung: int = 0


def branch_of(text: str, cell: Cell) -> str:
    """What counts in `cell` of the expression `text`, as it is written there."""
    node, truths = expression_of(text), _truths(cell)
    while isinstance(node, ast.IfExp) and (holds := truths.get(ast.unparse(node.test))) is not None:
        node = node.body if holds else node.orelse
    return ast.get_source_segment(f"({text}\n)", node) or ast.unparse(node)


def decides(node: ast.expr, cell: Cell) -> bool:
    """Whether the expression chooses by one of the cell's conditions."""
    return isinstance(node, ast.IfExp) and ast.unparse(node.test) in _truths(cell)


def replaced(text: str, values: Mapping[Cell, str], column: int, indent: int) -> str:
    """The expression `text` with new branches in some cells; these have one condition and ladder.

    It will start at `column` of a line that is indented by `indent`.
    """
    some = next(iter(values))
    condition = some.when.removeprefix("not ")
    sides = []
    for when in (condition, f"not {condition}") if condition else ("",):
        cells = [Cell(when, some.ladder, rung) for rung in range(len(some.ladder) + 1)]
        sides.append([values.get(cell) or branch_of(text, cell) for cell in cells])
    chain = _chain(sides[-1], some.ladder)
    if [*map(normal, sides[0])] != [*map(normal, sides[-1])]:
        chain = _Chain(((_chain(sides[0], some.ladder), condition), *chain.arms), chain.last)
    return _written(chain, column, indent)


@lru_cache(maxsize=1024)
def _truths(cell: Cell) -> Mapping[str, bool]:
    truths = {normal(condition): n >= cell.rung for n, condition in enumerate(cell.ladder)}
    if cell.when:
        condition = cell.when.removeprefix("not ")
        truths[normal(condition)] = condition == cell.when
    return truths


@dataclass(frozen=True, slots=True)
class _Chain:
    """`value if condition else value if condition else … last`."""

    arms: tuple[tuple[_Chain | str, str], ...]
    last: str


def _chain(values: Sequence[str], ladder: Sequence[str]) -> _Chain:
    arms = (
        (value, condition)
        for value, following, condition in zip(values, values[1:], ladder, strict=False)
        if normal(value) != normal(following)
    )
    return _Chain(tuple(arms), values[-1])


def _written(chain: _Chain, column: int, indent: int) -> str:
    line = _line(chain)
    nested = any(isinstance(value, _Chain) and value.arms for value, _ in chain.arms)
    if not chain.arms or (len(chain.arms) == 1 and not nested and column + len(line) <= _WIDTH):
        return line
    return "\n".join(("(", *_lines(chain, indent + 4), f"{' ' * indent})"))


def _line(chain: _Chain) -> str:
    arms = (f"{_operand(value)} if {condition} else " for value, condition in chain.arms)
    return "".join(arms) + chain.last


def _lines(chain: _Chain, indent: int) -> list[str]:
    lines, margin = [], " " * indent
    for n, (value, condition) in enumerate(chain.arms):
        start = f"{margin}else " if n else margin
        if isinstance(value, _Chain) and value.arms:
            lines += [f"{start}(", *_lines(value, indent + 4), f"{margin}) if {condition}"]
        else:
            lines.append(f"{start}{_operand(value)} if {condition}")
    return [*lines, f"{margin}else {chain.last}"]


def _operand(value: _Chain | str) -> str:
    """In the form in which it can stand before `if`."""
    text = _line(value) if isinstance(value, _Chain) else value
    return f"({text})" if isinstance(expression_of(text), (ast.IfExp, ast.Lambda)) else text
