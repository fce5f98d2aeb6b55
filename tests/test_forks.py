"""What a version does in someone's fork: said beforehand, and then done with plain git.

The forks of FlashAttention-4 are its released wheels, as repositories of their own.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from avo_cute.plan import seed_of
from avo_cute.records import Status
from avo_cute.repo import FILE, Entry
from avo_cute.repo.scratch import Fork, scratch
from avo_cute.task import find_task

from .conftest import KERNEL, kernel_source
from .taking import avo, begin, files_of, fork_of, git, snapshot

NARROW, WIDE = '"threads_per_row": 128', '"threads_per_row": 512'
STORES = '_STORE = {"back"'
PUBLIC = ["softmax-1k", "softmax-2k", "softmax-4k", "softmax-8k", "softmax-16k"]


def edited(*changes, source=None):
    text = source or kernel_source()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text.encode()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return {"AVO_CUTE_CACHE": str(tmp_path_factory.mktemp("forks-cache"))}


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """Attempts 1 (narrow rows) and 2 (wide rows) accepted, 3 equal: it uses COL_MULTIPLE anew."""
    path = tmp_path_factory.mktemp("forks") / "lineage.git"
    taken = begin(path, dict(seed_of(find_task("softmax")).files))
    narrow, wide = (NARROW, NARROW.replace("128", "64")), (WIDE, WIDE.replace("512", "256"))
    taken.record({KERNEL: edited(narrow)}, subject="[CuTe,Softmax,Sm100] Take 64 threads")
    taken.record({KERNEL: edited(narrow, wide)}, subject="[CuTe,Softmax,Sm100] Take 256 threads")
    more = (STORES, f"_PIECES = (COL_MULTIPLE,)\n{STORES}")
    taken.record({KERNEL: edited(narrow, wide, more)}, Status.EQUAL, subject="[CuTe] Add a name")
    return taken


@pytest.fixture
def seed(taken):
    return files_of(taken.lineage, taken.lineage.seed("softmax"))


@pytest.fixture
def check(taken, cache):
    """check(fork, rev, *options) -> the answer as JSON, and what stderr said."""

    def run(fork, rev, *options, code=0):
        words = ("check-fork", fork, rev, "--lineage", taken.path, "--json", *options)
        done = avo(*words, code=code, **cache)
        return json.loads(done.stdout)

    return run


def refused(taken, cache, fork, rev="1", *options):
    """The one line of a refusal; nothing is said on stdout."""
    words = ("check-fork", fork, rev, "--lineage", taken.path, *options)
    done = avo(*words, code=1, **cache)
    assert done.stdout == ""
    return done.stderr.splitlines()[-1]


def picked(taken, fork, rev, code=0):
    """`git cherry-pick` in the fork itself, and the files that are left in conflict."""
    git(fork, "fetch", "-q", taken.path, "lineage/r", "refs/attempts/r/*:refs/attempts/r/*")
    git(fork, "cherry-pick", "-x", taken.lineage.resolve(rev, "r"), code=code)
    return git(fork, "diff", "--name-only", "--diff-filter=U").split()


def test_a_fork_that_equals_the_seed(taken, seed, check, tmp_path):
    fork = fork_of(tmp_path / "fork", {**seed, "setup.py": b"", "docs/x.md": b"x\n"})
    before = snapshot(fork), snapshot(taken.path)
    answer = check(fork, "1")
    assert (snapshot(fork), snapshot(taken.path)) == before
    assert answer["good"] and answer["applies"] and answer["builds"] and not answer["dirty"]
    assert answer["changed"] == [KERNEL] and answer["conflicts"] == []
    assert answer["same_objects"] == dict.fromkeys(PUBLIC, True)
    assert answer["head"] == git(fork, "rev-parse", "HEAD") and answer["target"] == "b200"
    assert picked(taken, fork, "1") == []
    assert git(fork, "rev-parse", f"HEAD:{KERNEL}") == git(
        taken.path, "rev-parse", f"lineage/r~1:{KERNEL}"
    )
    assert f"(cherry picked from commit {answer['commit']})" in git(fork, "log", "-1")
    again = check(fork, "1")
    assert again["good"] and again["changed"] == []


def test_what_it_prints(taken, seed, cache, tmp_path):
    fork = fork_of(tmp_path / "fork", seed)
    (fork / KERNEL).write_bytes(b"unfinished")
    said = avo("check-fork", fork, "1", "--lineage", taken.path, **cache).stdout
    assert "its uncommitted changes left out" in said
    assert f"git cherry-pick: applies; changes {KERNEL}" in said
    assert "the lineage's objects, byte for byte, for all 5 workloads" in said


def test_a_second_step_alone_is_not_the_lineages_version_and_squashed_it_is(seed, check, tmp_path):
    fork = fork_of(tmp_path / "fork", seed)
    alone = check(fork, "2")
    assert alone["good"] and alone["rests_on_earlier_steps"]
    assert [w for w, same in alone["same_objects"].items() if not same] == PUBLIC[:3]
    assert all(check(fork, "2", "--squash")["same_objects"].values())


def test_a_fork_of_its_own_mind_elsewhere_has_other_objects_there(seed, check, tmp_path):
    own = edited((WIDE, WIDE.replace("512", "1024")))
    fork = fork_of(tmp_path / "fork", {**seed, KERNEL: own})
    answer = check(fork, "1")
    assert answer["good"]
    assert [w for w, same in answer["same_objects"].items() if not same] == sorted(PUBLIC[3:])


def test_conflicts_are_named_with_their_places(taken, seed, check, tmp_path):
    line = kernel_source().splitlines().index(f"        {NARROW},") + 1
    own = b"# ours\n# and ours\n" + edited((NARROW, NARROW.replace("128", "32")))
    fork = fork_of(tmp_path / "fork", {**seed, KERNEL: own})
    before = snapshot(fork)
    answer = check(fork, "1", code=1)
    assert snapshot(fork) == before
    (conflict,) = answer["conflicts"]
    assert conflict["path"] == KERNEL and conflict["places"] == [[line + 2, line + 2]]
    assert not answer["applies"] and not answer["builds"] and answer["same_objects"] == {}
    assert picked(taken, fork, "1", code=1) == [KERNEL]


def test_several_conflicts_of_one_file(taken, seed, cache, tmp_path):
    own = edited((NARROW, NARROW.replace("128", "32")), (WIDE, WIDE.replace("512", "1024")))
    fork = fork_of(tmp_path / "fork", {**seed, KERNEL: own})
    words = ("check-fork", fork, "2", "--squash", "--lineage", taken.path)
    done = avo(*words, code=1, **cache)
    lines = [n for n, line in enumerate(own.decode().splitlines(), 1) if 'threads_per_row"' in line]
    assert f"{KERNEL}:{lines[0]}, {lines[1]}  both changed these lines" in done.stdout
    assert done.stderr.splitlines()[-1] == f"avo-cute: 2 does not apply to {fork}"


def test_a_deleted_file_is_a_conflict_and_a_renamed_one_is_followed(taken, seed, check, tmp_path):
    gone = fork_of(tmp_path / "gone", {p: d for p, d in seed.items() if p != KERNEL})
    (conflict,) = check(gone, "1", code=1)["conflicts"]
    assert conflict == {"path": KERNEL, "places": [], "why": "the fork does not have it any more"}
    name = "row_softmax/kernel.py"
    files = {p: d for p, d in seed.items() if p != KERNEL} | {
        name: seed[KERNEL],
        "row_softmax/__init__.py": b"from .kernel import row_softmax\n",
    }
    renamed = fork_of(tmp_path / "renamed", files)
    answer = check(renamed, "1", code=1)  # the task imports the kernel by its name
    assert answer["applies"] and answer["changed"] == [name]
    assert answer["status"] == "build-failed" and answer["fork_builds"] is False
    assert picked(taken, renamed, "1") == []
    assert b'"threads_per_row": 64' in (renamed / name).read_bytes()


@pytest.mark.parametrize(("comma", "applies"), [("false", True), ("true", False)])
def test_a_formatted_fork_is_asked_and_not_guessed(taken, seed, check, tmp_path, comma, applies):
    """Formatted as most do, the place of the change is the same; with short dicts it is not."""
    ugly = kernel_source().replace("operator\n", "operator\n\n\n\nX = ( 'a','b' )\n", 1)
    path = tmp_path / "k.py"
    path.write_text(ugly)
    ruff = Path(sys.executable).with_name("ruff")
    option = f"format.skip-magic-trailing-comma={comma}"
    words = [ruff, "format", "-q", "--isolated", "--config", option, "--line-length", "320", path]
    subprocess.run(words, check=True)
    assert path.read_text() != kernel_source()
    fork = fork_of(tmp_path / "fork", {**seed, KERNEL: path.read_bytes()})
    answer = check(fork, "1", code=0 if applies else 1)
    assert answer["applies"] is applies
    left = picked(taken, fork, "1", code=0 if applies else 1)
    assert left == [c["path"] for c in answer["conflicts"]]


def test_a_result_that_does_not_build_is_told_apart_from_a_fork_that_does_not(
    taken, seed, check, cache, tmp_path
):
    own = seed[KERNEL].replace(b"COL_MULTIPLE", b"MULTIPLE")
    renames = fork_of(tmp_path / "renames", {**seed, KERNEL: own})
    answer = check(renames, "3", code=1)
    assert answer["applies"] and not answer["builds"] and answer["fork_builds"] is True
    assert "COL_MULTIPLE" in answer["reason"]
    assert "does not build in" in refused_with_answer(taken, cache, renames, "3")
    broken = fork_of(tmp_path / "broken", {**seed, KERNEL: seed[KERNEL] + b"def broken(:\n"})
    answer = check(broken, "1", code=1)
    assert answer["applies"] and answer["fork_builds"] is False
    assert "SyntaxError" in answer["reason"]


def refused_with_answer(taken, cache, fork, rev):
    done = avo("check-fork", fork, rev, "--lineage", taken.path, code=1, **cache)
    assert "the fork as it is builds" in done.stdout
    return done.stderr.splitlines()[-1]


# The folder elsewhere.


def test_a_moved_folder(taken, seed, check, cache, tmp_path):
    files = {p.replace("row_softmax/", "python/sg/fa/"): d for p, d in seed.items()}
    fork = fork_of(tmp_path / "fork", files)
    said = refused(taken, cache, fork)
    assert "none of the lineage's files in row_softmax" in said and "--directory" in said
    answer = check(fork, "1", "--directory", "python/sg/fa")
    assert answer["how"] == "am" and answer["good"]
    assert answer["changed"] == ["python/sg/fa/softmax.py"]
    assert all(answer["same_objects"].values())
    assert "spelling" in refused(taken, cache, fork, "1", "--directory", "python/sg/fb")
    patch = tmp_path / "p"
    words = ("--relative", "python/sg/fa", "-o", patch, "--lineage", taken.path)
    avo("export", "1", *words)
    git(fork, "am", "-q", "-3", "--keep-non-patch", patch)
    assert git(fork, "rev-parse", "HEAD:python/sg/fa/softmax.py") == git(
        taken.path, "rev-parse", f"lineage/r~1:{KERNEL}"
    )


@pytest.mark.parametrize("history", ["with the original", "without"])
def test_a_moved_folder_with_conflicts_has_places_too(taken, seed, check, tmp_path, history):
    """With the original in its history `git am -3` merges; without, the lines must be found."""
    own = b"# ours\n# ours too\n" + edited((NARROW, NARROW.replace("128", "32")))
    line = own.decode().splitlines().index(f"        {NARROW.replace('128', '32')},") + 1
    moved = {p.replace("row_softmax/", "a [b]/fa/"): d for p, d in seed.items()}
    fork = tmp_path / "fork"
    if history == "with the original":
        fork_of(fork, moved)
        (fork / "a [b]/fa/softmax.py").write_bytes(own)
        git(fork, "commit", "-q", "-a", "-m", "ours")
    else:
        fork_of(fork, {**moved, "a [b]/fa/softmax.py": own})
    options = ("--directory", "a [b]/fa", "--module", "fa")
    (conflict,) = check(fork, "1", *options, code=1)["conflicts"]
    assert conflict["path"] == "a [b]/fa/softmax.py"
    ((first, last),) = conflict["places"]
    assert first == last == line if history == "with the original" else abs(first - line) < 8
    patch = tmp_path / "p"
    words = ("--relative", *options[1:], "-o", patch, "--lineage", taken.path)
    avo("export", "1", *words)
    git(fork, "am", "-q", "-3", "--keep-non-patch", patch, code=None)
    left = git(fork, "diff", "--name-only", "--diff-filter=U")
    assert (left == conflict["path"]) is (history == "with the original")
    assert (fork / ".git" / "rebase-apply").is_dir()  # it stopped


# Forks of every kind.


def test_bare_linked_and_submodule_forks(seed, check, tmp_path):
    fork = fork_of(tmp_path / "fork", seed)
    git(tmp_path, "clone", "-q", "--bare", fork, "bare.git")
    assert check(tmp_path / "bare.git", "1")["good"]
    git(fork, "worktree", "add", "-q", tmp_path / "linked")
    assert check(tmp_path / "linked", "1")["good"]
    git(tmp_path, "clone", "-q", "--shared", fork, "shared")
    assert check(tmp_path / "shared", "1")["good"]
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{fork}", "shallow")
    assert check(tmp_path / "shallow", "1")["good"]


def test_a_fork_is_read_at_its_head(seed, check, tmp_path):
    fork = fork_of(tmp_path / "fork", seed)
    (fork / KERNEL).write_bytes(edited((NARROW, NARROW.replace("128", "32"))))
    (fork / "untracked").write_text("x")
    before = snapshot(fork)
    answer = check(fork, "1")
    assert answer["dirty"] and answer["applies"] and snapshot(fork) == before
    git(fork, "checkout", "-q", ".")
    assert not check(fork, "1")["dirty"]
    git(fork, "switch", "-q", "--detach", "HEAD")
    assert check(fork, "1")["good"]


def test_links_and_submodules_beside_the_kernel_do_not_matter(seed, check, tmp_path):
    fork = fork_of(tmp_path / "fork", seed)
    (fork / "row_softmax" / "latest.py").symlink_to("softmax.py")
    (fork / "away").symlink_to("/nowhere")
    other = fork_of(tmp_path / "other", {"a": b"1"})
    git(fork, "-c", "protocol.file.allow=always", "submodule", "add", "-q", other, "csrc/cutlass")
    git(fork, "add", "-A")
    git(fork, "commit", "-q", "-m", "more")
    answer = check(fork, "1")
    assert answer["good"] and all(answer["same_objects"].values())


def test_nothing_that_a_fork_configures_is_run(seed, check, tmp_path):
    fork = fork_of(tmp_path / "fork", {**seed, ".gitattributes": b"*.py filter=f diff=d merge=m\n"})
    mark = tmp_path / "ran"
    script = f"touch {mark}; cat"
    for key in ("core.fsmonitor", "filter.f.smudge", "merge.m.driver", "diff.d.textconv"):
        git(fork, "config", key, script)
    for hook in ("pre-commit", "post-checkout", "post-commit", "reference-transaction"):
        path = fork / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {mark}\n")
        path.chmod(0o755)
    assert check(fork, "1")["good"]
    assert not mark.exists()


def test_of_a_large_fork_only_what_conflicts_is_written_out(seed, tmp_path):
    when = 1_700_000_000
    many = {f"csrc/{n:03d}/x.cu": bytes(1000) for n in range(300)}
    fork = fork_of(tmp_path / "fork", {**seed, **many, "a.py": b"1\n"})
    (fork / "a.py").write_bytes(b"2\n")
    git(fork, "commit", "-q", "-a", "-m", "two")
    two, tree = git(fork, "rev-parse", "HEAD", "HEAD~1^{tree}").split()
    with scratch(Fork.at(fork).objects) as room:
        work = room.path.parent / "work"
        assert room.cherry_pick(two, room.commit(tree, (), "one", when)).changed == ("a.py",)
        assert len([p for p in work.rglob("*") if p.is_file()]) <= 1
        (three,) = room.write_blobs([b"3\n"])
        other = room.write_tree({"a.py": Entry(FILE, three)}, tree)
        (conflict,) = room.cherry_pick(two, room.commit(other, (), "three", when)).conflicts
        assert conflict.path == "a.py" and conflict.places == ((1, 1),)
        assert [p.name for p in work.rglob("*") if p.is_file()] == ["a.py"]


@pytest.mark.parametrize(
    "kind", ["absent", "file", "folder", "inside", "unborn", "stranger", "256"]
)
def test_what_is_no_fork_gets_one_clear_line(taken, seed, cache, tmp_path, kind):
    path = tmp_path / "fork"
    if kind == "file":
        path.write_text("x")
    elif kind == "folder":
        path.mkdir()
    elif kind == "inside":
        path = fork_of(path, seed) / "row_softmax"
    elif kind == "unborn":
        path.mkdir()
        git(path, "init", "-q")
    elif kind == "stranger":
        fork_of(path, {"README": b"hello\n"})
    elif kind == "256":
        path.mkdir()
        git(path, "init", "-q", "--object-format=sha256")
    says = {
        "absent": "does not exist",
        "file": "is no git repository",
        "folder": "is no git repository",
        "inside": "top folder of your fork",
        "unborn": "has no commit yet",
        "stranger": "none of the lineage's files in row_softmax",
        "256": "SHA-256",
    }[kind]
    assert says in refused(taken, cache, path)


@pytest.mark.parametrize(
    ("rev", "options", "says"),
    [
        ("seed/softmax", (), "is a seed"),
        ("77", (), "no revision '77'"),
        ("1", ("--run", "nope"), "no run 'nope'"),
        ("1", ("--directory", "../x"), "not a folder inside a fork"),
    ],
)
def test_a_version_that_is_none(taken, seed, cache, tmp_path, rev, options, says):
    assert says in refused(taken, cache, fork_of(tmp_path / "fork", seed), rev, *options)


def test_module_needs_a_directory(taken, tmp_path):
    words = ("check-fork", tmp_path, "1", "--module", "x", "--lineage", taken.path)
    assert "--directory" in avo(*words, code=2).stderr


# FlashAttention-4, as released.

FA4 = "flash_attn/cute/flash_fwd_sm100.py"


@pytest.fixture(scope="module")
def fa4(tmp_path_factory):
    """A lineage in which a search had something accepted, and its own cache."""
    folder = tmp_path_factory.mktemp("fa4")
    cache = {"AVO_CUTE_CACHE": str(folder / "cache")}
    path = folder / "lineage.git"
    words = ("--operator", "search", "--target", "b200", "--attempts", "2", "--run", "r")
    avo("evolve", *words, "--devices", "none", "--lineage", path, **cache)
    best = json.loads(avo("best", "--json", "--lineage", path).stdout)
    assert best["status"] == "accepted", best
    return path, cache, best


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """released("4.0.0b35") -> the files of that wheel; skips where it cannot be had."""
    folder = tmp_path_factory.mktemp("wheels")

    def fetch(version):
        name = f"flash-attn-4=={version}"
        words = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, name]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{name} did not arrive within two minutes")
        if done.returncode:
            pytest.skip(f"{name} cannot be had: {(done.stderr.splitlines() or ['?'])[-1]}")
        (wheel,) = folder.glob(f"*{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith(".py") and ".dist-info" not in n]
            return {n: archive.read(n) for n in names}

    return fetch


@pytest.fixture(scope="module")
def fa4_files():
    return dict(seed_of(find_task("fa4")).files)


def ask(fa4, fork, *options, code=0):
    path, cache, _ = fa4
    words = ("check-fork", fork, "best", "--lineage", path, "--json", *options)
    return json.loads(avo(*words, code=code, **cache).stdout)


@pytest.mark.slow
def test_fa4_is_picked_into_a_fork_and_gives_the_lineages_objects(fa4, fa4_files, tmp_path):
    path, _, best = fa4
    fork = fork_of(tmp_path / "fork", {**fa4_files, "setup.py": b""})
    answer = ask(fa4, fork)
    assert answer["good"] and len(answer["same_objects"]) == 8
    assert all(answer["same_objects"].values())
    git(fork, "fetch", "-q", path, "lineage/r")
    git(fork, "cherry-pick", "-x", "FETCH_HEAD")
    assert git(fork, "log", "-1", "--format=%s") == best["subject"]
    assert f"(cherry picked from commit {best['commit']})" in git(fork, "log", "-1")
    after = ask(fa4, fork)  # builds what was really picked
    assert after["changed"] == [] and all(after["same_objects"].values())
    assert git(fork, "rev-parse", f"HEAD:{FA4}") == git(path, "rev-parse", f"lineage/r:{FA4}")


@pytest.mark.slow
def test_fa4_s_patch_is_applied_to_a_fork_with_its_score(fa4, fa4_files, tmp_path):
    path, _, best = fa4
    fork = fork_of(tmp_path / "fork", {**fa4_files, FA4: b"# ours\n" + fa4_files[FA4]})
    command = avo("export", "best", "-o", tmp_path / "p", "--lineage", path).stdout
    subprocess.run(command.splitlines()[-1], shell=True, cwd=fork, check=True, capture_output=True)
    form = "--format=%s%n%(trailers:key=Score,valueonly)%(trailers:key=Artifact,valueonly)"
    shown = git(fork, "log", "-1", form).splitlines()
    assert shown == [best["subject"], f"{best['score']:.6f}", best["artifact"]]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.0.0b35", "4.0.0b34", "4.0.0b30", "4.0.0b20", "4.0.0b10"])
def test_fa4_in_forks_of_older_releases_is_what_git_does_there(fa4, released, tmp_path, version):
    path, _, best = fa4
    files = released(version)
    fork = fork_of(tmp_path / "fork", files)
    before = snapshot(fork)
    words = ("check-fork", fork, "best", "--lineage", path, "--json")
    done = subprocess.run(
        [Path(sys.executable).with_name("avo-cute"), *words],
        env=os.environ | fa4[1], capture_output=True, text=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert done.returncode == (0 if answer["good"] else 1)
    assert snapshot(fork) == before
    git(fork, "fetch", "-q", path, "lineage/r")
    git(fork, "cherry-pick", best["commit"], code=0 if answer["applies"] else 1)
    left = git(fork, "diff", "--name-only", "--diff-filter=U").split()
    assert left == [c["path"] for c in answer["conflicts"]]
    if answer["applies"]:
        assert answer["changed"] == git(fork, "show", "--format=", "--name-only").split()
        return
    ours = files[FA4].decode().splitlines()
    for first, last in answer["conflicts"][0]["places"]:
        assert "ex2_emu_freq" in " ".join(ours[first - 1 : last])


@pytest.mark.slow
def test_fa4_formatted_anew_conflicts_as_git_says(fa4, fa4_files, tmp_path):
    path, _, best = fa4
    file = tmp_path / "k.py"
    file.write_bytes(fa4_files[FA4])
    ruff = Path(sys.executable).with_name("ruff")
    subprocess.run([ruff, "format", "-q", "--isolated", file], check=True)
    assert file.read_bytes() != fa4_files[FA4]
    fork = fork_of(tmp_path / "fork", {**fa4_files, FA4: file.read_bytes()})
    answer = ask(fa4, fork, code=1)
    assert [c["path"] for c in answer["conflicts"]] == [FA4]
    git(fork, "fetch", "-q", path, "lineage/r")
    git(fork, "cherry-pick", best["commit"], code=1)
    assert git(fork, "diff", "--name-only", "--diff-filter=U") == FA4


@pytest.mark.slow
def test_fa4_where_a_project_keeps_its_own_copy(fa4, fa4_files, tmp_path):
    """Moved and renamed as inference engines do, by a replacement in every import."""
    path, cache, _ = fa4
    to = "vllm/vllm_flash_attn/cute"
    files = {
        name.replace("flash_attn/cute/", f"{to}/"): data.replace(
            b"from flash_attn.cute", b"from vllm.vllm_flash_attn.cute"
        ).replace(b"import flash_attn.cute", b"import vllm.vllm_flash_attn.cute")
        for name, data in fa4_files.items()
    }
    fork = fork_of(tmp_path / "fork", {**files, "vllm/__init__.py": b""})
    answer = ask(fa4, fork, "--directory", to)
    assert answer["good"] and all(answer["same_objects"].values())
    words = ("export", "best", "--relative", to, "-o", tmp_path / "p", "--lineage", path)
    avo(*words, **cache)
    git(fork, "am", "-q", "-3", "--keep-non-patch", tmp_path / "p")
    assert git(fork, "show", "--format=", "--name-only") == f"{to}/flash_fwd_sm100.py"
