"""Match a piece of Python with a hole against a syntax tree, by structure.

The pattern language is described in `knobs`. `find` gives every place where a pattern fits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

SLOT = "SLOT"


def find(module: ast.Module, scope: str, pattern: str) -> list[tuple[ast.expr, ast.AST]]:
    """Every expression that fills the hole of `pattern` in `scope`, each with its parent node.

    `scope` is a dotted path of definitions ("" for the module); nested ones are not entered. A
    scope that is not there, or is there twice, holds nothing.
    """
    owner = _scope(module, scope)
    if owner is None:
        return []
    slots = [slot for node in _own_nodes(owner) if (slot := matches(pattern, node)) is not None]
    return [(slot, _parent(owner, slot)) for slot in slots]


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
    try:
        return ast.unparse(ast.parse(f"({expression}\n)", mode="eval"))
    except (SyntaxError, ValueError):
        raise ValueError(f"not a Python expression: {expression!r}") from None


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
    """The nodes below `owner` in source order; a nested definition is one node, not entered."""
    for child in ast.iter_child_nodes(owner):
        yield child
        if not isinstance(child, _DEFINITIONS):
            yield from _own_nodes(child)


def _parent(owner: ast.AST, node: ast.AST) -> ast.AST:
    return next(
        parent for parent in ast.walk(owner) for n in ast.iter_child_nodes(parent) if n is node
    )
