"""The red team's FA4 candidates: every edit hits its place, and what it builds is what it claims.

What a machine without a GPU can know: that a case applies, builds, and passes or fails the audit.
A handful is built here; all of them (about 150 builds) with AVO_CUTE_REDTEAM=FOLDER, a cache.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.redteam.gpu.cases import BY_NAME, CASES, HONEST, Misplaced, tree_of
from tests.redteam.gpu.edits import Edit, apply
from tests.redteam.gpu.measured import measure_case
from tests.redteam.gpu.objects import POINTS, SEED, Builder, points_of

from avo_cute.globs import matches
from avo_cute.records import Failure, Status
from avo_cute.seed import from_wheel
from avo_cute.task import find_task

FA4 = find_task("fa4")
ALL = os.environ.get("AVO_CUTE_REDTEAM", "")
# One of each kind, in one class of workloads: known to the audit, skipped work, other numbers,
# memory of others, another tile. The whole list is a matter of half an hour.
FEW = {
    "zeros-plain": "matrix",
    "much-shared-memory": "launch",
    "counts-calls": "device-global",
    "seventh-unwritten": "",
    "q-changed": "",
    "inert-store": "",
}
ON_GPU = {  # identifiers of the list of cases that a kernel can act out
    *("R04", "R08", "R09", "R14", "R15", "R16", "R17", "R18", "R19", "R20", "R21", "R22", "R23"),
    *("R25", "R26", "R27", "R38", "R39", "B"),
}


@pytest.fixture(scope="module")
def seed_files():
    return from_wheel(FA4.directory / "seed.toml").files


@pytest.fixture(scope="module")
def trees(seed_files):
    """tree_of every case, once; a case that does not apply is missing, and its own test says so."""
    made = {}
    for name, case in BY_NAME.items():
        with suppress(Misplaced):
            made[name] = tree_of(case, seed_files)
    return made


@pytest.mark.parametrize("case", BY_NAME.values(), ids=list(BY_NAME))
def test_a_case_applies_to_the_seed(case, seed_files, trees):
    changed = trees[case.name] if case.name in trees else tree_of(case, seed_files)
    assert changed and all(matches(name, FA4.settings.editable) for name in changed)
    assert all(changed[name] != seed_files[name] for name in changed)
    anchors = [edit.anchor for edit in case.edits if edit.how != "append"]
    assert all(anchor.strip() and "\n" not in anchor for anchor in anchors)
    assert set(case.classes) <= {w.class_name for w in FA4.workloads}


def test_no_two_cases_are_the_same(trees):
    different = {tuple(sorted(files.items())) for files in trees.values()}
    assert len(different) == len(trees) == len(CASES) + len(HONEST)


def test_the_list_of_cases_is_acted_out():
    named = {word for case in CASES for word in case.origin.split()}
    assert named == ON_GPU
    ends = {case.ends for case in CASES}
    assert ends == {Status.INCORRECT, Status.AUDIT_FAILED, Status.CRASHED, Status.TIMED_OUT}
    assert {case.ends for case in HONEST} > {Status.REJECTED, Status.EQUAL, Status.NO_CHANGE}


def test_a_seed_that_moved_is_noticed(seed_files):
    case = BY_NAME["seventh-unwritten"]
    path = "flash_attn/cute/flash_fwd.py"
    anchor = case.edits[0].anchor.encode()
    for text in (
        seed_files[path].replace(anchor, b"store_other()"),
        seed_files[path].replace(anchor, anchor + b"\n                " + anchor),
    ):
        with pytest.raises(Misplaced, match="expected one"):
            tree_of(case, {**seed_files, path: text})
    with pytest.raises(Misplaced, match="the seed has no"):
        tree_of(case, {})
    with pytest.raises(Misplaced, match="definitions of 'nowhere'"):
        tree_of(replace(case, edits=(replace(case.edits[0], scope="nowhere"),)), seed_files)
    with pytest.raises(Misplaced, match="is as before"):
        same = Edit("flash_fwd", case.edits[0].scope, "store_O()", "store_O()", "swap")
        tree_of(replace(case, edits=(same,)), seed_files)


SOURCE = """
class A:
    def f(self):
        if x:
            go(
                1,
            )
        return x


def f():
    return x
