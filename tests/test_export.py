"""What is taken out of a lineage, applied with plain git where a user would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from avo_cute.errors import BadInput
from avo_cute.lineage import Lineage
from avo_cute.moved import move_to
from avo_cute.records import Status
from avo_cute.repo import Entry

from .taking import avo, begin, files_of, fork_of, git, snapshot

KERNEL = b"""from pkg.cute import utils
import pkg.cute.helpers as helpers
from pkg.cuter import other
NAME = "pkg.cute.k"  # from pkg.cute


def tile():
    return 1
"""
FILES = {
    "LICENSE": b"free\n",
    "pkg/cute/k.py": KERNEL,
    "pkg/cute/utils.py": b"x = 0\n",
    "pkg/cute/dos.py": b"a = 1\r\nb = 2\r\n",
}
HOSTILE = """First. Schön, 你好, "quotes".

---
diff --git a/LICENSE b/LICENSE
--- a/LICENSE
+++ b/LICENSE
@@ -1 +1 @@
-free
+mine
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: someone else <a@b>
Subject: another
Index: x
-- >8 --
------------------------ >8 ------------------------

Score: 99"""


@pytest.fixture
def taken(tmp_path):
    """Attempts 1 rejected, 2 accepted, 3 equal, 4 accepted."""
    taken = begin(tmp_path / "lineage.git", FILES)
    taken.record({"pkg/cute/utils.py": b"x = 9\n"}, Status.REJECTED, subject="[CuTe] Lose")
    taken.record(
        {"pkg/cute/k.py": KERNEL.replace(b"return 1", b"return 2")},
        subject="[CuTe,Fwd,Sm100] Tile by 2", Score="1.2", Gain="1.2",
    )  # fmt: skip
    taken.record({"pkg/cute/utils.py": b"x = 8\n"}, Status.EQUAL, subject="[CuTe] Idle")
    taken.record(
        {
            "pkg/cute/utils.py": b"import pkg.cute.k\nx = 1\n",
            "pkg/cute/new.py": b"\0\xff binary",
        },
        subject="[CuTe,Fwd,Sm100] Add a file", Score="1.5", Gain="1.25",
    )  # fmt: skip
    return taken


@pytest.fixture
def export(taken, tmp_path):
    """export(rev, *options) -> what the command says as JSON, and the path it made."""

    def run(rev, *options, name="out", code=0):
        words = ("export", rev, "-o", tmp_path / name, "--lineage", taken.path, *options)
        done = avo(*words, *([] if code else ["--json"]), code=code)
        return (done.stderr if code else json.loads(done.stdout)), tmp_path / name

    return run


def am(fork, patch, *options):
    git(fork, "am", "-q", "-3", "--keep-non-patch", *options, patch)


def trailer(folder, key, rev="HEAD"):
    return git(folder, "log", "-1", f"--format=%(trailers:key={key},valueonly,separator=|)", rev)


def test_a_patch_is_one_commit_with_its_message(taken, export, tmp_path):
    told, patch = export("2")
    fork = fork_of(tmp_path / "fork", FILES)
    am(fork, patch)
    assert git(fork, "log", "-1", "--format=%s") == "[CuTe,Fwd,Sm100] Tile by 2"
    assert trailer(fork, "Score") == "1.2" and trailer(fork, "Status") == "accepted"
    assert trailer(fork, "Lineage-commit") == told["commit"] == taken.lineage.resolve("2", "r")
    assert trailer(fork, "Seed").startswith("softmax 1.0 ab")
    body = git(fork, "log", "-1", "--format=%b")
    assert "Because." in body and "a candidate to test" in body
    assert git(fork, "rev-parse", "HEAD^{tree}") == taken.lineage.tree(told["commit"])
    assert told["changed"] == ["pkg/cute/k.py"] and told["bytes"] == patch.stat().st_size
    assert git(fork, "status", "--porcelain") == ""


def test_the_command_that_is_printed_works(taken, tmp_path):
    fork, patch = fork_of(tmp_path / "fork", FILES), tmp_path / "with blank.patch"
    words = ("export", "2", "-o", patch, "--lineage", taken.path)
    command = avo(*words).stdout.splitlines()[-1].strip()
    subprocess.run(command, shell=True, cwd=fork, check=True, capture_output=True)
    assert b"return 2" in (fork / "pkg/cute/k.py").read_bytes()


def test_a_hostile_message_arrives_whole_and_changes_nothing(taken, export, tmp_path):
    taken.record({"pkg/cute/k.py": KERNEL + b"# 5\n"}, body=HOSTILE, subject="Re: [PATCH] From x")
    _, patch = export("5")
    fork = fork_of(tmp_path / "fork", files_of(taken.lineage, taken.lineage.resolve("4", "r")))
    am(fork, patch)
    assert (fork / "LICENSE").read_bytes() == FILES["LICENSE"]
    assert git(fork, "log", "--format=%s", "-1", "HEAD~1") == "fork"
    body = [line.strip() for line in git(fork, "log", "-1", "--format=%B").splitlines()]
    assert [line for line in HOSTILE.splitlines() if line not in body] == []
    assert trailer(fork, "Score") == "1.5" and trailer(fork, "From") == ""
    assert git(fork, "log", "-1", "--format=%an") == "avo-cute"
    assert git(fork, "rev-parse", "HEAD^{tree}") == taken.lineage.tree(taken.lineage.head("r"))


def test_what_a_search_writes_for_itself_stays_behind(taken, export):
    lines = ' knobs {"a": "1"} 0123456789abcdef -> fedcba9876543210\n before {"a": "2"} combined'
    taken.record({"pkg/cute/k.py": KERNEL}, body=f"Why.\n\n{lines}\n\nWhat was seen: accepted: x")
    text = export("5")[1].read_text()
    assert "Why.\n\nWhat was seen: accepted: x\n" in text and "0123456789abcdef" not in text


def test_several_patches_go_on_top_of_each_other(taken, export, tmp_path):
    fork = fork_of(tmp_path / "fork", FILES)
    for rev in ("2", "4"):
        am(fork, export(rev, name=rev)[1])
    assert git(fork, "rev-parse", "HEAD^{tree}") == taken.lineage.tree(taken.lineage.head("r"))


def test_squashed_it_is_all_that_the_accepted_steps_change(taken, export, tmp_path):
    told, patch = export("best", "--squash")
    fork = fork_of(tmp_path / "fork", FILES)
    am(fork, patch)
    assert git(fork, "rev-parse", "HEAD^{tree}") == taken.lineage.tree(told["commit"])
    assert git(fork, "log", "-1", "--format=%s") == "[CuTe,Fwd,Sm100] Take 2 steps of r"
    body = git(fork, "log", "-1", "--format=%b")
    assert "2  +20.00%  [CuTe,Fwd,Sm100] Tile by 2" in body
    assert "4  +25.00%  [CuTe,Fwd,Sm100] Add a file" in body
    assert "Idle" not in body and "Lose" not in body
    assert "Head to head with the seed: 1.5000 x the seed, static" in body
    assert trailer(fork, "Score") == "1.5" and trailer(fork, "Gain") == ""
    assert told["base"] == taken.lineage.seed("softmax") and len(told["steps"]) == 2


def test_a_later_step_says_that_it_rests_on_others(taken, tmp_path):
    words = ("export", "best", "--lineage", taken.path, "-o")
    assert "rests on earlier accepted steps" in avo(*words, tmp_path / "a").stdout
    assert "rests on" not in avo(*words, tmp_path / "b", "--squash").stdout
    assert "rests on" not in avo("export", "2", *words[2:], tmp_path / "c").stdout


def test_squashed_a_first_step_keeps_its_own_words(taken, export):
    assert export("2", "--squash", name="a")[1].read_text() == export("2", name="b")[1].read_text()


def test_a_measured_score_is_told_with_its_interval_and_no_warning(taken, export, tmp_path):
    taken.record(
        {"pkg/cute/k.py": b"y = 3\n"}, subject="[CuTe] Three", Score="1.31", Score_kind="measured",
        Score_interval="1.300000 1.320000", Level="commit", Device="NVIDIA B200",
    )  # fmt: skip
    done = avo("export", "5", "--squash", "-o", tmp_path / "p", "--lineage", taken.path)
    text = (tmp_path / "p").read_text()
    assert "1.3100 x the seed [1.300000 1.320000], measured" in text
    assert "candidate to test" not in text + done.stdout and "Device: NVIDIA B200" in text


def test_files_are_byte_exact_whatever_attributes_say(taken, export):
    attributes = b"*.py text eol=crlf ident export-ignore filter=lfs\nLICENSE export-subst\n"
    changes = {".gitattributes": attributes, "LICENSE": b"$Format:%H$\n", "run.sh": b"#!/bin/sh\n"}
    tree = taken.tree(changes)
    script = taken.lineage.repo.read_tree(tree)["run.sh"].blob
    tree = taken.lineage.repo.write_tree({"run.sh": Entry("100755", script)}, tree)
    commit = taken.lineage.repo.commit(tree, [taken.lineage.head("r")], "By hand", 1_700_000_000)
    told, folder = export(commit, "--format", "files", "--force")
    wanted = files_of(taken.lineage, commit)
    found = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == wanted
    assert {name for name, path in found.items() if os.access(path, os.X_OK)} == {"run.sh"}
    assert told["files"] == len(wanted)


def test_a_bundle_is_cloned_into_a_lineage(taken, export, tmp_path):
    lineage = taken.lineage
    best = lineage.resolve("best", "r")
    lineage.add_note(best, "Score: 1.49\n")
    lineage.tag_milestone("milestone/r/50", best, "Half again")
    session = lineage.repo.commit(lineage.tree(best), (), "Session", 1_700_000_000)
    git(taken.path, "update-ref", "refs/sessions/r/0001", session)
    lineage.start_run("another", best, {"Task": "softmax", "Target": "h200", "Workloads": "all"})
    _, path = export("best", "--format", "bundle", "--run", "r", name="run.bundle")
    git(tmp_path, "clone", "-q", path, "copy")
    assert git(tmp_path / "copy", "rev-parse", "HEAD") == best
    assert git(tmp_path / "copy", "symbolic-ref", "--short", "HEAD") == "lineage/r"
    git(tmp_path, "clone", "-q", "--mirror", path, "mirror.git")
    refs = git(tmp_path / "mirror.git", "for-each-ref", "--format=%(refname) %(objectname)")
    ours = git(taken.path, "for-each-ref", "--format=%(refname) %(objectname)")
    assert set(refs.splitlines()) == {r for r in ours.splitlines() if "another" not in r}
    copy = Lineage.open(tmp_path / "mirror.git")
    assert copy.attempts("r") == lineage.attempts("r") and copy.runs() == ["r"]
    assert copy.read_note(best) == "Score: 1.49\n" and copy.run_facts("r") == lineage.run_facts("r")
    shown = avo("best", "--json", "--lineage", copy.path).stdout
    assert json.loads(shown)["commit"] == best


# The package elsewhere.


def moved(files, name="third.fa", folder="third/fa"):
    """A fork's copy under another name, made by hand."""
    text = {p.replace("pkg/cute/", f"{folder}/"): d for p, d in files.items()}
    for old in (b"from pkg.cute import", b"import pkg.cute."):
        new = old.replace(b"pkg.cute", name.encode())
        text = {p: d.replace(old, new) for p, d in text.items()}
    return text


