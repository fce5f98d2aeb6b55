"""The lineage: every attempt a commit, nothing lost, nothing forged, whatever happens to it."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from avo_cute import lineage as module
from avo_cute import transcripts
from avo_cute.errors import BadInput, Busy, Refused
from avo_cute.lineage import AttemptDraft, Lineage
from avo_cute.records import Status
from avo_cute.seed import Seed

README = Path(__file__).parent.parent / "lineage.git" / "README.md"
RUN = "t-b200-20261130"
FACTS = {"Task": "t", "Target": "b200", "Workloads": "all"}
SEED = Seed({"LICENSE": b"free\n", "pkg/k.py": b"x = 0\n"}, "tiny 1.0 abc", "Import tiny 1.0")


@pytest.fixture
def made(tmp_path):
    """A lineage with a seed and a run."""
    lineage = Lineage.create(tmp_path / "lineage.git")
    lineage.start_run(RUN, lineage.init_seed("t", SEED), FACTS)
    return lineage


def tree(lineage, text):
    (blob,) = lineage.repo.write_blobs([text.encode()])
    base = lineage.tree(lineage.seed("t"))
    return lineage.repo.write_tree({"pkg/k.py": module.Entry(module.FILE, blob)}, base)


def draft(lineage, text="x = 1\n", status=Status.REJECTED, **changes):
    facts = {"Score": "1.5", "Score-kind": "static"} | changes.pop("trailers", {})
    values = {
        "run": RUN, "tree": tree(lineage, text), "parent": lineage.head(RUN), "status": status,
        "subject": f"[CuTe] Try {text.strip()}", "body": "Because.", "trailers": facts,
    }  # fmt: skip
    return AttemptDraft(**(values | changes))


def git(lineage, *arguments, text=None):
    done = subprocess.run(
        ["git", "--git-dir", str(getattr(lineage, "path", lineage)), *arguments],
        input=text, capture_output=True, env=CLEAN,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


CLEAN = {
    **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
    **{f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def fsck(lineage):
    return git(lineage, "fsck", "--strict", "--no-dangling", "--no-progress")


# The ordinary course.


def test_a_run_from_seed_to_best(made):
    seed = made.seed("t")
    assert git(made, "symbolic-ref", "HEAD") == f"refs/heads/lineage/{RUN}"
    assert made.head(RUN) == made.seed_of(RUN) == seed
    made.record(draft(made, status=Status.NO_CHANGE, number=0, tree=made.tree(seed)))
    first = made.record(draft(made, "x = 1\n", Status.ACCEPTED, trailers={"Score": "1.2"}))
    second = made.record(draft(made, "x = 2\n", Status.INCORRECT, trailers={"Score": ""}))
    third = made.record(draft(made, "x = 3\n", Status.ACCEPTED, trailers={"Score": "1.1"}))
    assert (first.number, second.number, third.number) == (1, 2, 3)
    assert (first.parent, second.parent, third.parent) == (seed, first.commit, first.commit)
    assert made.head(RUN) == third.commit
    assert made.best(RUN).commit == made.resolve("best") == made.resolve("1") == first.commit
    assert made.repo.refs("refs/attempts").keys() == {
        f"refs/attempts/{RUN}/0000",
        f"refs/attempts/{RUN}/0002",
    }
    assert made.diff(seed, third.commit).endswith("-x = 0\n+x = 3\n")
    assert fsck(made) == ""


def test_what_is_recorded_is_what_is_read_after_reopening(made):
    recorded = [
        made.record(draft(made, f"x = {n}\n", status, trailers={"Gain": "1.1 1.0 1.2"}))
        for n, status in enumerate(Status)
    ]
    again = Lineage.open(made.path)
    assert again.attempts(RUN) == recorded
    assert again.attempts(RUN, {Status.EQUAL}) == [a for a in recorded if a.status == "equal"]
    assert [again.attempt(a.commit) for a in recorded] == recorded
    assert recorded[0].gain == 1.1
    assert again.next_number(RUN) == len(Status) + 1
    assert again.read(recorded[1].tree, "pkg/k.py") == b"x = 1\n"
    with pytest.raises(KeyError):
        again.read(recorded[1].tree, "none.py")
    assert again.subject(recorded[1].commit) == recorded[1].subject


def test_runs_latest_first_and_their_facts(made):
    best = made.record(draft(made, status=Status.ACCEPTED))
    made.start_run("second", best.commit, FACTS | {"Workloads": "gqa"})
    assert made.runs() == ["second", RUN]
    assert made.find_run() == "second"
    assert made.head("second") == best.commit
    assert made.attempts("second") == []
    assert made.next_number("second") == 1
    other = made.record(draft(made, "y\n", run="second", parent=made.head("second")))
    assert other.number == 1
    assert [a.commit for a in made.attempts(RUN)] == [best.commit]
    assert made.run_facts("second")["Workloads"] == "gqa"
    with pytest.raises(BadInput, match=f"no run 'x' .* second, {RUN}"):
        made.find_run("x")
    with pytest.raises(BadInput, match="exists already"):
        made.start_run("second", best.commit, FACTS)


@pytest.mark.parametrize("name", ["", "a b", "../x", "a..b", "-x", "a/b", "x.lock", "é", "x."])
def test_names_that_no_run_can_have(made, name):
    with pytest.raises(BadInput, match="cannot name a run"):
        made.start_run(name, made.seed("t"), FACTS)


def test_the_same_seed_again_is_harmless_and_another_refused(made):
    assert made.init_seed("t", SEED) == made.seed("t")
    with pytest.raises(BadInput, match="starts task t at other files"):
        made.init_seed("t", Seed({"a": b"b"}, "other", "x"))
    made.init_seed("u", Seed({"a": b"b"}, "other", "x"))
    assert made.tasks() == ["t", "u"]
    assert made.find_run() == RUN
    with pytest.raises(BadInput, match="no seed of task v"):
        made.seed("v")


def test_a_lineage_may_be_made_around_its_readme_only(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "README.md").write_text("how to read this\n")
    assert Lineage.create(tmp_path / "a").runs() == []
    assert (tmp_path / "a" / "README.md").exists()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("x")
    for place, said in (("a", "already"), ("b", r"holds 'thesis\.tex'")):
        with pytest.raises(BadInput, match=said):
            Lineage.create(tmp_path / place)
    with pytest.raises(BadInput, match="no lineage at"):
        Lineage.open(tmp_path / "b")
    with pytest.raises(BadInput, match="no run yet"):
        Lineage.open(tmp_path / "a").find_run()


@pytest.mark.parametrize("rev", ["nope", "99", "-1", "best~1", "--all", "", "HEAD:pkg"])
def test_revisions_that_are_none(made, rev):
    with pytest.raises(BadInput, match="no revision"):
        made.resolve(rev)


def test_best_of_nothing(made):
    made.record(draft(made))
    with pytest.raises(BadInput, match="no accepted attempt"):
        made.resolve("best")


def test_a_measured_score_is_never_compared_with_a_static_one(made):
    for kind, score in (("static", "9"), ("measured", "1.1"), ("measured", "1.2"), ("static", "8")):
        facts = {"Score": score, "Score-kind": kind}
        made.record(draft(made, f"x = {score}\n", Status.ACCEPTED, trailers=facts))
    assert made.best(RUN).score == 1.2


def test_transcripts_milestones_and_notes(made):
    best = made.record(draft(made, status=Status.ACCEPTED)).commit
    first = transcripts.keep(made.repo, RUN, 1, {"transcript.jsonl": b"{}\n"}, {})
    more = {"transcript.jsonl": b"{}{}\n", "turns/0001.json": b"[]"}
    second = transcripts.keep(made.repo, RUN, 1, more, {"Cost-usd": "1.5"})
    third = transcripts.keep(made.repo, RUN, 1, {"notes.md": b"* it is slow\n"}, {"Cost-usd": "2"})
    assert made.repo.read_commit(second).parents == (first,)
    assert git(made, "show", f"refs/sessions/{RUN}/0001:transcript.jsonl") == "{}{}"
    transcripts.keep(made.repo, RUN, 12, {"notes.md": b"* later\n"}, {})
    one, twelve = transcripts.sessions(made.repo, RUN)
    assert (one.number, one.commit, one.trailers["Cost-usd"]) == (1, third, "2")
    assert transcripts.read(made.repo, one, "notes.md") == "* it is slow\n"
    assert transcripts.read(made.repo, twelve, "turns/0001.json") == ""
    assert transcripts.last_session(made.repo, RUN) == 12
    assert transcripts.sessions(made.repo, "other") == []
    name = f"milestone/{RUN}/plus-1-percent"
    made.tag_milestone(name, best, "+1.00% over the seed")
    made.tag_milestone(name, made.seed("t"), "later")
    assert made.resolve(name) == best
    assert git(made, "tag", "-l", "-n1", name).endswith("+1.00% over the seed")
    assert made.read_note(best) is None
    made.add_note(best, "Score: 1.01\n")
    made.add_note(best, "Score: 1.02\n")
    assert made.read_note(best) == "Score: 1.01\n\nScore: 1.02\n"
    assert "Score: 1.02" in git(made, "log", "-1", "--notes=bench", best)


def test_commits_are_cherry_picked_and_applied_in_a_fork(made, tmp_path):
    """git.md's promise: upstream's paths and blobs, so a fork takes a kernel as it is."""
    best = made.record(draft(made, status=Status.ACCEPTED, body="---\ndiff --git a/x b/x\nFrom me"))
    patch = git(made, "format-patch", "--stdout", f"{best.commit}~..{best.commit}")
    for way in ("pick", "am"):
        fork = tmp_path / way
        for path, data in SEED.files.items():
            (fork / path).parent.mkdir(parents=True, exist_ok=True)
            (fork / path).write_bytes(data)
        (fork / "setup.py").write_text("")
        at = ["-C", str(fork)]
        run = lambda *a, **k: subprocess.run(["git", *at, *a], check=True, env=CLEAN, **k)  # noqa: E731, B023
        run("init", "-q")
        run("add", "-A")
        run("commit", "-qm", "fork")
        if way == "pick":
            run("fetch", "-q", str(made.path), f"lineage/{RUN}")
            run("cherry-pick", "-x", best.commit, capture_output=True)
        else:
            run("am", "-q", "-3", "--keep-non-patch", input=patch.encode() + b"\n")
        assert (fork / "pkg/k.py").read_text() == "x = 1\n"
        form = "--format=%s%n%(trailers:key=Status,valueonly)"
        shown = run("log", "-1", form, capture_output=True).stdout.decode()
        assert shown.split("\n")[:2] == [best.subject, "accepted"]


def test_every_command_of_the_readme_works(made, tmp_path):
    made.record(draft(made, status=Status.NO_CHANGE, number=0, tree=made.tree(made.seed("t"))))
    made.record(draft(made, "x = 1\n", Status.INCORRECT))
    best = made.record(draft(made, "x = 2\n", Status.ACCEPTED)).commit
    transcripts.keep(made.repo, RUN, 1, {"transcript.jsonl": b"{}\n"}, {})
    made.add_note(best, "again: 1.5\n")
    blocks = README.read_text().split("```sh\n")[1:]
    blocks = [block.partition("```")[0].replace("/tmp/", f"{tmp_path}/") for block in blocks]
    *inside, in_fork = blocks
    said = shell("\n".join(inside), made.path)
    for fact in (
        "Target: b200", "1.5 [CuTe] Try x = 2", "1 incorrect [CuTe] Try x = 1", "+x = 2",
        f"1.5 {best[:7]}", "pkg/k.py", f"refs/sessions/{RUN}/0001", "again: 1.5",
    ):  # fmt: skip
        assert fact in said
    shell(f"git clone -q -b seed/t {made.path} fork", tmp_path)
    shell(in_fork.replace("/path/to/lineage.git", str(made.path)), tmp_path / "fork")
    assert (tmp_path / "fork/pkg/k.py").read_text() == "x = 2\n"
    assert "x = 2" in (tmp_path / "kernel.patch").read_text()
    bundle = shell(f"git bundle list-heads {tmp_path}/lineage.bundle", made.path)
    assert f"refs/attempts/{RUN}/0001" in bundle
    assert Lineage.open(tmp_path / "copy.git").attempts(RUN) == made.attempts(RUN)


def shell(script, cwd):
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=cwd, env=CLEAN, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_mirror_on_another_machine_goes_on(made, tmp_path):
    made.record(draft(made, status=Status.ACCEPTED))
    made.record(draft(made, "x = 2\n"))
    git(made, "clone", "-q", "--mirror", str(made.path), str(tmp_path / "copy.git"))
    copy = Lineage.open(tmp_path / "copy.git")
    with copy.lock():
        assert copy.attempts(RUN) == made.attempts(RUN)
        assert copy.run_facts(copy.find_run()) == made.run_facts(RUN)
        assert copy.record(draft(copy, "x = 3\n")).number == 3


# Somebody else is here, or was.


def test_a_moved_branch_is_refused_and_nothing_is_recorded(made):
    late = draft(made, "x = 9\n", Status.ACCEPTED)
    other = Lineage.open(made.path).record(draft(made, "x = 1\n", Status.ACCEPTED))
    before = made.repo.refs("refs")
    with pytest.raises(Refused, match="meanwhile"):
        made.record(late)
    assert made.repo.refs("refs") == before
    assert made.head(RUN) == other.commit


def test_a_taken_number_is_refused(made):
    made.next_number(RUN)
    Lineage.open(made.path).record(draft(made))
    with pytest.raises(Refused, match="meanwhile"):
        made.record(draft(made, "x = 2\n"))


HOLD = """
import sys, time
from pathlib import Path
from avo_cute.lineage import Lineage
with Lineage.open(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(made):
    command = [sys.executable, "-c", HOLD, str(made.path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_the_second_holder_is_told_who_the_first_is(made, holder):
    with (
        pytest.raises(Busy, match=rf"in use by process {holder.pid} .*--lineage PATH"),
        made.lock(),
    ):
        pass
    made.attempts(RUN)  # reading needs no lock
    holder.kill()
    holder.wait()
    with made.lock(), made.lock():
        made.record(draft(made))
    with made.lock():
        pass


def test_stale_git_locks_are_removed_by_the_lock_holder_only(made, monkeypatch):
    stale = [
        made.path / f"refs/heads/lineage/{RUN}.lock",
        made.path / "HEAD.lock",
        made.path / "packed-refs.lock",
    ]
    for path in stale:
        path.touch()
    made.attempts(RUN)
    Lineage.open(made.path)
    assert all(path.exists() for path in stale)
    with made.lock():
        assert not any(path.exists() for path in stale)
        made.record(draft(made, status=Status.ACCEPTED))


# A killed process.

KILLED = """
import os, signal, sys
from pathlib import Path
from avo_cute.lineage import *
from avo_cute.records import Status
lineage = Lineage.open(Path(sys.argv[1]))
run, tree, status, at = sys.argv[2], sys.argv[3], Status(sys.argv[4]), int(sys.argv[5])
parent, calls = lineage.head(run), 0
import avo_cute.repo.process as process
code = process.Process.call.__code__
def trace(frame, event, argument):
    global calls
    if event in ("call", "return") and frame.f_code is code:
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
import avo_cute.lineage
avo_cute.lineage.PACK_EVERY = 1
draft = AttemptDraft(run, tree, parent, status, "killed", "", {"Score": "2"})
with lineage.lock():
    sys.setprofile(trace)
    lineage.record(draft)
    sys.setprofile(None)
print("done", calls)
"""


@pytest.mark.parametrize("status", [Status.ACCEPTED, Status.REJECTED])
def test_kill_9_at_every_step_of_record(made, status):
    """Killed before and after each git process; at most the attempt in hand is lost."""
    earlier = [made.record(draft(made)), made.record(draft(made, "x = 2\n", Status.ACCEPTED))]
    wanted = tree(made, "x = 7\n")
    for step in range(1, 200):
        command = [sys.executable, "-c", KILLED, str(made.path), RUN, wanted, status, str(step)]
        done = subprocess.run(command, capture_output=True, text=True)
        again = Lineage.open(made.path)
        assert fsck(made) == ""
        found = again.attempts(RUN)
        assert found[: len(earlier)] == earlier
        assert len(found) <= len(earlier) + 1
        assert all(a.subject == "killed" and a.tree == wanted for a in found[len(earlier) :])
        assert again.head(RUN) == [a for a in found if a.status == "accepted"][-1].commit
        earlier = found
        if done.returncode == 0:
            assert int(done.stdout.split()[1]) < step
            break
        assert done.returncode == -9, done.stderr
    assert step > 8  # commit, ref and two of packing, each seen from both sides
    assert Lineage.open(made.path).record(draft(made)).number == len(earlier) + 1


# Damage.


def rewrite(lineage, commit, old, new):
    """A commit with its text edited, on the same parent."""
    raw = subprocess.run(
        ["git", "--git-dir", lineage.path, "cat-file", "commit", commit], capture_output=True
    ).stdout
    edited = raw.replace(old.encode(), new.encode())
    assert edited != raw
    return git(lineage, "hash-object", "-w", "-t", "commit", "--stdin", text=edited)


@pytest.mark.parametrize(
    ("old", "new", "number", "status"),
    [
        ("Status: incorrect", "Status: rejected\nStatus: equal", 1, Status.EQUAL),
        ("Status: incorrect\n", "", 1, Status.INFRA_ERROR),
        ("Status: incorrect", "Status: splendid", 1, Status.INFRA_ERROR),
        ("Attempt: 1\n", "", 1, Status.INCORRECT),
        ("Attempt: 1", "Attempt: one", 1, Status.INCORRECT),
        ("Attempt: 1", "Attempt: 00³", 1, Status.INCORRECT),
        ("Run: t-b200-20261130\n", "", 1, Status.INCORRECT),
        ("Score: 1.5", "Score: nan", 1, Status.INCORRECT),
        ("Score: 1.5", "Score: -1e999", 1, Status.INCORRECT),
        ("\n\nRun:", "\nRun:", 1, Status.INFRA_ERROR),
        ("Score-kind", "New-in-version-9: yes\nScore-kind", 1, Status.INCORRECT),
    ],
)
def test_damaged_trailers_are_tolerated(made, old, new, number, status):
    ref = f"refs/attempts/{RUN}/0001"
    whole = made.record(draft(made, status=Status.INCORRECT)).commit
    git(made, "update-ref", ref, rewrite(made, whole, old, new))
    made.record(draft(made, "x = 2\n", Status.ACCEPTED))
    broken, after = Lineage.open(made.path).attempts(RUN)
    assert (broken.number, broken.status, broken.run) == (number, status, RUN)
    assert broken.score in (1.5, None)
    assert after.number == 2
    assert Lineage.open(made.path).next_number(RUN) == 3
    assert made.best(RUN).number == 2


def test_a_number_given_twice_is_listed_twice_and_never_again(made):
    one = made.record(draft(made)).commit
    git(made, "update-ref", f"refs/attempts/{RUN}/0002", one)
    twin = rewrite(made, one, "Because", "Twin")
    git(made, "update-ref", f"refs/attempts/{RUN}/0003", twin)
    again = Lineage.open(made.path)
    assert [a.number for a in again.attempts(RUN)] == [1, 1]
    assert again.next_number(RUN) == 4


def test_a_branch_with_commits_of_others_is_named_and_still_listed(made):
    kept = made.record(draft(made, status=Status.ACCEPTED)).commit
    alien = git(made, "commit-tree", "-p", kept, made.tree(kept), text=b"my own work\n")
    git(made, "update-ref", f"refs/heads/lineage/{RUN}", alien)
    again = Lineage.open(made.path)
    assert {(a.commit, a.status) for a in again.attempts(RUN)} == {
        (kept, Status.ACCEPTED),
        (alien, Status.ACCEPTED),
    }
    with pytest.raises(BadInput, match=rf"lineage/{RUN} was rewritten: {alien[:10]}.*--from"):
        again.head(RUN)
    git(made, "update-ref", f"refs/heads/lineage/{RUN}", kept)
    assert again.head(RUN) == kept


def test_a_rebased_branch_is_named(made):
    old = made.record(draft(made, status=Status.ACCEPTED)).commit
    other = git(made, "commit-tree", made.tree(old), text=b"another base\n")
    moved = rewrite(made, old, made.seed("t"), other)
    git(made, "update-ref", f"refs/heads/lineage/{RUN}", moved)
    with pytest.raises(BadInput, match="was rewritten"):
        Lineage.open(made.path).head(RUN)


def test_a_lost_run_tag_is_made_up_for(made):
    facts = {"Task": "t", "Target": "b200", "Workloads": "all"}
    one = made.record(draft(made, status=Status.ACCEPTED, trailers=facts))
    git(made, "update-ref", "-d", f"refs/tags/run/{RUN}")
    again = Lineage.open(made.path)
    assert again.run_facts(RUN) == facts
    assert again.attempts(RUN) == [one]
    assert again.head(RUN) == one.commit
    git(made, "update-ref", f"refs/heads/lineage/{RUN}", made.seed("t"))
    with pytest.raises(BadInput, match="does not say its Target, Task, Workloads"):
        again.run_facts(RUN)


def test_a_clock_that_jumps_back_does_not_date_a_commit_before_its_parent(made):
    future = int(time.time()) + 10**6
    seed = made.seed("t")
    ahead = made.repo.commit(made.tree(seed), [seed], "ahead", future)
    attempt = made.record(draft(made, parent=ahead))
    assert attempt.when == future


# A machine that fails.


def without_permission(folder, script, *arguments):
    """Run a script that may not write `folder`, root or not."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    command = [sys.executable, "-c", script, str(folder), *arguments]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    done = subprocess.run(command, capture_output=True, text=True)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return done


READ_ONLY = """
import sys
from pathlib import Path
from avo_cute.errors import BadInput
from avo_cute.lineage import *
from avo_cute.records import Status
lineage = Lineage.open(Path(sys.argv[1]))
run = lineage.find_run()
(attempt,) = lineage.attempts(run)
print(lineage.best(run).commit, lineage.resolve("1"))
draft = AttemptDraft(run, attempt.tree, attempt.commit, Status.EQUAL, "s", "", {})
for act in (lambda: lineage.record(draft), lambda: lineage.lock().__enter__()):
    try:
        act()
    except BadInput as error:
        print(error)
"""


def test_a_read_only_lineage_is_read_and_refuses_to_record(made):
    commit = made.record(draft(made, status=Status.ACCEPTED)).commit
    done = without_permission(made.path, READ_ONLY)
    first, *refusals = done.stdout.splitlines()
    assert first == f"{commit} {commit}", done.stderr
    assert len(refusals) == 2
    assert all("lineage.git cannot be written" in line for line in refusals)


FULL = """
import sys
from pathlib import Path
from avo_cute.errors import MachineFailed
from avo_cute.lineage import *
from avo_cute.records import Status
from avo_cute.seed import Seed
place = Path(sys.argv[1])
lineage = Lineage.create(place / "lineage.git")
seed = lineage.init_seed("t", Seed({"a.py": b"1"}, "u", "s"))
lineage.start_run("r", seed, {"Task": "t", "Target": "b200", "Workloads": "all"})
one = lineage.record(AttemptDraft("r", lineage.tree(seed), seed, Status.ACCEPTED, "s", "", {}))
filler = place / "filler"
with filler.open("wb", buffering=0) as file:
    for size in (1 << 16, 1):
        try:
            while True:
                file.write(bytes(size))
        except OSError:
            pass
draft = AttemptDraft("r", one.tree, one.commit, Status.ACCEPTED, "s", "", {})
try:
    lineage.record(draft)
except MachineFailed as error:
    print("failed:", error)
again = Lineage.open(lineage.path)
assert again.attempts("r") == [one] and again.head("r") == one.commit
filler.unlink()
two = again.record(draft)
assert Lineage.open(lineage.path).attempts("r") == [one, two]
print("went on")
"""


def test_a_full_disk_fails_the_machine_and_loses_nothing(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    inside = f'mount -t tmpfs -o size=1m none "$0" || exit 77; exec "{sys.executable}" -c "$1" "$0"'
    command = ["unshare", "-m", "sh", "-c", inside, str(place), FULL]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode in (1, 77) and ("mount" in done.stderr or "unshare" in done.stderr):
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    failed, went_on = done.stdout.splitlines() or [done.stderr, ""]
    assert failed.startswith("failed: ") and "the disk is full" in failed, done.stderr
    assert went_on == "went on"


# Size.


def import_attempts(lineage, count):
    """Make `count` attempts, every tenth accepted, the way ten thousand records would."""
    stream, parent = [], lineage.seed("t")
    for n in range(1, count + 1):
        accepted = n % 10 == 0
        ref = f"refs/heads/lineage/{RUN}" if accepted else f"refs/attempts/{RUN}/{n:04d}"
        score = 1 + n / count
        facts = {"Score": f"{score:.6f}", "Artifact": "a" * 64, "Toolchain": "dsl 4.8.1; cuda 13"}
        status = "accepted" if accepted else "rejected"
        lines = {"Run": RUN, "Task": "t", "Attempt": n, "Status": status, **facts}
        message = f"[CuTe] Try {n}\n\n{'Why. ' * 40}\n\n"
        message += "".join(f"{key}: {value}\n" for key, value in lines.items())
        stream.append(
            f"commit {ref}\nmark :{n}\ncommitter a <a> {1_796_000_000 + n} +0000\n"
            f"data {len(message)}\n{message}\nfrom {parent}\n"
        )
        parent = f":{n}" if accepted else parent
    quick = ("-c", "core.fsync=none", "-c", "core.logAllRefUpdates=false")
    git(lineage, *quick, "fast-import", "--quiet", text="".join(stream).encode())
    git(lineage, "pack-refs", "--all")


def test_ten_thousand_attempts(made, capsys):
    import_attempts(made, 10_000)
    started = time.perf_counter()
    found = made.attempts(RUN)
    took = time.perf_counter() - started
    assert [a.number for a in found] == list(range(1, 10_001))
    assert sum(a.status is Status.ACCEPTED for a in found) == 1000
    assert math.isclose(made.best(RUN).score, 2.0)
    assert made.next_number(RUN) == 10_001
    started = time.perf_counter()
    assert made.record(draft(made)).number == 10_001
    recorded = time.perf_counter() - started
    with capsys.disabled():
        said = f"10,000 listed in {took:.2f} s, one more recorded in {recorded:.3f} s"
        sys.stdout.write(f" [{said}] ")


def test_packing_happens_under_the_lock_only(made, monkeypatch):
    monkeypatch.setattr(module, "PACK_EVERY", 3)
    for n in range(4):
        made.record(draft(made, f"x = {n}\n"))
    packed = made.path / "packed-refs"
    assert not packed.exists()
    with made.lock():
        made.record(draft(made, "x = 5\n"))
    assert packed.read_text().count(f"refs/attempts/{RUN}/") == 5
    assert len(made.attempts(RUN)) == 5
