"""Match a piece of Python with a hole against a syntax tree, by structure.

The pattern language is described in `knobs`. `Places` finds where a pattern fits;
`value_of` computes a constant expression without running any code of a candidate.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

SLOT = "SLOT"


class Places:
    """A module's nodes, ready to be searched with many patterns."""

    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._by_scope: dict[str, dict[type, list[ast.AST]]] = {}

    def find(self, scope: str, pattern: str) -> list[ast.expr]:
        """Every expression that fills the hole of `pattern` in `scope`, in source order.

        `scope` is a dotted path of definitions ("" for the module); nested ones are not entered.
        A scope that is not there, or is there twice, holds nothing.
        """
        nodes = self._nodes(scope).get(type(pattern_of(pattern)), [])
        return [slot for node in nodes if (slot := matches(pattern, node)) is not None]

    def parent(self, scope: str, slot: ast.expr) -> ast.AST:
        """The node that holds `slot`, one that `find` gave for this scope."""
        nodes = [n for of_type in self._nodes(scope).values() for n in of_type]
        return next(n for n in nodes if any(child is slot for child in ast.iter_child_nodes(n)))

    def _nodes(self, scope: str) -> dict[type, list[ast.AST]]:
        if scope not in self._by_scope:
            owner = _scope(self._module, scope)
            by_type: dict[type, list[ast.AST]] = {}
            for node in () if owner is None else _own_nodes(owner):
                by_type.setdefault(type(node), []).append(node)
            self._by_scope[scope] = by_type
        return self._by_scope[scope]


def matches(pattern: str, node: ast.AST) -> ast.expr | None:
    """The expression in the hole if `pattern` fits exactly this node."""
    found: list[ast.expr] = []
    return found[0] if _fits(pattern_of(pattern), node, found) and found else None


@lru_cache(maxsize=1024)
def pattern_of(text: str) -> ast.AST:
    """The tree to look for: of one statement, or of one expression. ValueError if it is neither."""
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        raise ValueError(f"not one Python statement: {text!r}") from None
    return statement.value if isinstance(statement, ast.Expr) else statement


@lru_cache(maxsize=8192)
def normal(expression: str) -> str:
    """An expression as `ast.unparse` writes it, for comparison. ValueError if it is not one."""
    return ast.unparse(expression_of(expression))


