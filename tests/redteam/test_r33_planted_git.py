"""R33: `.git`, attributes, hooks and links planted in a workspace run nothing and go nowhere."""

import os
import subprocess

import pytest

from avo_cute.errors import BadInput
from avo_cute.lineage import Lineage
from avo_cute.seed import Seed
from avo_cute.workspace import export, read_back

FILES = {"LICENSE": b"free\n", "pkg/k.py": b"x = 1\r\n$Id$\n"}


@pytest.fixture
def lineage(tmp_path):
    made = Lineage.create(tmp_path / "lineage.git")
    made.init_seed("t", Seed(FILES, "tiny 1.0", "Import"))
    return made


@pytest.fixture
def work(lineage, tmp_path):
    export(lineage.repo, lineage.tree(lineage.seed("t")), tmp_path / "work")
    return tmp_path / "work"


def evil_config(mark):
    act = f"touch '{mark}'"
    return (
        f'[core]\n\tfsmonitor = "{act}"\n\thooksPath = .\n\tsshCommand = "{act}"\n\tbare = false\n'
        f'[filter "x"]\n\tclean = "{act}; cat"\n\tsmudge = "{act}; cat"\n\trequired = true\n'
        f'[diff "x"]\n\ttextconv = "{act}"\n'
    )


def plant_repository(work, mark):
    (work / ".git" / "hooks").mkdir(parents=True)
    for name in ("objects", "refs"):
        (work / ".git" / name).mkdir()
    (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (work / ".git" / "config").write_text(evil_config(mark))
    hook = work / ".git" / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    hook.chmod(0o755)


def plant_bare_repository(work, mark):
    """A bare repository in a folder: git would take it for one when run inside."""
    plant_repository(work, mark)
    (work / ".git").rename(work / "pkg" / "looks-harmless")


def plant_git_file(work, mark):
    (work / "pkg" / ".git").write_text(f"gitdir: {mark.parent}/elsewhere\n")


def plant_attributes(work, mark):
    (work / ".gitattributes").write_text("* filter=x diff=x text eol=lf ident\n")


def plant_inner_attributes(work, mark):
    (work / "pkg" / ".gitattributes").write_text("* filter=x\n")


def plant_modules(work, mark):
    (work / ".gitmodules").write_text(f'[submodule "x"]\n\tupdate = !touch {mark}\n')


def plant_link_to_folder(work, mark):
    (work / "pkg" / "k.py").unlink()
    (work / "pkg").rmdir()
    (work / "pkg").symlink_to("/etc")


def plant_link_to_file(work, mark):
    (work / "pkg" / "k.py").unlink()
    (work / "pkg" / "k.py").symlink_to("/etc/passwd")


PLANTS = [v for k, v in list(globals().items()) if k.startswith("plant_")]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda p: p.__name__)
def test_what_is_planted_is_named_and_never_runs(lineage, work, tmp_path, monkeypatch, plant):
    mark = tmp_path / "ran"
    plant(work, mark)
    monkeypatch.chdir(work)  # even when we are called from inside
    before = lineage.repo.refs("refs")
    with pytest.raises(BadInput, match=r"git|link|added|deleted|changed"):
        read_back(lineage.repo, lineage.tree(lineage.seed("t")), work, ["pkg/*.py"], 1000)
    assert not mark.exists()
    assert lineage.repo.refs("refs") == before


@pytest.mark.parametrize("plant", [plant_repository, plant_git_file], ids=lambda p: p.__name__)
def test_git_is_named_even_where_everything_may_change(lineage, work, tmp_path, plant):
    plant(work, tmp_path / "ran")
    with pytest.raises(BadInput, match=r"\.git' is git's"):
        read_back(lineage.repo, lineage.tree(lineage.seed("t")), work, ["**"], 1000)


def test_the_plants_are_sharp(work, tmp_path):
    """git itself, run in such a workspace, does run the planted command."""
    plant_repository(work, tmp_path / "ran")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    subprocess.run(["git", "status"], cwd=work, env=env, capture_output=True)
    assert (tmp_path / "ran").exists()


def test_attributes_that_came_with_the_seed_change_no_byte(tmp_path):
    """A fork or a task's source may hold .gitattributes: contents go in and out as they are."""
    lineage = Lineage.create(tmp_path / "lineage.git")
    config = lineage.path / "config"
    config.write_text(config.read_text() + evil_config(tmp_path / "ran").replace("[core]", "[x]"))
    files = FILES | {".gitattributes": b"* filter=x text eol=crlf ident\n"}
    seed = lineage.init_seed("t", Seed(files, "tiny 1.0", "Import"))
    work = tmp_path / "work"
    export(lineage.repo, lineage.tree(seed), work)
    assert {p: (work / p).read_bytes() for p in files} == files
    (work / "pkg/k.py").write_bytes(b"y\r\n$Id$\n")
    got = read_back(lineage.repo, lineage.tree(seed), work, ["pkg/*.py"], 1000)
    assert lineage.read(got.tree, "pkg/k.py") == b"y\r\n$Id$\n"
    assert not (tmp_path / "ran").exists()
