"""The package's structure, read from its source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "engine" / "avo_cute"
LAYERS = {
    0: {
        "errors",
        "records",
        "config",
        "trailers",
        "stats",
        "decision",
        "tomlfile",
        "budget",
        "prompts",
        "",
    },
    1: {
        "repo",
        "seed",
        "lineage",
        "history",
        "runs",
        "runlock",
        "calibrations",
        "transcripts",
        "workspace",
        "globs",
        "treefiles",
        "moved",
    },
    2: {
        "task",
        "target",
        "gpu",
        "sandbox",
        "build",
        "knobs",
        "patterns",
        "branches",
        "slots",
        "estimate",
        "measure",
        "measured",
        "beyond",
        "sanitize",
        "inert",
        "summary",
        "profiles",
        "bench",
        "score",
    },
    3: {
        "operators",
        "model",
        "catalogue",
        "memory",
        "knowledge",
        "supervisor",
        "tools",
        "agent",
    },
    4: {
        "recording",
        "readiness",
        "seen",
        "session",
        "run",
        "plan",
        "once",
        "agreement",
        "verify",
        "executor",
        "choice",
        "evolve",
        "ablation",
        "mcp_server",
        "export",
        "forks",
    },
    5: {"cli", "__main__"},
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}
OWNERS = {"git": {"repo"}, "subprocess": {"sandbox"}, "anthropic": {"model"}}
FILES = sorted(ROOT.rglob("*.py"))


def part(path: Path) -> str:
    """The layer's name for a file: its top-level module or subpackage."""
    first = path.relative_to(ROOT).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Dotted names a file imports, ours as `avo_cute.…`."""
    names = set()
    package = ["avo_cute", *path.relative_to(ROOT).parent.parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *(node.module or "").split(".")]
            stem = ".".join(p for p in base if p)
            names |= {f"{stem}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path):
    mine = LAYER_OF[part(path)]
    for name in imported(path):
        if name.startswith("avo_cute."):
            other = name.split(".")[1]
            other = other if other in LAYER_OF else ""
            assert LAYER_OF[other] <= mine, f"{part(path)} (layer {mine}) imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_three_modules_own_the_outside(path):
    for name in imported(path):
        owners = OWNERS.get(name.split(".")[0])
        assert owners is None or part(path) in owners, f"{part(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_functions_stay_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= 40, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_broad_handlers_only_in_the_command_line(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or getattr(node.type, "id", "") in (
                "Exception",
                "BaseException",
            )
            # the build worker reports whatever the candidate raises, SystemExit included
            allowed = part(path) == "cli" or path.name == "worker.py"
            assert not broad or allowed, f"{path.name}:{node.lineno}"


# Where `MachineFailed` is caught and nothing that the engine may end runs: no sandboxed child.
NO_CHILD = {
    ("measure/process.py", "_run"),  # hands the exception over
    ("repo/process.py", "git_version"),
}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_who_catches_a_failed_machine_lets_the_engine_end(path):
    """`Stopped` is a `MachineFailed`: whoever goes on after one must not go on after the other."""
    if part(path) == "cli":
        return
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef):
            continue
        if (str(path.relative_to(ROOT)), function.name) in NO_CHILD:
            continue
        for node in (n for n in ast.walk(function) if isinstance(n, ast.Try)):
            caught = [caught_by(handler) for handler in node.handlers]
            first = next((n for n, names in enumerate(caught) if "MachineFailed" in names), None)
            if first is not None:
                where = f"{path.name}:{node.lineno} goes on after Stopped"
                assert any("Stopped" in names for names in caught[:first]), where


def caught_by(handler):
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {getattr(t, "id", "") for t in types}


def test_contributing_lists_the_layers_as_they_are():
    text = (ROOT.parent.parent / "CONTRIBUTING.md").read_text()
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ")]
    told = {
        int(left.split()[0]): {name.strip("`/") for name in right.split()}
        for left, right in rows
        if left.split()[0].isdigit()
    }
    assert told == {n: names - {"", "__main__"} for n, names in LAYERS.items()}
