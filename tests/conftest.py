"""Fixtures that judge a candidate for real: sandbox, compile, audit, estimate."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from avo_cute.bench import Bench
from avo_cute.build import Source
from avo_cute.score import evaluate, standing_of
from avo_cute.target import find_target
from avo_cute.task import find_task

KERNEL = "row_softmax/softmax.py"


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory) -> Path:
    """One build cache for all tests of this process."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def softmax_bench(shared_cache) -> Bench:
    """The smallest real bench: one workload of the row softmax, for a B200."""
    return bench_for("softmax", "b200", "softmax-2k", shared_cache)


def bench_for(task: str, target: str, group: str, cache: Path) -> Bench:
    from avo_cute.sandbox import choose_layer

    found = find_task(task)
    chosen = found.select(group)
    return Bench(found, find_target(target), chosen, cache, choose_layer(), spread=map, wall_s=120)


def write_candidate(folder: Path, changes: Mapping[str, bytes | str | None]) -> Source:
    """The softmax source with files replaced, added or (None) deleted, as a `Source`."""
    shutil.copytree(find_task("softmax").directory / "source", folder, dirs_exist_ok=True)
    for name, data in changes.items():
        path = folder / name
        if data is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return Source(digest.hexdigest(), folder)


def kernel_source() -> str:
    return (find_task("softmax").directory / "source" / KERNEL).read_text()


@pytest.fixture(scope="session")
def softmax_baseline(softmax_bench, tmp_path_factory):
    """The verdict on the unchanged softmax."""
    verdict = evaluate(
        write_candidate(tmp_path_factory.mktemp("seed") / "tree", {}), softmax_bench, None
    )
    assert verdict.estimates, verdict
    return verdict


@pytest.fixture
def judge(softmax_bench, softmax_baseline, tmp_path):
    """judge(changes, **bench settings) -> Verdict on the softmax with these files changed."""

    def run(changes, seen=None, **settings):
        source = write_candidate(tmp_path / "candidate", changes)
        standing = standing_of(softmax_baseline, softmax_baseline, seen or {})
        return evaluate(source, replace(softmax_bench, **settings), standing)

    return run


@pytest.fixture
def attack(judge):
    """attack(code) -> Verdict on the softmax with `code` run when the candidate is imported."""

    def run(code, **settings):
        return judge({KERNEL: kernel_source() + "\n\n" + code}, **settings)

    return run


@pytest.fixture(scope="session")
def libraries(softmax_bench, tmp_path_factory):
    """The library that the public workload of each edit in `simulated_rig` ends in."""
    from .simulated_rig import EDITS, library_of, source

    found = {}
    for name in EDITS:
        folder = tmp_path_factory.mktemp("edit") / "tree"
        verdict = evaluate(write_candidate(folder, {KERNEL: source(name)}), softmax_bench, None)
        found[name] = library_of(verdict.objects["softmax-2k"])
    assert len(set(found.values())) == len(EDITS)
    return found


@pytest.fixture(scope="session")
def begin_run(softmax_bench):
    """begin_run(lineage, rig, names, width) -> a new run, an operator that proposes these edits,
    and what the run says."""
    from avo_cute.operators import OneByOne
    from avo_cute.plan import init, seed_of
    from avo_cute.run import Run

    from .simulated_rig import Events, Scripted

    def begin(path, rig, names, width=1):
        task = find_task("softmax")
        lineage, events = init(path, task, seed_of(task)), Events()
        bench = replace(softmax_bench, rig=rig, width=width)
        run = Run(lineage, bench, "r", "softmax-2k", events, lineage.seed("softmax"))
        return run, OneByOne(Scripted(names)), events

    return begin
