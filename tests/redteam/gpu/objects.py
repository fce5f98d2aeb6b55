"""Build and judge the red-team candidates; writes the objects' paths for a machine with a GPU.

    .venv/bin/python -m tests.redteam.gpu.objects --cache DIR [--out objects.json] [CASE …]

Prints one line for each case: what the build and the audit say, and how the static estimate moves
against the seed's. The JSON file maps a case to its objects, {"zeros": {"mha-full-4k": "/…/0.o"}};
"seed" is among them. Builds are kept in DIR by content, so that a second run takes seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from avo_cute.build import BuildRequest, Source, build_class
from avo_cute.build.analyse import ClassResult, judge_class
from avo_cute.records import Failure, Status, Workload
from avo_cute.sandbox import choose_layer
from avo_cute.seed import from_wheel
from avo_cute.target import find_target
from avo_cute.task import find_task

from .cases import BY_NAME, Case, tree_of

TASK, TARGET = find_task("fa4"), find_target("h200")
SEED = Case("seed", "-", "the seed itself", (), Status.NO_CHANGE, "-")
POINTS = tuple(w for w in TASK.workloads if w.name.endswith("-4k"))


def seed_files() -> Mapping[str, bytes]:
    """The files of the released package, by path in the tree."""
    return from_wheel(TASK.directory / "seed.toml").files


@dataclass(frozen=True, slots=True)
class Judged:
    """What a machine without a GPU knows of a case: one result for each workload class."""

    case: Case
    results: Mapping[str, ClassResult | Failure]  # by class name

    @property
    def status(self) -> str:
        """The first failure's status, or "passes"."""
        failures = (r.status.value for r in self.results.values() if isinstance(r, Failure))
        return next(failures, "passes")

    @property
    def reason(self) -> str:
        return next((r.reason for r in self.results.values() if isinstance(r, Failure)), "")

    @property
    def objects(self) -> dict[str, Path]:
        passed = (r for r in self.results.values() if isinstance(r, ClassResult))
        return {a.workload.name: a.object_path for r in passed for a in r.artifacts}

    @property
    def hashes(self) -> dict[str, str]:
        return {w: sha256(path.read_bytes()).hexdigest() for w, path in self.objects.items()}

    @property
    def cycles(self) -> dict[str, float]:
        passed = (r for r in self.results.values() if isinstance(r, ClassResult))
        return {e.workload: e.cycles for r in passed for e in r.estimates}


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds cases for the H200, keeping what it built in `cache`."""

    cache: Path
    files: Mapping[str, bytes] = field(default_factory=seed_files)

    def judge(self, case: Case, workloads: Sequence[Workload]) -> Judged:
        """Build, audit and estimate: for workloads that would be scored."""
        with self._requests(case, workloads) as requests:
            return Judged(case, {name: judge_class(r) for name, r in requests.items()})

    def build(self, case: Case, workloads: Sequence[Workload]) -> dict[str, Path] | Failure:
        """Objects by workload name, without an audit: also for shapes that are only checked.

        Workloads for which the candidate asks for the same compilation share an object.
        """
        objects: dict[str, Path] = {}
        with self._requests(case, workloads) as requests:
            for request in requests.values():
                built = build_class(request)
                if isinstance(built, Failure):
                    return built
                objects |= built
        return objects

    @contextmanager
    def _requests(
        self, case: Case, workloads: Sequence[Workload]
    ) -> Iterator[dict[str, BuildRequest]]:
        changed = tree_of(case, self.files)
        digest = sha256()
        for name, data in sorted(changed.items()):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
        classes = dict.fromkeys(w.class_name for w in workloads)
        with tempfile.TemporaryDirectory(prefix="avo-cute-redteam-") as folder:
            _write(Path(folder), {**self.files, **changed})
            source = Source(f"redteam {digest.hexdigest()}", Path(folder))
            yield {
                name: BuildRequest(
                    source, TASK.directory, TARGET,
                    tuple(w for w in workloads if w.class_name == name),
                    choose_layer(), self.cache,
                )
                for name in classes
            }  # fmt: skip


def points_of(case: Case) -> list[Workload]:
    """The shortest public workload of each class that the case changes."""
    return [w for w in POINTS if w.class_name in case.classes]


def all_objects(
    cases: Iterable[Case], workloads: Sequence[Workload], cache: Path, jobs: int = 2
) -> dict[str, dict[str, Path] | Failure]:
    """Objects by case and workload name, or why there are none. Takes 6 s a case and class."""
    builder, chosen = Builder(cache), list(cases)
    with ThreadPoolExecutor(jobs) as pool:
        built = pool.map(lambda case: builder.build(case, workloads), chosen)
        return {case.name: objects for case, objects in zip(chosen, built, strict=True)}


def line(judged: Judged, seed: Judged) -> str:
    """One row of the table: name, expected end, what is known, change of the estimate, why."""
    moves = [
        f"{w.removesuffix('-4k').removeprefix('mha-')} {seed.cycles[w] / c - 1:+.1%}"
        for w, c in judged.cycles.items()
    ]
    same = [w for w, h in judged.hashes.items() if h == seed.hashes.get(w)]
    note = f"SAME AS THE SEED: {same}" if same else judged.reason[:110]
    case = judged.case
    return f"{case.name:24}{case.ends.value:14}{judged.status:14}{', '.join(moves):30}{note}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", nargs="*", choices=[[], *BY_NAME])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    builder = Builder(options.cache.resolve())
    chosen = [BY_NAME[name] for name in options.case or BY_NAME]
    seed = builder.judge(SEED, POINTS)
    found = {"seed": seed.objects}
    with ThreadPoolExecutor(options.jobs) as pool:
        for judged in pool.map(lambda case: builder.judge(case, points_of(case)), chosen):
            sys.stdout.write(line(judged, seed) + "\n")
            sys.stdout.flush()
            found[judged.case.name] = judged.objects
    if options.out is not None:
        text = {name: {w: str(p) for w, p in paths.items()} for name, paths in found.items()}
        options.out.write_text(json.dumps(text, indent=1))


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
