"""What the engine itself costs, as ratios and times against what it must reach.

    .venv/bin/python benchmarks/engine.py            # everything, about five minutes
    .venv/bin/python benchmarks/engine.py build      # one part: build, attempt, browse, start

Each line: what, measured, limit. Nothing here is a test; a loaded machine shows in the numbers.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from avo_cute.budget import Budget
from avo_cute.build import BuildRequest, Source
from avo_cute.build.analyse import ClassResult, judge_class
from avo_cute.choice import Choice, make_operator
from avo_cute.evolve import Limits, evolve
from avo_cute.lineage import AttemptDraft, Lineage
from avo_cute.operators.search import knobs_line
from avo_cute.plan import Wanted, init, open_run, seed_of
from avo_cute.records import Attempt, Status
from avo_cute.sandbox import choose_layer
from avo_cute.target import find_target
from avo_cute.task import find_task

COMMAND = str(Path(sys.executable).with_name("avo-cute"))
BARE = """
import json, sys, pathlib
sys.path.insert(0, {tree!r})
request = json.loads(pathlib.Path({request!r}).read_text())
import os; os.environ["CUTE_DSL_ARCH"] = request["target"]["arch"]
import importlib.util
spec = importlib.util.spec_from_file_location("task_build", request["task"] + "/build.py")
build = importlib.util.module_from_spec(spec); spec.loader.exec_module(build)
build.prepare(request["target"])
for w in request["workloads"]: build.compile(w["params"], request["target"])
"""


def main() -> None:
    parts = {"build": build, "attempt": attempt, "browse": browse, "start": start}
    for name in sys.argv[1:] or parts:
        parts[name]()


def build() -> None:
    """One FA4 variant through the sandbox, against a bare compile in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        request = _fa4_request(Path(folder))
        bare, ours = [], []
        for n in range(5):
            bare.append(_timed(lambda: _bare_compile(request, Path(folder))))
            fresh = replace(request, cache=Path(folder) / f"cache{n}")
            ours.append(_timed(lambda r=fresh: _passed(judge_class(r))))
        ratios = [o / b for o, b in zip(ours, bare, strict=True)]
        _say("build of one FA4 variant / bare cute.compile", statistics.median(ratios), 1.3, "×")
        _say("  bare", statistics.median(bare), None, "s")
        _say("  sandboxed, audited, estimated", statistics.median(ours), None, "s")
        again = replace(request, cache=Path(folder) / "cache0")
        cached = [_timed(lambda: _passed(judge_class(again))) for _ in range(9)]
        _say("build from cache", statistics.median(cached) * 1e3, 50, "ms")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    _say("memory of one build", peak, 1536, "MB")


def attempt() -> None:
    """The engine's own share of an attempt, at few and at 1,000 attempts."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AVO_CUTE_CACHE"] = f"{folder}/cache"
        path = Path(folder) / "lineage.git"
        for history in (0, 1000):
            own = _own_share(path, history)
            _say(
                f"own share of an attempt after {history}", statistics.median(own) * 1e3, 150, "ms"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    _say("memory of the engine", peak, 200, "MB")


def browse() -> None:
    """`log` and `attempts` on 10,000 attempts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lineage.git"
        lineage = init(path, find_task("softmax"), seed_of(find_task("softmax")))
        seed = lineage.seed("softmax")
        facts = {"Task": "softmax", "Target": "b200", "Workloads": "all"}
        lineage.start_run("big", seed, facts)
        _record_many(lineage, "big", 10_000)
        for word in ("log", "attempts"):
            times = [_timed(lambda w=word: _run(w, "--lineage", path)) for _ in range(7)]
            _say(f"avo-cute {word} on 10,000 attempts", statistics.median(times), 0.7, "s")


def start() -> None:
    """Start-up of the command line."""
    times = [_timed(lambda: _run("--help")) for _ in range(15)]
    _say("avo-cute --help", statistics.median(times), 0.2, "s")


def _own_share(path: Path, history: int) -> list[float]:
    """Seconds per attempt outside build and analysis, over ten real attempts."""
    building = [0.0]

    def spread(work: Callable[..., object], requests: object) -> list[object]:
        before = time.perf_counter()
        results = [work(r) for r in requests]  # type: ignore[attr-defined]
        building[0] += time.perf_counter() - before
        return results

    name = f"after-{history}"
    wanted = Wanted(path, task="softmax", target="b200", run=name, workloads="softmax-1k")
    run = open_run(wanted, spread, _Silent())
    with run.lineage.lock():
        run.begin()
        if history:
            _record_many(run.lineage, name, history)
        run = open_run(wanted, spread, watch := _Silent())
        limits = Limits(Budget(attempts=1))
        operator, _ = make_operator(Choice("search", strategy="tpe", seed=1), run, limits)
        evolve(run, operator, Limits(Budget(attempts=1)))  # reads the history, once per run
        watch.marks, building[0] = [(time.perf_counter(), 0.0)], 0.0
        watch.building = building
        evolve(run, operator, Limits(Budget(attempts=11)))
    pairs = list(zip(watch.marks, watch.marks[1:], strict=False))
    return [(b[0] - a[0]) - (b[1] - a[1]) for a, b in pairs]


class _Silent:
    """Notes when attempts ended, and how much building there was until then."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []
        self.building = [0.0]

    def phase(self, text: str) -> None: ...

    def attempt(self, attempt: Attempt) -> None:
        self.marks.append((time.perf_counter(), self.building[0]))


def _record_many(lineage: Lineage, run: str, count: int) -> None:
    """Attempts as a long run leaves them; one in fifty was accepted."""
    tree = lineage.tree(lineage.seed("softmax"))
    with lineage.lock():
        for n in range(1, count + 1):
            status = Status.ACCEPTED if n % 50 == 0 else Status.REJECTED
            facts = {
                "Score": f"{1 + n / 1e6:.6f}",
                "Gain": "1.000001",
                "Score-kind": "static",
                "Artifact": f"{n:064x}",
                "Session": str(n // 16 + 1),
            }
            line = knobs_line({"a": "0"}, {"a": str(n)})
            lineage.record(
                AttemptDraft(
                    run,
                    tree,
                    lineage.head(run),
                    status,
                    f"[CuTe,Softmax,Sm100] Attempt number {n}",
                    f"Hypothesis {n}.\n\n{line}",
                    facts,
                )
            )


def _fa4_request(folder: Path) -> BuildRequest:
    task = find_task("fa4")
    for name, data in seed_of(task).files.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_bytes(data)
    source = Source("benchmark", folder / "tree")
    return BuildRequest(
        source,
        task.directory,
        find_target("b200"),
        task.select("mha-causal-8k"),
        choose_layer(),
        folder / "cache",
    )


def _bare_compile(request: BuildRequest, folder: Path) -> None:
    from dataclasses import asdict

    ask = folder / "bare.json"
    ask.write_text(
        json.dumps(
            {
                "task": str(request.task),
                "target": asdict(request.target),
                "workloads": [{"params": dict(w.params)} for w in request.workloads],
            }
        )
    )
    code = BARE.format(tree=str(request.source.directory), request=str(ask))
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True)


def _passed(result: object) -> None:
    assert isinstance(result, ClassResult), result


def _run(*words: object) -> None:
    subprocess.run([COMMAND, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def _timed(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return time.perf_counter() - before


def _say(what: str, value: float, limit: float | None, unit: str) -> None:
    bound = "" if limit is None else f"   limit {limit:g} {unit} ({value / limit:.0%} of it)"
    print(f"{what:52s} {value:9.3f} {unit}{bound}", flush=True)


if __name__ == "__main__":
    main()