def expression_of(text: str) -> ast.expr:
    """The tree of one expression, which may span lines; positions are those after a "(".

    ValueError if it is not one.
    """
    try:
        # Between brackets only a balanced text gives a list: "1) + (2" and "" are none.
        balanced = ast.parse(f"[{text}\n]", mode="eval").body
        if isinstance(balanced, ast.List) and balanced.elts:
            return ast.parse(f"({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise ValueError(f"not a Python expression: {text!r}")


Value = int | float | bool | tuple["Value", ...]


def value_of(expression: str, names: Mapping[str, Value] | None = None) -> Value | None:
    """The value of an expression of numbers, tuples, operators and `names`; None for any other."""
    try:
        value: Value = _value(expression_of(expression), names or {})
    except (ValueError, TypeError, ArithmeticError, KeyError, RecursionError):
        return None
    return value


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IGNORED = {"ctx", "type_comment", "decorator_list", "returns", "type_params", "kind"}


def _fits(pattern: ast.AST, node: ast.AST, found: list[ast.expr]) -> bool:
    if isinstance(pattern, ast.Name) and pattern.id == SLOT:
        if isinstance(node, ast.expr):
            found.append(node)
        return isinstance(node, ast.expr)
    if _is_any(pattern):
        return True
    if isinstance(pattern, ast.Call) and isinstance(node, ast.Call):
        return _call_fits(pattern, node, found)
    if isinstance(pattern, ast.Dict) and isinstance(node, ast.Dict):
        return _dict_fits(pattern, node, found)
    if isinstance(pattern, _DEFINITIONS[:2]) and isinstance(node, _DEFINITIONS[:2]):
        return pattern.name == node.name and _defaults_fit(pattern.args, node.args, found)
    if type(pattern) is not type(node):
        return False
    return all(
        _field_fits(value, getattr(node, name), found)
        for name, value in ast.iter_fields(pattern)
        if name not in _IGNORED
    )


def _field_fits(pattern: object, value: object, found: list[ast.expr]) -> bool:
    if isinstance(pattern, ast.AST):
        return isinstance(value, ast.AST) and _fits(pattern, value, found)
    if not isinstance(pattern, list):
        return type(pattern) is type(value) and pattern == value
    assert isinstance(value, list)
    if any(isinstance(item, ast.stmt) for item in pattern) or not pattern:
        return all(_one_fits(item, value, found) for item in pattern)
    return len(pattern) == len(value) and all(
        _field_fits(item, of, found) for item, of in zip(pattern, value, strict=True)
    )


def _one_fits(pattern: ast.AST, nodes: list[ast.stmt], found: list[ast.expr]) -> bool:
    """Exactly one of the statements fits (any, for `...`)."""
    if isinstance(pattern, ast.Expr) and _is_any(pattern.value):
        return True
    slots: list[list[ast.expr]] = []
    for node in nodes:
        of_node: list[ast.expr] = []
        if _fits(pattern, node, of_node):
            slots.append(of_node)
    if len(slots) == 1:
        found.extend(slots[0])
    return len(slots) == 1


def _call_fits(pattern: ast.Call, node: ast.Call, found: list[ast.expr]) -> bool:
    args = pattern.args
    if args and _is_any(args[-1]):
        args = args[:-1]
        if len(node.args) < len(args):
            return False
    elif len(node.args) != len(args):
        return False
    keywords = {k.arg: k.value for k in node.keywords}
    return (
        _fits(pattern.func, node.func, found)
        and all(_fits(p, n, found) for p, n in zip(args, node.args, strict=False))
        and all(
            k.arg in keywords and _fits(k.value, keywords[k.arg], found) for k in pattern.keywords
        )
    )


def _dict_fits(pattern: ast.Dict, node: ast.Dict, found: list[ast.expr]) -> bool:
    entries: dict[str, list[ast.expr]] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is not None:
            entries.setdefault(ast.unparse(key), []).append(value)
    for key, value in zip(pattern.keys, pattern.values, strict=True):
        if key is None:
            continue
        of_key = entries.get(ast.unparse(key), [])
        if len(of_key) != 1 or not _fits(value, of_key[0], found):
            return False
    return True


def _defaults_fit(pattern: ast.arguments, node: ast.arguments, found: list[ast.expr]) -> bool:
    there = _defaults(node)
    return all(
        name in there and _fits(value, there[name], found)
        for name, value in _defaults(pattern).items()
    )


def _defaults(arguments: ast.arguments) -> dict[str, ast.expr]:
    positional = [*arguments.posonlyargs, *arguments.args]
    with_default = positional[len(positional) - len(arguments.defaults) :]
    defaults = {a.arg: d for a, d in zip(with_default, arguments.defaults, strict=True)}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            defaults[argument.arg] = default
    return defaults


def _is_any(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _scope(module: ast.Module, path: str) -> ast.AST | None:
    owner: ast.AST = module
    for name in path.split(".") if path else ():
        inner = [n for n in _own_nodes(owner) if isinstance(n, _DEFINITIONS) and n.name == name]
        if len(inner) != 1:
            return None
        owner = inner[0]
    return owner


def _own_nodes(owner: ast.AST) -> Iterator[ast.AST]:
    """The nodes below `owner` in source order; a nested definition is one node, not entered
    except for its signature, where defaults are evaluated outside of it."""
    waiting = [*ast.iter_child_nodes(owner)][::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _DEFINITIONS):
            signature = getattr(node, "args", None)
            waiting.extend([signature] if signature is not None else [])
        else:
            waiting.extend([*ast.iter_child_nodes(node)][::-1])


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.USub: operator.neg, ast.Not: operator.not_, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


def _value(node: ast.expr, names: Mapping[str, Value]) -> Any:
    """Raises one of the errors that `value_of` catches where a node is of another kind."""
    match node:
        case ast.Constant(value=bool() | int() | float() as constant):
            return constant
        case ast.Name(id=name):
            return names[name]
        case ast.Tuple(elts=items):
            return tuple(_value(item, names) for item in items)
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_number(operand, names))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_number(left, names), _number(right, names))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _OPERATORS[type(op)](_number(left, names), _number(right, names))
        case ast.BoolOp(op=op, values=operands):
            return (all if isinstance(op, ast.And) else any)(_value(o, names) for o in operands)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
    raise ValueError(type(node).__name__)


def _number(node: ast.expr, names: Mapping[str, Value]) -> int | float:
    value = _value(node, names)
    if not isinstance(value, int | float):
        raise TypeError("operators are for numbers only")  # a tuple times a number can be endless
    return value
