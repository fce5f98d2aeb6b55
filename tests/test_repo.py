"""git as we call it: alone in its environment, and clear about what went wrong."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from avo_cute.errors import BadInput, MachineFailed, Refused
from avo_cute.repo import ABSENT, FILE, Entry, RefUpdate, Repo, git_version

WHEN = 1_796_000_000


@pytest.fixture
def repo(tmp_path):
    return Repo.create(tmp_path / "x.git")


def commit(repo, files, *parents):
    blobs = repo.write_blobs(list(files.values()))
    tree = repo.write_tree({p: Entry(FILE, b) for p, b in zip(files, blobs, strict=True)})
    return repo.commit(tree, parents, "subject\n\nbody\n", WHEN)


def plain_git(repo, *arguments):
    command = ["git", "--git-dir", str(repo.path), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode().strip()


FILES = {"a.py": b"x\r\n\x00\xff", "deep/er/b.py": b"", "with space/ü\n.py": b"1\n", "*": b"2"}


def test_what_is_written_is_read(repo):
    made = commit(repo, FILES)
    entries = repo.read_tree(made)
    assert dict(zip(entries, repo.read_blobs([e.blob for e in entries.values()]), strict=True)) == (
        dict(sorted(FILES.items()))
    )
    read = repo.read_commit(made)
    assert (read.parents, read.when, read.message.rstrip()) == ((), WHEN, "subject\n\nbody")
    assert plain_git(repo, "fsck", "--strict", "--no-dangling") == ""


def test_a_tree_is_changed_path_by_path(repo):
    base = repo.read_commit(commit(repo, {"a": b"1", "d/b": b"2", "d/c": b"3"})).tree
    (blob,) = repo.write_blobs([b"4"])
    tree = repo.write_tree({"d/b": None, "d/c": Entry(FILE, blob), "e": Entry(FILE, blob)}, base)
    found = repo.read_tree(tree)
    assert list(found) == ["a", "d/c", "e"]
    assert found["d/c"].blob == blob


def test_refs_move_together_or_not_at_all(repo):
    one = commit(repo, {"a": b"1"})
    two = commit(repo, {"a": b"2"}, one)
    repo.update_refs([RefUpdate("refs/heads/x", one, ABSENT)], "test")
    stale = [RefUpdate("refs/heads/y", two, ABSENT), RefUpdate("refs/heads/x", two, two)]
    with pytest.raises(Refused, match="meanwhile"):
        repo.update_refs(stale, "test")
    with pytest.raises(Refused, match="meanwhile"):
        repo.update_refs([RefUpdate("refs/heads/x", two, ABSENT)], "test")
    with pytest.raises(Refused, match="meanwhile"):
        repo.update_refs([RefUpdate("refs/heads/z", two, one)], "test")
    assert repo.refs("refs/heads") == {"refs/heads/x": one}
    repo.update_refs([RefUpdate("refs/heads/x", two, one)], "test")
    assert plain_git(repo, "reflog", "x", "--format=%gs") == "test\ntest"


@pytest.mark.parametrize("rev", ["nothing", "", "a\0b", "-x", "--all", "HEAD", "x..y", "é", "x\ny"])
def test_a_revision_that_is_none(repo, rev):
    assert repo.rev_parse(rev) is None


def test_revisions(repo):
    one = commit(repo, {"a": b"1"})
    two = commit(repo, {"a": b"2"}, one)
    repo.update_refs([RefUpdate("refs/heads/x", two, ABSENT)], "test")
    assert repo.rev_parse("x") == repo.rev_parse(two[:8]) == two
    assert repo.rev_parse("x~1") == one
    assert repo.is_ancestor(one, two) and not repo.is_ancestor(two, one)
    assert [fields[0] for fields in repo.log("%H%x00%s", "x")] == [two, one]
    assert "-1\n" in repo.diff(one, two)


def test_packing_keeps_everything(repo):
    one = commit(repo, FILES)
    repo.update_refs([RefUpdate("refs/attempts/r/0001", one, ABSENT)], "test")
    repo.pack()
    assert repo.refs("refs/attempts/r") == {"refs/attempts/r/0001": one}
    assert len(repo.read_tree(one)) == len(FILES)
    assert not list((repo.path / "objects").glob("??"))


def test_threads_may_share_one(repo):
    with ThreadPoolExecutor(4) as pool:
        ids = pool.map(lambda n: repo.write_blobs([b"%d" % n])[0], range(16))
    assert [repo.read_blobs([i]) for i in ids] == [[b"%d" % n] for n in range(16)]


# What users have around us.

SCRIPT = """
import sys
from pathlib import Path
from avo_cute.repo import *
repo = Repo.create(Path(sys.argv[1]))
(blob,) = repo.write_blobs([b"a\\n"])
made = repo.commit(repo.write_tree({"a.txt": Entry(FILE, blob)}), (), "s", 1796000000)
repo.update_refs([RefUpdate("refs/heads/x", made, ABSENT)], "test")
repo.write_note("bench", made, "note", 1796000000)
repo.pack()
print(made, *repo.log("%an%x00%cn%x00%ci%x00%G?%x00%H", "x"))
"""


def run_child(where, environment, cwd):
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(where)]
    done = subprocess.run(command, env=os.environ | environment, cwd=cwd, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return run_child(folder / "x.git", {"HOME": str(folder)}, folder)


def hostile_home(folder):
    """A user whose git signs, runs failing hooks, rewrites line ends and distrusts bare repos."""
    hooks = folder / "hooks"
    hooks.mkdir(parents=True)
    for name in ("reference-transaction", "pre-commit", "commit-msg", "post-checkout"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{folder}/ran'\nexit 1\n")
        (hooks / name).chmod(0o755)
    config = folder / ".gitconfig"
    config.write_text(
        "[commit]\ngpgSign = true\n[tag]\ngpgSign = true\n[gpg]\nprogram = /bin/false\n"
        f"[core]\nhooksPath = {hooks}\nautocrlf = true\ncommentChar = R\n"
        "[safe]\nbareRepository = explicit\n[user]\nuseConfigOnly = true\n"
        "[i18n]\ncommitEncoding = latin1\n[log]\nshowSignature = true\n[init]\ntemplateDir = /x\n"
    )
    return {"HOME": str(folder), "GIT_CONFIG_GLOBAL": str(config), "GIT_DEFAULT_HASH": "sha256"}


def test_the_users_configuration_has_no_effect(tmp_path, expected):
    home = tmp_path / "home"
    assert run_child(tmp_path / "x.git", hostile_home(home), tmp_path) == expected
    assert not (home / "ran").exists()


def test_git_variables_around_us_have_no_effect(tmp_path, expected):
    """As set inside a hook, by `git rebase --exec`, or by somebody's shell profile."""
    odd = {
        "GIT_DIR": str(tmp_path / "no.git"), "GIT_WORK_TREE": "/", "GIT_INDEX_FILE": "/no/index",
        "GIT_OBJECT_DIRECTORY": "/no/objects", "GIT_NAMESPACE": "n", "GIT_QUARANTINE_PATH": "/no",
        "GIT_CONFIG_PARAMETERS": "'core.bare'='false'", "GIT_AUTHOR_NAME": "someone",
        "GIT_EXTERNAL_DIFF": "false", "GIT_COMMITTER_DATE": "1 +0000",
    }  # fmt: skip
    assert run_child(tmp_path / "x.git", odd, tmp_path) == expected