@pytest.mark.parametrize("history", ["alike", "older"])
def test_a_patch_for_a_moved_folder_applies_there(taken, export, tmp_path, history):
    told, patch = export("4", "--squash", "--relative", "third/fa")
    fork = moved(FILES)
    if history == "older":  # no blob in common: the patch stands by its context alone
        fork["third/fa/k.py"] = b"# ours\n\n\n\n\n\n" + fork["third/fa/k.py"]
    fork = fork_of(tmp_path / "fork", fork)
    am(fork, patch)
    assert b"return 2" in (fork / "third/fa/k.py").read_bytes()
    assert (fork / "third/fa/utils.py").read_bytes() == b"import third.fa.k\nx = 1\n"
    assert told["changed"] == ["third/fa/k.py", "third/fa/new.py", "third/fa/utils.py"]
    assert told["module"] == "third.fa"


def test_imports_are_rewritten_in_added_removed_and_context_lines(taken, export):
    before = b"from pkg.cute import a\nfrom pkg.cute import b\n"
    before += b"  import pkg.cute.c\nfrom pkg import cute\n"
    taken.record({"pkg/cute/utils.py": before})
    after = before.replace(b"import b", b"import bb  # pkg.cuter, not pkg.cute2")
    taken.record({"pkg/cute/utils.py": after + b"# from pkg.cute import d\nx = 'pkg.cute'\n"})
    text = export("6", "--relative", "python/sg/fa")[1].read_text()
    lines = [line for line in text.split("\n@@", 1)[1].splitlines()[1:] if line[:1] in " +-"]
    assert lines == [
        " from sg.fa import a",
        "-from sg.fa import b",
        "+from sg.fa import bb  # pkg.cuter, not pkg.cute2",
        "   import sg.fa.c",
        " from pkg import cute",
        "+# from pkg.cute import d",
        "+x = 'pkg.cute'",
    ]