"""


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("instead", "        if x:\n            new()\n        return x\n"),
        ("before", "            new()\n            go(\n"),
        ("after", "            )\n            new()\n        return x\n"),
        ("guard", "            if new():\n                go(\n                    1,\n"),
    ],
)
def test_an_edit_takes_the_whole_statement(how, expected):
    assert expected in apply(Edit("any", "A.f", "1,", "new()", how), SOURCE)


def test_an_edit_stays_in_its_scope():
    text = apply(Edit("any", "f", "return x", "return y", "swap"), SOURCE)
    assert re.findall(r"return \w", text) == ["return x", "return y"]
    with pytest.raises(Misplaced, match="2 lines"):
        apply(Edit("any", "", "return x", "return y", "swap"), SOURCE)


@pytest.fixture(scope="module")
def builder(tmp_path_factory) -> Builder:
    return Builder(tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
def test_a_few_build_and_end_as_far_as_can_be_known(builder):
    full = [w for w in POINTS if w.name == "mha-full-4k"]
    chosen = [SEED, *(BY_NAME[name] for name in FEW)]
    with ThreadPoolExecutor(2) as pool:
        seed, *judged = pool.map(lambda case: builder.judge(case, full), chosen)
    assert seed.status == "passes", seed.reason
    for found, rule in zip(judged, FEW.values(), strict=True):
        assert _as_expected(found, seed) == "", found.case.name
        assert found.reason.startswith(rule)


@pytest.mark.skipif(
    not ALL, reason="AVO_CUTE_REDTEAM names no cache folder: half an hour of builds"
)
@pytest.mark.parametrize("case", BY_NAME.values(), ids=list(BY_NAME))
def test_a_case_builds_and_ends_as_far_as_can_be_known(case):
    everything = Builder(Path(ALL).resolve())
    points = points_of(case)
    judged, seed = everything.judge(case, points), everything.judge(SEED, points)
    assert _as_expected(judged, seed) == ""


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from avo_cute.measure.devices import find_devices
    from avo_cute.measure.rig import open_rig

    folder = tmp_path_factory.mktemp("rig")
    opened = open_rig(FA4.directory, folder, find_devices("", "h200"), lambda _: None)
    yield opened
    opened.close()


MEASURED = [case for case in CASES if case.ends is not Status.AUDIT_FAILED]


@pytest.mark.gpu
@pytest.mark.skipif(not ALL, reason="AVO_CUTE_REDTEAM names no cache folder: many minutes")
@pytest.mark.parametrize("case", MEASURED, ids=[case.name for case in MEASURED])
def test_a_case_ends_as_it_must_on_a_gpu(case, rig):
    everything = Builder(Path(ALL).resolve())
    for name in case.classes:
        result = measure_case(case, name, everything, rig)
        if result.status == "" and not case.sure:
            pytest.skip(f"a race that {name} won this time")
        assert result.status == case.ends, (name, result.reason)


@pytest.mark.gpu
@pytest.mark.skipif(not ALL, reason="AVO_CUTE_REDTEAM names no cache folder: many minutes")
@pytest.mark.parametrize("case", HONEST, ids=[case.name for case in HONEST])
def test_an_honest_candidate_is_found_right_on_a_gpu(case, rig):
    everything = Builder(Path(ALL).resolve())
    for name in case.classes:
        result = measure_case(case, name, everything, rig)
        assert result.status == "", (name, result.reason)
        assert {s.workload for s in result.samples} and not any(f.failure for f in result.findings)


def _as_expected(judged, seed) -> str:
    """What contradicts the case's own words; "" if nothing does."""
    if judged.case.ends is Status.AUDIT_FAILED:
        passed = [name for name, r in judged.results.items() if not isinstance(r, Failure)]
        return f"passes the audit: {passed}" if passed else _other(judged)
    if judged.status != "passes":
        return f"{judged.status}: {judged.reason}"
    same = [w for w, digest in judged.hashes.items() if digest == seed.hashes[w]]
    if judged.case.ends is Status.NO_CHANGE:
        return "" if len(same) == len(judged.hashes) else "an object differs from the seed's"
    return f"the object is the seed's for {same}" if same else ""


def _other(judged) -> str:
    """An `audit-failed` case must not merely fail to build."""
    return "" if judged.status == Status.AUDIT_FAILED else f"{judged.status}: {judged.reason}"
