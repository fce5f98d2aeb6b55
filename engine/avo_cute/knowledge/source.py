"""The seed's source as passages: one for each function, class and module.

A function is whole, methods and nested functions included; a class is its statements and the list
of its methods; a module is what stands outside of both (imports, constants, tables).
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath

from .piece import SEED, Piece

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_OTHER, _FOCUS = 0.75, 1.25  # weights: a file for other GPUs; one that the task says to read


def pieces(files: Mapping[str, bytes], family: str, focus: Collection[str] = ()) -> Iterator[Piece]:
    """Passages of the Python files among `files`; those for other families weigh less, those in
    `focus` more."""
    for path in sorted(files):
        if path.endswith(".py"):
            text = files[path].decode("utf-8", "replace")
            weight = _FOCUS if path in focus else _weight(path, family)
            yield from _of_file(path, text, weight)


def parsed(text: str) -> ast.Module | None:
    """The syntax tree, or None where it is no Python that this interpreter reads."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a seed's "\d" is not ours to report
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _of_file(path: str, text: str, weight: float) -> Iterator[Piece]:
    lines, tree = text.splitlines(), parsed(text)
    if tree is None:
        yield Piece(f"{SEED}:{path}", SEED, f"{path}, no Python", text, weight)
        return
    definitions = list(_definitions(tree, ""))
    for name, node in definitions:
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        last = node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef):
            body = _class(lines, node, first)
        else:
            body = "\n".join(lines[first - 1 : last])
        title = f"{name}, lines {first}-{last} of {path}"
        yield Piece(f"{SEED}:{path}::{name}", SEED, title, body, weight)
    rest = _without(lines, [node for name, node in definitions if "." not in name])
    if rest.strip():
        title = f"{path}, outside functions and classes"
        yield Piece(f"{SEED}:{path}", SEED, title, rest, weight)


def _definitions(node: ast.AST, above: str) -> Iterator[tuple[str, Definition]]:
    """Functions and classes at module level (in an `if` or `try` too), and inside classes."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield above + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield above + child.name, child
            yield from _definitions(child, f"{above}{child.name}.")
        elif isinstance(child, ast.If | ast.Try | ast.With):
            yield from _definitions(child, above)


def _class(lines: list[str], node: ast.ClassDef, first: int) -> str:
    """A class without the bodies of its methods, which are passages of their own."""
    methods = [n for _, n in _definitions(node, "")]
    last = node.end_lineno or node.lineno
    kept = _without(lines[:last], methods, first)
    return "\n".join([kept, *(f"    # line {m.lineno}: {m.name}" for m in methods)])


def _without(lines: list[str], nodes: list[Definition], first: int = 1) -> str:
    gone: set[int] = set()
    for node in nodes:
        start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        gone.update(range(start, (node.end_lineno or start) + 1))
    kept = (line for n, line in enumerate(lines, 1) if n >= first and n not in gone)
    return re.sub(r"\n(\s*\n){2,}", "\n\n", "\n".join(kept))


def _weight(path: str, family: str) -> float:
    named = set(_FAMILY.findall(PurePosixPath(path).name))
    return _OTHER if named and family not in named else 1.0


_FAMILY = re.compile(r"sm[0-9]{2,3}")