@pytest.mark.parametrize(
    ("directory", "module", "name"),
    [
        ("vllm/vllm_fa/cute", None, "vllm.vllm_fa.cute"),
        ("./python/sg/fa/", None, "sg.fa"),
        ("src/x", None, "x"),
        ("lib", None, "lib"),
        ("third-party/fa", "vendored.fa", "vendored.fa"),
        ("pkg/cute", None, "pkg.cute"),
        ("third-party/fa", None, None),
        ("x/class", None, None),
        ("../x", None, None),
        ("/x", None, None),
        ("x/.git/y", None, None),
        ("", None, None),
        ("x\ny", None, None),
        ("x", "1.2", None),
    ],
)  # fmt: skip
def test_what_a_moved_folder_is_imported_as(taken, directory, module, name):
    tree = taken.lineage.tree(taken.lineage.head("r"))
    if name is None:
        with pytest.raises(BadInput):
            move_to(taken.lineage.repo, tree, directory, module)
    else:
        move = move_to(taken.lineage.repo, tree, directory, module)
        assert move.to_module == name
        assert move.back().source(move.source(KERNEL)) == KERNEL


# What is refused, and what is only said.


@pytest.mark.parametrize(
    ("rev", "options", "says"),
    [
        ("1", (), "rejected, not an accepted attempt; --force"),
        ("3", ("--format", "files"), "equal, not an accepted"),
        ("0", (), "where run r starts, not an accepted"),
        ("0", ("--force",), "changes nothing"),
        ("seed/softmax", (), "is a seed: it changes nothing"),
        ("seed/softmax", ("--force", "--format", "bundle"), "is a seed"),
        ("999", (), "no revision '999'"),
        ("2", ("--run", "nope"), "no run 'nope'"),
        ("2", ("--relative", "../up"), "not a folder inside a fork"),
        ("2", ("--relative", "a-b/c"), "--module"),
    ],
)
def test_refusals_are_one_line_and_make_nothing(export, taken, rev, options, says):
    before = git(taken.path, "for-each-ref")
    said, path = export(rev, *options, code=1)
    assert says in said and not path.exists()
    assert git(taken.path, "for-each-ref") == before


