"""The documentation of the installed CuTe DSL: signatures and docstrings of what is public.

Its files are read as text and parsed; nothing of it is imported or run.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .piece import DSL, Piece
from .source import parsed

PACKAGE = "nvidia-cutlass-dsl"
_TRIAL = 0.85  # weight of modules that may change any day
_INNER = 0.7  # weight of the compiler's own modules: public by name, of little use to a kernel
_BARE = 0.8  # weight of what has no docstring
_SIGNATURE = 600  # characters


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the DSL's Python files are, and of which version."""

    version: str
    folder: Path


def installed() -> Installed | None:
    """The DSL on this machine, or None."""
    try:
        found, spec = version(PACKAGE), find_spec("cutlass")
    except (PackageNotFoundError, ValueError):  # ValueError: a half-made module of that name
        return None
    if spec is None or spec.origin is None:
        return None
    return Installed(found, Path(spec.origin).parent)


def pieces(found: Installed) -> Iterator[Piece]:
    """Passages of every public module: one a function, class and method, and their examples."""
    for path in sorted(found.folder.rglob("*.py")):
        inside = path.relative_to(found.folder)
        names = [*inside.parts[:-1], *([] if path.stem == "__init__" else [path.stem])]
        if any(name.startswith("_") for name in names):
            continue
        text = path.read_text("utf-8", "replace")
        tree = parsed(text)
        if tree is None:
            continue
        module = ".".join([found.folder.name, *names])
        if "examples" in names:
            yield Piece(f"{DSL}:{module}", DSL, f"{module} (example)", text)
        else:
            yield from _of_module(tree, module)


def _of_module(tree: ast.Module, module: str) -> Iterator[Piece]:
    inner = module.split(".")[1:2] in (["base_dsl"], ["cutlass_dsl"], ["jax"])
    weight = _INNER if inner else _TRIAL if ".experimental" in module else 1.0
    doc = ast.get_docstring(tree)
    if doc and len(doc) > 80:
        yield Piece(f"{DSL}:{module}", DSL, module, doc, weight)
    for name, node in _public(tree, ""):
        doc = ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            told = _class(node)
        elif doc or "." not in name:
            told = _signature(node)
        else:
            continue  # a method without a word: its class lists it
        text = f"{told}\n\n{inspect.cleandoc(doc)}" if doc else told
        title = f"{name} in {module}"
        weight_here = weight if doc else weight * _BARE
        yield Piece(f"{DSL}:{module}.{name}", DSL, title, text, weight_here)


def _public(
    node: ast.AST, above: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if child.name.startswith("_") and child.name != "__init__":
                continue
            yield above + child.name, child
            if isinstance(child, ast.ClassDef):
                yield from _public(child, f"{above}{child.name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from _public(child, above)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    try:
        inside = ast.unparse(node.args)
        gives = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    except RecursionError:
        inside, gives = "...", ""
    return f"def {node.name}({inside[:_SIGNATURE]}){gives[:_SIGNATURE]}"


def _class(node: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)[:_SIGNATURE]
    lines = [f"class {node.name}({bases})" if bases else f"class {node.name}"]
    for child in node.body:
        if isinstance(child, ast.AnnAssign | ast.Assign):
            lines.append(f"    {ast.unparse(child)[:160]}")
        elif isinstance(child, ast.FunctionDef) and (
            child.name == "__init__" or not child.name.startswith("_")
        ):
            lines.append(f"    {_signature(child)[:240]}")
    return "\n".join(lines)
