"""Workspaces: plain files out, and only what a candidate may change back in."""

import os
import socket
from pathlib import Path

import pytest

from avo_cute.errors import BadInput
from avo_cute.repo import FILE, Entry, Repo
from avo_cute.workspace import export, read_back

FILES = {"pkg/k.py": b"x = 1\r\n", "pkg/sub/s.py": b"", "LICENSE": b"free\n", "pkg/ü b.py": b"1"}
EDITABLE = ["pkg/*.py"]


@pytest.fixture
def repo(tmp_path):
    return Repo.create(tmp_path / "x.git")


@pytest.fixture
def base(repo):
    return tree_of(repo, FILES)


@pytest.fixture
def work(repo, base, tmp_path):
    export(repo, base, tmp_path / "work")
    return tmp_path / "work"


def tree_of(repo, files):
    blobs = repo.write_blobs(list(files.values()))
    return repo.write_tree({p: Entry(FILE, b) for p, b in zip(files, blobs, strict=True)})


def files_below(folder):
    found = (p for p in folder.rglob("*") if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


def back(repo, base, work, size=100):
    return read_back(repo, base, work, EDITABLE, size)


def test_out_and_back_is_the_same_tree(repo, base, work):
    assert files_below(work) == FILES
    assert back(repo, base, work) == type(back(repo, base, work))(base, ())
    assert not (work / ".git").exists()


def test_changed_added_and_deleted_files(repo, base, work, tmp_path):
    (work / "pkg/k.py").write_bytes(b"x = 2\r\n")
    (work / "pkg/new.py").write_bytes(b"\xff\x00")
    (work / "pkg/ü b.py").unlink()
    got = back(repo, base, work)
    assert got.changed == ("pkg/k.py", "pkg/new.py", "pkg/ü b.py")
    export(repo, got.tree, tmp_path / "again")
    assert files_below(tmp_path / "again") == files_below(work)


def test_modes_do_not_count_and_are_kept(repo, tmp_path):
    (blob,) = repo.write_blobs([b"1"])
    base = repo.write_tree({"pkg/k.py": Entry("100755", blob)})
    export(repo, base, tmp_path / "w")
    assert os.access(tmp_path / "w/pkg/k.py", os.X_OK)
    (tmp_path / "w/pkg/k.py").chmod(0o644)
    assert back(repo, base, tmp_path / "w").changed == ()
    (tmp_path / "w/pkg/k.py").write_bytes(b"2")
    assert repo.read_tree(back(repo, base, tmp_path / "w").tree)["pkg/k.py"].mode == "100755"


def test_caches_are_passed_over(repo, base, work):
    (work / "pkg/__pycache__").mkdir()
    (work / "pkg/__pycache__/k.cpython-311.pyc").write_bytes(b"planted")
    assert back(repo, base, work).tree == base


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda w: (w / "LICENSE").write_bytes(b"mine\n"), "'LICENSE' was changed"),
        (lambda w: (w / "LICENSE").unlink(), "'LICENSE' was deleted"),
        (lambda w: (w / "pkg/sub/s.py").write_bytes(b"1"), r"'pkg/sub/s\.py' was changed"),
        (lambda w: (w / "conftest.py").write_bytes(b""), r"'conftest\.py' was added"),
        (lambda w: (w / "pkg/x.pth").write_bytes(b""), r"'pkg/x\.pth' was added"),
        (lambda w: (w / "pkg/k.py").rename(w / "pkg/k.txt"), r"'pkg/k\.txt' was added"),
        (lambda w: (w / "pkg/big.py").write_bytes(b"x" * 101), r"'pkg/big\.py' is larger than"),
        (lambda w: (w / "pkg/l.py").symlink_to("/etc/passwd"), r"'pkg/l\.py' is a symbolic link"),
        (lambda w: (w / "pkg/d").symlink_to("/etc"), "'pkg/d' is a symbolic link"),
        (lambda w: (w / "__pycache__").symlink_to("/etc"), "'__pycache__' is a symbolic link"),
        (lambda w: os.mkfifo(w / "pkg/f.py"), r"'pkg/f\.py' is a pipe"),
        (lambda w: (w / "pkg/.git").mkdir(), r"'pkg/\.git' is git's"),
        (lambda w: (w / ".GIT").write_bytes(b"gitdir: /x"), r"'\.GIT' is git's"),
        (lambda w: (w / "/".join("d" * 40)).mkdir(parents=True), "nested too deep"),
        (lambda w: Path(os.fsdecode(os.fsencode(w / "a") + b"\xff")).touch(), r"'a\\udcff' was"),
    ],
)  # fmt: skip
def test_what_may_not_come_back_is_named(repo, base, work, act, said):
    act(work)
    with pytest.raises(BadInput, match=said):
        back(repo, base, work)


def test_sockets_are_refused(repo, base, work, monkeypatch):
    monkeypatch.chdir(work)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("s.py")
        with pytest.raises(BadInput, match=r"'s\.py' is a socket"):
            back(repo, base, work)


def test_a_workspace_that_is_gone(repo, base, tmp_path):
    with pytest.raises(BadInput, match="cannot read the workspace"):
        back(repo, base, tmp_path / "none")


def test_export_needs_an_empty_folder(repo, base, work):
    with pytest.raises(BadInput, match="not empty"):
        export(repo, base, work)


@pytest.mark.parametrize("mode", ["120000", "160000"])
def test_links_and_submodules_are_not_exported(repo, tmp_path, mode):
    (blob,) = repo.write_blobs([b"/etc/passwd"])
    tree = repo.write_tree({"pkg/l.py": Entry(mode, blob)})
    with pytest.raises(BadInput, match=r"'pkg/l\.py', which is a link"):
        export(repo, tree, tmp_path / "w")


def test_a_tree_whose_paths_lead_out_is_not_exported(repo, tmp_path):
    """git add never makes such a tree, but one can be fetched."""
    (blob,) = repo.write_blobs([b"x"])
    inner = repo._line("mktree", text=f"100644 blob {blob}\tx\n")
    raw = b"40000 ..\0" + bytes.fromhex(inner)
    (tmp_path / "raw").write_bytes(raw)
    path = str(tmp_path / "raw")
    tree = repo._line("hash-object", "-w", "-t", "tree", "--literally", path)
    with pytest.raises(BadInput, match=r"'\.\./x', which is not a path"):
        export(repo, tree, tmp_path / "w")
    assert not (tmp_path / "x").exists()