@pytest.mark.parametrize(
    "options",
    [
        ("--squash", "--format", "files"),
        ("--relative", "x", "--format", "bundle"),
        ("--module", "x"),
        ("--format", "zip"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(export, options):
    assert not export("2", *options, code=2)[1].exists()


def test_an_output_is_needed(taken):
    assert "-o" in avo("export", "2", "--lineage", taken.path, code=2).stderr


def test_force_takes_what_was_rejected_and_says_so(export, taken, tmp_path):
    words = ("export", "1", "--force", "-o", tmp_path / "p", "--lineage", taken.path)
    assert "Its status is rejected." in avo(*words).stdout
    assert "\nStatus: rejected\n" in (tmp_path / "p").read_text()
    said = export("1", "--force", "--squash", name="q")[1].read_text()
    assert "\nStatus: rejected\n" in said


@pytest.mark.parametrize("form", ["patch", "files", "bundle"])
@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_nothing_is_overwritten(export, tmp_path, form, there):
    path = tmp_path / "out"
    if there == "file":
        path.write_text("mine")
    elif there == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    said, _ = export("2", "--format", form, code=1)
    assert "exists already and is never overwritten" in said
    assert not (tmp_path / "nowhere").exists()
    assert there != "file" or path.read_text() == "mine"


@pytest.mark.parametrize("form", ["patch", "files", "bundle"])
def test_a_place_that_cannot_be_written_is_named(taken, tmp_path, form):
    said = avo("export", "2", "-o", tmp_path / "no/where", "--format", form,
               "--lineage", taken.path, code=1).stderr  # fmt: skip
    assert "is no folder" in said
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    command = [str(Path(sys.executable).with_name("avo-cute")), "export", "2", "--format", form]
    command += ["-o", str(locked / "out"), "--lineage", str(taken.path)]
    if os.geteuid() == 0:
        dropped = "--bounding-set=-dac_override,-dac_read_search"
        command = ["setpriv", dropped, *command]
    done = subprocess.run(command, capture_output=True, text=True)
    locked.chmod(0o755)
    assert done.returncode == 1 and "cannot create" in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (locked / "out").exists()


def test_a_large_change_is_written_and_its_size_told(taken, tmp_path):
    lines = b"".join(b"x_%06d = %d\n" % (n, n) for n in range(100_000))
    taken.record({"pkg/cute/big.py": lines})
    done = avo("export", "5", "-o", tmp_path / "p", "--lineage", taken.path)
    assert "That is large for a patch: 1.7 MB." in done.stdout
    fork = fork_of(tmp_path / "fork", files_of(taken.lineage, taken.lineage.resolve("4", "r")))
    am(fork, tmp_path / "p")
    assert (fork / "pkg/cute/big.py").read_bytes() == lines


def test_dos_lines_survive_by_the_option_that_is_told(taken, export, tmp_path):
    taken.record({"pkg/cute/dos.py": b"a = 1\r\nb = 3\r\n"})
    told, _ = export("5")
    assert "--keep-cr" in told["take"]
    fork = fork_of(tmp_path / "fork", files_of(taken.lineage, taken.lineage.resolve("4", "r")))
    subprocess.run(told["take"], shell=True, cwd=fork, check=True, capture_output=True)
    assert (fork / "pkg/cute/dos.py").read_bytes() == b"a = 1\r\nb = 3\r\n"
    assert "--keep-cr" not in export("2", name="other")[0]["take"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Status: accepted", "Status: splendid", "no readable Status"),
        ("Status: accepted\n", "", "no readable Status"),
        ("Attempt: 2", "Attempt: two", "no readable Attempt"),
        ("Score: 1.2", "Score: high", "no readable Score"),
        ("\n\nRun:", "\nRun:", "no readable Run, Attempt, Status"),
    ],
)
def test_damaged_trailers_are_refused_and_forced(taken, export, tmp_path, old, new, says):
    raw = git(taken.path, "cat-file", "commit", taken.lineage.resolve("2", "r")) + "\n"
    assert old in raw
    text = raw.replace(old, new, 1).encode()
    commit = git(taken.path, "hash-object", "-w", "-t", "commit", "--stdin", text=text)
    git(taken.path, "update-ref", "refs/heads/x", commit)
    said, _ = export(commit, code=1)
    assert says in said and "damaged" in said
    fork = fork_of(tmp_path / "fork", FILES)
    am(fork, export(commit, "--force")[1])
    assert b"return 2" in (fork / "pkg/cute/k.py").read_bytes()


def test_a_lineage_without_anything_to_take(tmp_path):
    words = ("export", "best", "-o", tmp_path / "p", "--lineage")
    assert "no lineage at" in avo(*words, tmp_path / "none.git", code=1).stderr
    empty = Lineage.create(tmp_path / "empty.git")
    assert "has no run yet" in avo(*words, empty.path, code=1).stderr
    fresh = begin(tmp_path / "fresh.git", FILES)
    assert "where run r starts" in avo(*words, fresh.path, code=1).stderr
    assert not (tmp_path / "p").exists()


def test_the_lineage_is_only_read(taken, export):
    taken.lineage.repo.pack()
    before = snapshot(taken.path)
    export("best", "--squash", "--relative", "a/b", name="1")
    export("best", "--format", "files", name="2")
    export("best", "--format", "bundle", name="3")
    assert snapshot(taken.path) == before
