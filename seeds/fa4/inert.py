"""Edits of FlashAttention-4's source that change nothing of what is computed.

They move instructions about. A gain that such an edit takes away was luck of the instruction
scheduler; the verdict on a small gain says how often that happened.
"""

import ast

_PLACES = {  # family -> file, function, the statement before which the edits go
    "sm90": (
        "flash_attn/cute/flash_fwd_sm90.py",
        "mma",
        "tile_scheduler.advance_to_next_work()",
    ),
}
_NEVER = (
    ("seqlen.seqlen_q < 0", ("mLSE[0, head_idx, batch_idx] = Float32(0.0)",)),
    ("seqlen.seqlen_k < 0", ("mLSE[0, head_idx, batch_idx] = Float32(1.0)",)),
    (
        "seqlen.seqlen_q + seqlen.seqlen_k < 0",
        (
            "mLSE[0, head_idx, batch_idx] = Float32(0.0)",
            "mLSE[1, head_idx, batch_idx] = Float32(1.0)",
        ),
    ),
)


def variants(files, family):
    """Changed files of each inert version of a tree; none where the place is not known.

    `files` maps paths to bytes; what cannot be read as Python has no such place. Each version
    stores something where a length is negative: never.
    """
    file, function, statement = _PLACES.get(family, ("", "", ""))
    if file not in files:
        return []
    try:
        text = files[file].decode()
        found = _places(ast.parse(text), function, statement)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # a candidate may write anything
        return []
    if len(found) != 1:
        return []
    lines = text.splitlines(keepends=True)
    at = found[0] - 1
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    return [{file: _with(lines, at, indent, *never).encode()} for never in _NEVER]


def _places(tree, function, statement):
    """Line numbers of a statement in a function."""
    return [
        node.lineno
        for scope in ast.walk(tree)
        if isinstance(scope, ast.FunctionDef) and scope.name == function
        for node in ast.walk(scope)
        if isinstance(node, ast.Expr) and ast.unparse(node) == statement
    ]


def _with(lines, at, indent, condition, body):
    added = [f"{indent}if {condition}:\n", *(f"{indent}    {line}\n" for line in body)]
    return "".join([*lines[:at], *added, *lines[at:]])
