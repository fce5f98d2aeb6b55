"""Task directories: what is read, and how a faulty one is refused."""

import shutil
from pathlib import Path

import pytest

from avo_cute.errors import BadInput
from avo_cute.task import find_task, shipped_tasks


@pytest.fixture
def fa4_copy(tmp_path) -> Path:
    """A copy of the FA4 task's directory that a test may damage."""
    copy = tmp_path / "mine"
    shutil.copytree(find_task("fa4").directory, copy)
    return copy


def test_shipped_tasks_load():
    assert shipped_tasks() == ["fa4", "softmax"]
    for name in shipped_tasks():
        assert find_task(name).name == name


def test_fa4_has_the_paper_workloads():
    task = find_task("fa4")
    assert [len(task.select(g)) for g in ("mha", "gqa", "all")] == [8, 16, 24]
    for w in task.workloads:
        assert w.params["batch"] * w.params["seqlen_q"] == 32768
        assert w.params["heads"] == (16 if "mha" in w.groups else 32)
        assert w.params["head_dim"] == 128
    assert {w.params["kv_heads"] for w in task.select("gqa")} == {4, 8}


def test_a_task_is_found_by_path(fa4_copy):
    assert find_task(str(fa4_copy)).name == "fa4"


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(BadInput, match="fa4, softmax"):
        find_task("flash")


def test_an_unknown_group_names_the_known_ones():
    with pytest.raises(BadInput, match="all, gqa, gqa4, gqa8, mha"):
        find_task("fa4").select("mqa")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "fa4"', 'name = "fa4"\ncolour = "red"', "colour"),
        ("kernels = 1", "kernels = 'one'", "audit.kernels"),
        ('editable = ["flash_attn/cute/*.py"]', "", "editable"),
        ('name = "fa4"', "name = ", "task.toml"),
        ('name = "fa4"', 'name = "../fa4"', "name"),
    ],
)
def test_a_faulty_task_file_is_refused_by_name(fa4_copy, old, new, says):
    path = fa4_copy / "task.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadInput) as refused:
        _ = find_task(str(fa4_copy)).name
    assert says in str(refused.value)
    assert "task.toml" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("part", ["build", "reference", "knobs"])
def test_a_missing_part_is_named(fa4_copy, part):
    (fa4_copy / f"{part}.py").unlink()
    with pytest.raises(BadInput, match=rf"{part}\.py is missing"):
        getattr(find_task(str(fa4_copy)), part)


def test_identity_changes_with_every_judging_file(fa4_copy):
    before = find_task(str(fa4_copy)).sha256
    for name in ("task.toml", "build.py", "reference.py", "knobs.py", "seed.toml"):
        path = fa4_copy / name
        original = path.read_bytes()
        path.write_bytes(original + b"\n")
        assert find_task(str(fa4_copy)).sha256 != before, name
        path.write_bytes(original)
    assert find_task(str(fa4_copy)).sha256 == before
