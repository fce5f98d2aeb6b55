"""The build process: the only place where a candidate's Python runs.

Run as `python -I worker.py REQUEST OUT` inside the sandbox, by path; it imports nothing of the
engine. REQUEST is JSON (tree, task, packages, target, workloads); OUT is the one writable folder.
It leaves one object per distinct compilation and, last, `record.json`. Nothing it writes is
believed: the parent judges the object files as bytes.
"""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path

FUNCTION_NAME = "kernel"
HOST_CPU = "x86-64-v2"
HOST_FEATURES = ["+cx16", "+popcnt", "+sse3", "+sse4.1", "+sse4.2", "+ssse3"]
DETAIL_BYTES = 4096
CONTEXT_LINES = 15


def main():
    request = json.loads(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[2])
    record = {"workloads": {}}
    try:
        compiled = compile_all(request)
        for name, index in export_all(compiled, out).items():
            record["workloads"][name] = index
    except BaseException as error:
        record = {"error": describe(error, request["tree"])}
    partial = out / "record.json.part"
    partial.write_text(json.dumps(record))
    partial.rename(out / "record.json")
    sys.stdout.flush()
    os._exit(0)  # the DSL's threads have nothing left to say


def compile_all(request):
    """Compile every workload through the task's build.py; yields (name, compiled function)."""
    os.environ["CUTE_DSL_ARCH"] = request["target"]["arch"]
    sys.dont_write_bytecode = True
    hide_driver()
    sys.meta_path.insert(0, CandidateFinder(request["tree"], request["packages"]))
    task = load_build(request["task"])
    task.prepare(request["target"])
    return [
        (workload["name"], task.compile(workload["params"], request["target"]))
        for workload in request["workloads"]
    ]


def export_all(compiled, out):
    """Write each distinct compiled function once; returns workload name -> file name."""
    files, done = {}, {}
    for name, function in compiled:
        if id(function) not in done:
            done[id(function)] = f"{len(done)}.o"
            pin_host_cpu(function.ir_module)
            path = str(out / done[id(function)])
            function.export_to_c(object_file_path=path, function_name=FUNCTION_NAME)
        files[name] = done[id(function)]
    return files


def pin_host_cpu(module):
    """Compile the host part for a fixed CPU.

    Left alone the DSL compiles it for the CPU of this machine (AVX2 and BMI where it has them),
    and the same source would give other bytes on another machine.
    """
    from cutlass._mlir import ir

    def pin(op):
        if op.name == "llvm.func":
            features = ", ".join(f'"{feature}"' for feature in HOST_FEATURES)
            with op.context:
                op.attributes["target_cpu"] = ir.StringAttr.get(HOST_CPU)
                op.attributes["target_features"] = ir.Attribute.parse(
                    f"#llvm.target_features<[{features}]>"
                )
        return ir.WalkResult.ADVANCE

    module.operation.walk(pin)


def hide_driver():
    """Without a driver the DSL takes its newest CUDA flavour; with one it takes what fits it.

    Which driver the build machine has must not decide the artifact.
    """
    original = ctypes.CDLL.__init__

    def init(self, name, *args, **kwargs):
        if name is not None and Path(str(name)).name.startswith("libcuda.so"):
            raise OSError(f"{name}: hidden from builds")
        original(self, name, *args, **kwargs)

    ctypes.CDLL.__init__ = init


class CandidateFinder(importlib.abc.MetaPathFinder):
    """Serves the task's packages from the candidate's tree and from nowhere else."""

    def __init__(self, tree, packages):
        self.tree, self.packages = Path(tree), packages

    def find_spec(self, fullname, path=None, target=None):
        top = fullname.partition(".")[0]
        if top == "avo_cute":  # the engine is none of a candidate's business
            raise ModuleNotFoundError("the engine cannot be imported here", name=fullname)
        if top not in self.packages:
            return None
        base = self.tree.joinpath(*fullname.split("."))
        if (init := base / "__init__.py").is_file():
            return importlib.util.spec_from_file_location(
                fullname, init, submodule_search_locations=[str(base)]
            )
        if (module := base.with_suffix(".py")).is_file():
            return importlib.util.spec_from_file_location(fullname, module)
        if base.is_dir():
            spec = importlib.machinery.ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(base)]
            return spec
        raise ModuleNotFoundError(f"the candidate has no module {fullname}", name=fullname)


def load_build(directory):
    spec = importlib.util.spec_from_file_location("task_build", Path(directory) / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def describe(error, tree):
    """The exception's own message, the candidate's file:line and the lines around it."""
    where, context = locate(error, tree)
    message = str(error).strip() or f"({type(error).__name__} without a message)"
    name = type(error).__name__
    reason = f"{name}: {message.splitlines()[0]}" + (f" ({where})" if where else "")
    return {
        "reason": reason[:500],
        "detail": f"{name}: {message}\n\n{where}\n{context}"[:DETAIL_BYTES],
        "memory": isinstance(error, MemoryError),
    }


def locate(error, tree):
    """The innermost line of the candidate on the way to the error, and its surroundings."""
    file, line = getattr(error, "filename", None), getattr(error, "lineno", None)
    line = line or getattr(error, "line", None)
    if not (file and str(file).startswith(tree) and isinstance(line, int)):
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(tree)
        ]
        if not frames:
            return "", ""
        file, line = frames[-1].filename, frames[-1].lineno
    lines = Path(file).read_text(errors="replace").splitlines()
    first = max(0, line - 1 - CONTEXT_LINES // 2)
    numbered = [
        f"{'>' if n == line else ' '}{n:5d} {text}"
        for n, text in enumerate(lines[first : first + CONTEXT_LINES], first + 1)
    ]
    return f"{os.path.relpath(file, tree)}:{line}", "\n".join(numbered)


if __name__ == "__main__":
    main()