def test_inside_another_repository_with_detached_head(tmp_path, expected):
    outer = tmp_path / "outer"
    (outer / "sub").mkdir(parents=True)
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
        ["checkout", "-q", "--detach"],
    ):
        subprocess.run(["git", "-C", outer, *command], check=True)
    assert run_child(outer / "sub" / "x.git", {}, outer / "sub") == expected
    done = subprocess.run(["git", "-C", outer, "log", "--oneline"], capture_output=True, check=True)
    assert len(done.stdout.splitlines()) == 1


def test_paths_with_spaces_and_other_scripts(tmp_path, expected):
    where = tmp_path / "mein Projekt – 試験" / "x y.git"
    assert run_child(where, {}, tmp_path) == expected
    assert run_child(Path("relativ é") / "x.git", {"LC_ALL": "C"}, tmp_path) == expected


INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
from avo_cute.repo.process import Process
got = []
signal.signal(signal.SIGINT, lambda *_: got.append("SIGINT"))
threading.Timer(0.2, lambda: os.killpg(0, signal.SIGINT)).start()
slow = "alias.slow=!sleep 0.5; echo finished"
print(Process(Path(sys.argv[1])).run("-c", slow, "slow").decode().strip(), *got)
"""


def test_ctrl_c_at_the_terminal_does_not_reach_git(repo):
    command = [sys.executable, "-c", INTERRUPTED, str(repo.path)]
    done = subprocess.run(command, start_new_session=True, capture_output=True, text=True)
    assert done.stdout == "finished SIGINT\n", done.stderr


# What goes wrong.


def test_no_repository(tmp_path):
    with pytest.raises(BadInput, match="does not exist"):
        Repo.open(tmp_path / "none")
    with pytest.raises(BadInput, match="no git repository"):
        Repo.open(tmp_path)


@pytest.mark.parametrize("damage", ["HEAD", "config"])
def test_a_damaged_repository_is_named(repo, damage):
    (repo.path / damage).write_text("\x00 garbage [\n")
    with pytest.raises(BadInput, match=r"x\.git is damaged"):
        Repo.open(repo.path)


def test_a_damaged_object_is_named(repo):
    made = commit(repo, {"a": b"1"})
    for path in (repo.path / "objects").glob("??/*"):
        path.chmod(0o644)
        path.write_bytes(b"")
    for read in (repo.read_tree, repo.read_commit):
        with pytest.raises(BadInput, match=r"x\.git is damaged.*fsck"):
            read(made)


def test_a_missing_blob_is_named(repo):
    with pytest.raises(BadInput, match=r"x\.git is damaged"):
        repo.read_blobs(["1" * 40])


def test_other_failures_are_the_machines_in_gits_words(repo):
    with pytest.raises(MachineFailed, match=r"git mktag failed .*: fatal: tag on stdin"):
        repo.tag("", "1" * 40, "m", WHEN)


NO_GIT = """
from pathlib import Path
from avo_cute.errors import MachineFailed
from avo_cute.repo import Repo, git_version
print(repr(git_version()))
try:
    Repo.open(Path("."))
except MachineFailed as error:
    print(error)
"""


def test_a_machine_without_git_is_told_so(tmp_path):
    assert git_version()[0].isdigit()
    command = [sys.executable, "-c", NO_GIT]
    environment = os.environ | {"PATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    empty, said = done.stdout.splitlines() or [done.stderr, ""]
    assert (empty, said) == ("''", "git was not found: install git 2.34 or newer")
