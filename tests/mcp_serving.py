"""Serve the tools of a run of the row softmax: LINEAGE CACHE ATTEMPTS; and print meanwhile."""

import os
import sys
from pathlib import Path

from avo_cute.bench import Bench
from avo_cute.budget import Budget
from avo_cute.evolve import Limits, interruptible
from avo_cute.mcp_server import serve
from avo_cute.plan import init, seed_of
from avo_cute.run import Run
from avo_cute.sandbox import choose_layer
from avo_cute.target import find_target
from avo_cute.task import find_task


class Quiet:
    def phase(self, text): ...

    def attempt(self, attempt): ...


class Loud:
    """Says everything on stdout, and from a child as well, which must not be taken for answers."""

    def phase(self, text):
        print(text, flush=True)  # noqa: T201

    def attempt(self, attempt):
        os.system("echo a child says so; cat")


def main() -> None:
    path, cache, attempts = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    task = find_task("softmax")
    bench = Bench(
        task, find_target("b200"), task.select("softmax-2k"), cache, choose_layer(), map, 120
    )
    lineage = init(path, task, seed_of(task))
    start = "" if "r" in lineage.runs() else lineage.seed("softmax")
    limits = Limits(Budget(attempts=attempts))
    run = Run(lineage, bench, "r", "softmax-2k", Quiet(), start)
    with lineage.lock(), interruptible(limits):
        run.begin()
        run.watch = Loud()
        serve(run, None, lambda: limits.stop(run), lambda: limits.interrupted)


if __name__ == "__main__":
    main()
