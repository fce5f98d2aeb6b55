"""The file on disk: named by its content, whole or none, kept by several processes at once."""

import os
import subprocess
import sys

import pytest

from avo_cute.errors import MachineFailed
from avo_cute.knowledge import index, open_base
from avo_cute.knowledge.piece import Piece

PIECES = [Piece(f"notes:{n}", "notes", f"title {n}", f"text word{n}") for n in range(50)]


@pytest.fixture
def own_cache(lineage, tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setenv("AVO_CUTE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "knowledge"


def only(folder):
    (path,) = folder.glob("*.sqlite")
    return path


def ids(base):
    return [passage.id for passage in base.search("row softmax exponentials")]


def test_it_is_built_once(lineage, own_cache):
    first = ids(open_base(lineage, "softmax", "sm100"))
    made = only(own_cache).stat()
    assert ids(open_base(lineage, "softmax", "sm100")) == first
    again = only(own_cache).stat()
    assert (made.st_ino, made.st_size) == (again.st_ino, again.st_size)


@pytest.mark.parametrize("how", ["short", "empty", "overwritten", "a bit"])
def test_a_damaged_one_is_built_again(lineage, own_cache, how):
    first = ids(open_base(lineage, "softmax", "sm100"))
    path = only(own_cache)
    data = bytearray(path.read_bytes())
    if how == "a bit":
        data[len(data) // 2] ^= 1
    else:
        data = {"short": data[: len(data) // 3], "empty": b"", "overwritten": b"no" * 9999}[how]
    path.write_bytes(data)
    assert ids(open_base(lineage, "softmax", "sm100")) == first
    assert len(only(own_cache).read_bytes()) > 1_000_000


def test_one_that_breaks_while_it_is_open_is_built_again(lineage, own_cache):
    base = open_base(lineage, "softmax", "sm100")
    first = ids(open_base(lineage, "softmax", "sm100"))
    with only(own_cache).open("r+b") as file:  # in place: under the open connection
        file.write(b"\xff" * 400_000)
    assert ids(base) == first
    assert "softmax" in base.read(first[0])


def test_it_follows_the_seed_and_the_documents(lineage, own_cache):
    from avo_cute.knowledge import documents

    base = open_base(lineage, "softmax", "sm100")
    assert base.search("zyzzyva") == []
    documents.add(lineage.repo, [documents.Offered("a.md", b"zyzzyva", "# Beetles\nzyzzyva\n")])
    assert [p.id for p in open_base(lineage, "softmax", "sm100").search("zyzzyva")] == [
        "documents:a.md#1"
    ]
    assert base.search("zyzzyva") == []  # what is open stays as it is
    documents.remove(lineage.repo, "a.md")
    assert open_base(lineage, "softmax", "sm100").search("zyzzyva") == []


def test_old_ones_go_and_the_last_used_stay(tmp_path):
    for n in range(index.KEEP + 3):
        index.build(tmp_path, f"key{n}", PIECES).close()
        (path,) = tmp_path.glob(f"key{n}.*")
        os.utime(path, (1000 + n, 1000 + n))
        found = index.find(tmp_path, "key0")
        assert found is not None, n  # used each time, so it stays
        found.close()
    assert len(list(tmp_path.glob("*.sqlite"))) == index.KEEP
    assert index.find(tmp_path, "key1") is None


def test_two_processes_may_build_the_same_one(lineage, own_cache):
    code = (
        "import sys; from pathlib import Path\n"
        "from avo_cute.lineage import Lineage; from avo_cute.knowledge import open_base\n"
        "base = open_base(Lineage.open(Path(sys.argv[1])), 'softmax', 'sm100')\n"
        "print(len(base.search('softmax')))\n"
    )
    command = [sys.executable, "-c", code, str(lineage.path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0] for process in both] == ["8\n"] * 3
    assert not list(own_cache.glob("new-*"))
    assert len(ids(open_base(lineage, "softmax", "sm100"))) == 8


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(MachineFailed, match="AVO_CUTE_CACHE"):
        index.build(tmp_path / "sub", "key", PIECES)


def test_a_cache_that_is_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineFailed, match="AVO_CUTE_CACHE"):
        index.build(tmp_path / "file" / "knowledge", "key", PIECES)
