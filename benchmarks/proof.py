"""What avo-cute's measured scores are worth on the GPU of this machine, as one page.

    python3 benchmarks/proof.py [--out DIR]                 aa detect table limits: under 10 minutes
    python3 benchmarks/proof.py redteam --out DIR           again where it was cut short: it goes on
    python3 benchmarks/proof.py evolve --out DIR [--minutes 8]
    python3 benchmarks/proof.py verify gqa --out DIR [--minutes 4]    in the lineage of evolve
    python3 benchmarks/proof.py page --out DIR [--to docs/results]

On a machine without a package index take the packages there first (benchmarks/pack.py). Each part
writes DIR/<part>.json as it goes on, so that a killed run keeps what it has, and prints a short
table last. `--within` seconds after its start a run begins nothing more. `evolve` verifies its best
version itself where there is time for it; `gqa` and `verify` need DIR/lineage.git of evolve, or
DIR/lineage.bundle, from which it is made. `page` needs no GPU: it writes <target>.md from the JSON
and copies that beside it. The target is the GPU that is found. A part that fails does not stop the
others; the exit code says it.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from proof_ground import Ground, close_ground, load, open_ground, say

HERE = ("aa", "detect", "table", "redteam", "limits")  # parts that share one process, in order
RUNS = ("evolve", "verify", "gqa")
DEFAULT = ("aa", "detect", "table", "limits")
LIMITS_S = 200.0  # kept free for `limits`, which is timed with nothing else going on


def main() -> None:
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    chosen = [part for part in HERE if part in options.part]
    if chosen:
        failed += measure(chosen, options.out, options.jobs, options.within)
    for part in RUNS:
        if part in options.part:
            failed += _attempted({part: partial(_run, part, options)})
    if "page" in options.part:
        failed += _attempted({"page": partial(_page, options)})
    for part in (*HERE, *RUNS):
        if part in options.part:
            kept = options.group if part == "gqa" else part
            _attempted({f"telling {kept}": partial(_tell, options.out, kept)})
    sys.exit(f"failed: {', '.join(dict.fromkeys(failed))}" if failed else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = (*HERE, *RUNS, "page")
    add = parser.add_argument
    add("part", nargs="*", help=f"{', '.join(parts)} [{' '.join(DEFAULT)}]")
    add("--out", type=Path, default=Path("proof"), help="where the JSON goes [proof]")
    add("--jobs", type=int, default=os.cpu_count() or 2, help="builds at once")
    add("--minutes", type=float, help="of evolve (8) or gqa (4)")
    add("--within", type=float, default=590.0, help="seconds: parts stop in time [590]")
    add("--group", choices=("gqa", "gqa8"), default="gqa", help="the workloads of gqa")
    add("--to", type=Path, help="where the page goes [docs/results]")
    options = parser.parse_args()
    if unknown := [part for part in options.part if part not in parts]:
        parser.error(f"no such part: {', '.join(unknown)}; choose from {', '.join(parts)}")
    options.part = options.part or list(DEFAULT)
    return options


def measure(parts: Sequence[str], out: Path, jobs: int, within: float) -> list[str]:
    """The parts that measure by themselves; returns those that failed."""
    failed: list[str] = []

    def all_of_them() -> None:
        ground = open_ground(out, jobs)
        try:
            failed.extend(measured_parts(ground, parts, within))
        finally:
            close_ground(ground)

    return [*parts] if _attempted({"the start": all_of_them}) else failed


def measured_parts(ground: Ground, parts: Sequence[str], within: float = 590.0) -> list[str]:
    """As `measure`, on ground that is there already."""
    import proof_timing as timing

    seed = timing.default_bench(ground)
    say(f"building the seed for {ground.target.title}")
    ground.seed(seed)
    with ThreadPoolExecutor(max(1, ground.jobs - 3)) as builds, ThreadPoolExecutor(1) as behind:
        until = within - LIMITS_S if "limits" in parts else within
        team = red_team(ground, until) if "redteam" in parts else None
        rest = [w for w in ground.task.workloads if w not in seed.workloads]
        if "table" in parts and rest:
            for name in dict.fromkeys(w.groups[0] for w in rest):
                of = [w for w in ground.task.workloads if w.groups[0] == name]
                builds.submit(ground.seed, ground.bench(of))
        if team is not None:
            team.start(builds)
        ruled: list[Future[None]] = []

        def null() -> None:
            data = timing.aa(ground)
            ruled.append(behind.submit(lambda: ground.save("aa", timing.aa_ruled(data))))

        works: dict[str, Callable[[], Any]] = {
            "aa": null,
            "detect": lambda: timing.detect(ground),
            "table": lambda: timing.table(ground),
            "redteam": lambda: team.run() if team else None,
            "limits": lambda: _limits(ground),
        }
        failed = _attempted({part: works[part] for part in parts})
        failed += _attempted({"aa": lambda: [future.result() for future in ruled]})
    return failed


def red_team(ground: Ground, until: float) -> Any:
    """The cases, where they are edits of this target's kernel; None elsewhere."""
    if ground.target.family != "sm90":
        ground.save("redteam", {"cases": [], "why": "the cases are edits of the Hopper forward"})
        return None
    from proof_redteam import RedTeam

    return RedTeam(ground, until=until)


def _limits(ground: Ground) -> None:
    import proof_limits

    if ground.target.family != "sm90":
        ground.save("limits", {"why": "the honest variant is an edit of the Hopper forward"})
        return
    from tests.redteam.gpu.cases import BY_NAME, tree_of

    case = BY_NAME[proof_limits.HONEST]
    proof_limits.limits(ground, tree_of(case, ground.files), f"{case.name}: {case.does}")


def _run(part: str, options: argparse.Namespace) -> None:
    import proof_run

    out, jobs = options.out.resolve(), options.jobs
    if part == "evolve":
        proof_run.evolve(out, jobs, options.minutes or 8, options.within)
    elif part == "verify":
        if not proof_run.is_verified(load(out, "verify")):  # evolve had no time for it
            proof_run.verify(out, jobs, options.within)
    else:
        proof_run.gqa(out, jobs, options.minutes or 4, options.within, options.group)


def _page(options: argparse.Namespace) -> None:
    import proof_page

    proof_page.write(options.out, options.to)


def _attempted(works: dict[str, Callable[[], Any]]) -> list[str]:
    """Do one after the other; one that fails is shown, and costs the others nothing."""
    failed = []
    for name, work in works.items():
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(work).exception()
        if error is not None:
            failed.append(name)
            print(f"{name} FAILED", flush=True)
            traceback.print_exception(error)
    return failed


def _tell(out: Path, part: str) -> None:
    """Print the short table of a part."""
    import proof_page

    data = load(out, part)
    print(f"== {part}", *(proof_page.short(part, data) if data else ["nothing was kept"]), sep="\n")


if __name__ == "__main__":
    main()
