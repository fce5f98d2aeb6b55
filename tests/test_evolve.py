"""The whole loop on the row softmax: real builds, real commits, through the command line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from avo_cute.task import find_task

SCRIPT = Path(__file__).parent / "kill_at_step.py"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("evolve-cache")


@pytest.fixture(scope="module")
def environment(cache) -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("AVO_CUTE_", "GIT_"))}
    return {**keep, "AVO_CUTE_CACHE": str(cache), "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def avo(environment, tmp_path_factory):
    """avo("log", …, cwd=…) runs the installed command and returns the finished process."""
    home = tmp_path_factory.mktemp("evolve")

    def run(*words, cwd=home, code=0, **more):
        command = [str(Path(sys.executable).with_name("avo-cute")), *map(str, words)]
        done = subprocess.run(
            command, cwd=cwd, env=environment | more, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        if code:
            assert "Traceback" not in done.stderr
        return done

    run.home = home
    return run


def git(folder, *words) -> str:
    command = ["git", "--git-dir", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def evolved(avo):
    """A lineage after six attempts of the softmax, and what the command printed."""
    done = avo("evolve", "--task", "softmax", "--target", "b200", "--attempts", "6", "--run", "r1")
    return avo.home / "lineage.git", done


def test_the_end_shows_a_table_and_a_git_log_line_that_works(evolved, avo):
    _, done = evolved
    assert "6 attempts done" in done.stdout
    assert "Score-kind: static" in done.stdout
    command = next(line for line in done.stdout.splitlines() if "git --git-dir" in line)
    shown = subprocess.run(
        command, shell=True, cwd=avo.home, capture_output=True, text=True, check=True
    ).stdout
    accepted = json.loads(avo("log", "--json").stdout)
    assert len(shown.splitlines()) == len(accepted) + 1  # and the seed
    assert all(f"{a['score']:.6f}" in shown for a in accepted)
    assert "… judging the seed" in done.stderr  # progress without a terminal: plain lines


def test_every_attempt_is_a_commit_with_its_trailers(evolved, avo):
    lineage, _ = evolved
    attempts = json.loads(avo("attempts", "--json").stdout)
    assert [a["attempt"] for a in attempts] == list(range(7))
    assert attempts[0]["status"] == "no-change" and attempts[0]["score"] == 1.0
    for a in attempts:
        told = git(lineage, "log", "-1", "--format=%(trailers:only,unfold)", a["commit"])
        for key in (
            "Run: r1",
            "Task: softmax",
            f"Attempt: {a['attempt']}",
            "Target: b200",
            f"Status: {a['status']}",
            "Score-kind: static",
            "Sandbox: ",
            "Evaluator: ",
            "Toolchain: nvidia-cutlass-dsl",
        ):
            assert key in told or (key.startswith("Score") and a["score"] is None), (key, told)
        assert git(lineage, "log", "-1", "--format=%s", a["commit"]).startswith(
            "[CuTe,Softmax,Sm100]"
        )
    trees = [a["tree"] for a in attempts]
    assert len(set(trees)) == len(trees), "search never proposes what was tried"


def test_a_run_at_a_glance(evolved, avo):
    listed = json.loads(avo("attempts", "--run", "r1", "--json").stdout)
    shown = avo("attempts", "--run", "r1").stdout
    assert "r1 (softmax for b200, workloads " in shown and "\nended  " in shown
    assert "cost" not in shown, "no model was asked and no GPU used"
    for a in listed[1:]:
        line = shown.index(f"  {a['subject']}\n")
        assert shown[line:].splitlines()[1].strip(), "why it ended so"
    failed = avo("attempts", "--run", "r1", "--status", "equal", "--status", "rejected", "--json")
    wanted = [a["attempt"] for a in listed if a["status"] in ("equal", "rejected")]
    assert [a["attempt"] for a in json.loads(failed.stdout)] == wanted
    assert json.loads(avo("attempts", "--run", "r1", "--operator", "agent", "--json").stdout) == []
    assert len(json.loads(avo("attempts", "--run", "r1", "--last", "2", "--json").stdout)) == 2
    accepted = [a for a in listed if a["status"] == "accepted"]
    log = avo("log", "--run", "r1").stdout
    assert ("█" in log) == bool(accepted) and f"{len(accepted)} accepted" in log
    refused = avo("log", "--run", "r1", "--workload", "mha", code=1).stderr
    assert "no workload mha in this run: softmax-" in refused


def test_accepted_attempts_form_the_branch(evolved, avo):
    lineage, _ = evolved
    attempts = json.loads(avo("attempts", "--json").stdout)
    branch = git(lineage, "rev-list", "--reverse", "lineage/r1").split()
    accepted = [a["commit"] for a in attempts if a["status"] == "accepted"]
    assert branch == [git(lineage, "rev-parse", "seed/softmax").strip(), *accepted]
    best = max((a["score"] for a in attempts if a["status"] == "accepted"), default=1.0)
    if accepted:
        assert json.loads(avo("best", "--json").stdout)["score"] == best
    refs = git(lineage, "for-each-ref", "--format=%(refname)", "refs/attempts/r1").split()
    assert len(refs) == len(attempts) - len(accepted)


def test_resuming_goes_on_with_the_same_run(evolved, avo):
    before = json.loads(avo("attempts", "--json").stdout)
    avo("evolve", "--attempts", "1")
    after = json.loads(avo("attempts", "--json").stdout)
    assert after[: len(before)] == before
    assert len(after) == len(before) + 1
    assert after[-1]["run"] == "r1"


def test_a_new_run_starts_from_any_commit(evolved, avo):
    avo("evolve", "--from", "3", "--run", "r2", "--workloads", "wide", "--attempts", "1")
    attempts = json.loads(avo("attempts", "--run", "r2", "--json").stdout)
    third = json.loads(avo("show", "3", "--run", "r1", "--json").stdout)
    assert attempts[0]["tree"] == third["tree"]
    assert attempts[0]["workloads"] == "wide"
    assert len(attempts[0]["cycles"].split()) == 2


def test_evaluate_is_what_the_engine_does(evolved, avo):
    attempts = json.loads(avo("attempts", "--run", "r1", "--json").stdout)
    scored = next(a for a in attempts if a["score"] is not None and a["attempt"])
    seen = json.loads(avo("evaluate", scored["commit"], "--run", "r1", "--json").stdout)
    assert seen["score"] == pytest.approx(scored["score"], abs=1e-6)
    assert seen["artifact"] == scored["artifact"]
    assert all(e["parts"] for e in seen["estimates"])


def test_checkout_edit_record(evolved, avo):
    told = json.loads(avo("checkout", "best", "work", "--run", "r1", "--json").stdout)
    changed = json.loads(avo("diff", "best", "--run", "r1", "--json").stdout)
    assert changed["to"] == told["commit"] and told["run"] == "r1"
    kernel = avo.home / "work" / "row_softmax" / "softmax.py"
    kernel.write_text(kernel.read_text() + "\n# nothing\n")
    done = avo(
        "record", "work", "-m", "Add a comment\n\nIt cannot matter.", "--run", "r1", "--json"
    )
    assert json.loads(done.stdout)["status"] == "no-change"
    kernel.write_text("def broken(:\n")
    done = avo("record", "work", "-m", "Break it", "--run", "r1", "--json")
    told = json.loads(done.stdout)
    assert told["status"] == "build-failed" and told["operator"] == "manual"
    assert "SyntaxError" in told["body"]
    (avo.home / "work" / "LICENSE").write_text("mine now")
    done = avo("record", "work", "-m", "Edit outside", "--run", "r1", code=1)
    assert "LICENSE" in done.stderr and len(done.stderr.strip().splitlines()[-1]) < 300


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("evolve", "--attempts", "0"), 2, "--attempts"),
        (("evolve", "--no-such-option"), 2, "--no-such-option"),
        (("evolve", "--target", "b100", "--run", "x"), 1, "b200"),
        (("evolve", "--run", "r1", "--target", "h200"), 1, "r1"),
        (("evolve", "--run", "r1", "--from", "best"), 1, "--from"),
        (("evolve", "--task", "fa4", "--run", "x"), 1, "init --task fa4"),
        (("evolve", "--task", "nothing", "--run", "x"), 1, "softmax"),
        (("evolve", "--workloads", "tall", "--run", "x"), 1, "narrow"),
        (("evolve", "--run", "bad name", "--target", "h200"), 1, "bad name"),
        (("show", "999"), 1, "999"),
        (("show", "9" * 5000), 1, "99999"),
        (("show", "^HEAD"), 1, "^HEAD"),
        (("evolve", "--hours", "nan"), 2, "nan"),
        (("show", "no-such-rev"), 1, "no-such-rev"),
        (("show", "best", "--run", "nope"), 1, "nope"),
        (("checkout", "best", "."), 1, "not an empty folder"),
        (("evaluate", "no-such-rev"), 1, "no-such-rev"),
        (("record", "no-such-folder", "-m", "x"), 2, "no-such-folder"),
        (("log", "--lineage", "nowhere.git"), 1, "nowhere.git"),
        (("init", "--from", "no-such-fork"), 1, "no-such-fork"),
    ],
    ids=lambda v: " ".join(v)[:40] if isinstance(v, tuple) else None,
)
def test_bad_input_gets_one_line_and_the_right_code(evolved, avo, words, code, says):
    before = git(evolved[0], "for-each-ref")
    done = avo(*words, code=code)
    assert says in done.stderr
    if code == 1:
        errors = [line for line in done.stderr.splitlines() if not line.startswith("…")]
        assert len(errors) == 1 and errors[0].startswith("avo-cute: ")
    assert git(evolved[0], "for-each-ref") == before


def test_a_task_of_ones_own_is_evolved_by_its_path(avo, tmp_path):
    task = tmp_path / "somewhere" / "mine"
    shutil.copytree(find_task("softmax").directory, task)
    text = (task / "task.toml").read_text().replace('name = "softmax"', 'name = "my-softmax"', 1)
    (task / "task.toml").write_text(text)
    words = ("evolve", "--task", task, "--workloads", "softmax-1k", "--attempts", "1")
    avo(*words, cwd=tmp_path)
    avo(*words, cwd=tmp_path)
    attempts = json.loads(avo("attempts", "--json", cwd=tmp_path).stdout)
    assert [a["attempt"] for a in attempts] == [0, 1, 2]
    assert {a["task"] for a in attempts} == {"my-softmax"}
    done = avo("evolve", "--attempts", "1", cwd=tmp_path, code=1)
    assert "--task DIRECTORY" in done.stderr


def test_before_anything_is_accepted_best_is_where_the_run_starts(avo, tmp_path):
    avo("evolve", "--task", "softmax", "--workloads", "softmax-16k", "--attempts", "1",
        "--strategy", "random", "--seed", "3", cwd=tmp_path)  # fmt: skip
    best = json.loads(avo("best", "--json", cwd=tmp_path).stdout)
    assert best["attempt"] == 0 or best["status"] == "accepted"
    avo("checkout", "best", "work", cwd=tmp_path)
    assert (tmp_path / "work" / "row_softmax").is_dir()


def test_a_start_that_does_not_pass_leaves_no_run(evolved, avo):
    lineage, _ = evolved
    transcript = git(lineage, "for-each-ref", "--format=%(refname)", "refs/sessions").split()[0]
    before = git(lineage, "for-each-ref"), git(lineage, "symbolic-ref", "HEAD")
    avo("evolve", "--from", transcript, "--run", "broken", "--attempts", "1", code=1)
    assert (git(lineage, "for-each-ref"), git(lineage, "symbolic-ref", "HEAD")) == before


def test_a_project_of_ones_own_is_not_taken_over(avo, tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path / "project")], check=True)
    git_dir = tmp_path / "project" / ".git"
    before = (git_dir / "HEAD").read_text()
    done = avo("init", "--task", "softmax", "--lineage", git_dir, code=1)
    assert "working tree" in done.stderr
    assert (git_dir / "HEAD").read_text() == before
    assert not git(git_dir, "for-each-ref")


def test_a_file_that_is_no_lineage_is_refused(avo, tmp_path):
    (tmp_path / "lineage.git").write_text("not a repository")
    done = avo("log", cwd=tmp_path, code=1)
    assert "lineage.git" in done.stderr


def test_two_at_once_are_refused_cleanly(evolved, avo, environment):
    command = [
        str(Path(sys.executable).with_name("avo-cute")),
        "evolve",
        "--run",
        "r1",
        "--attempts",
        "1000",
    ]
    first = subprocess.Popen(
        command,
        cwd=avo.home,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        for line in first.stderr:
            if "evaluating" in line:
                break
        done = avo("evolve", "--run", "r1", "--attempts", "1", code=1)
        assert str(first.pid) in done.stderr
        first.send_signal(signal.SIGINT)  # once: finish the attempt in hand
        out, _ = first.communicate(timeout=120)
        assert first.returncode == 0
        assert "interrupted" in out
    finally:
        first.kill()
        first.wait()
    avo("evolve", "--run", "r1", "--attempts", "1")


def test_ctrl_c_twice_stops_now(evolved, avo, environment):
    attempts = json.loads(avo("attempts", "--run", "r1", "--json").stdout)
    command = [str(Path(sys.executable).with_name("avo-cute")), "evolve", "--run", "r1"]
    running = subprocess.Popen(
        command,
        cwd=avo.home,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        for line in running.stderr:
            if "… evaluating" in line:
                break
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=3)
        assert running.returncode in (0, 130)  # 0 when the attempt in hand was faster
        assert "Traceback" not in err
    finally:
        running.kill()
        running.wait()
    after = json.loads(avo("attempts", "--run", "r1", "--json").stdout)
    assert after[: len(attempts)] == attempts


def test_killed_at_any_step_it_resumes(avo, environment, tmp_path):
    """kill -9 at step boundaries: nothing recorded is lost, at most the attempt in hand is."""
    lineage = tmp_path / "lineage.git"
    avo(
        "evolve",
        "--task",
        "softmax",
        "--workloads",
        "softmax-1k",
        "--run",
        "k",
        "--attempts",
        "2",
        "--lineage",
        lineage,
    )
    command = [sys.executable, str(SCRIPT), str(lineage)]
    total = int(
        subprocess.run(
            [*command, "count"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
    )
    assert total > 20
    for step in range(1, total, max(1, total // 12)):
        before = json.loads(avo("attempts", "--lineage", lineage, "--json").stdout)
        killed = subprocess.run(
            [*command, str(step)], env=environment, capture_output=True, timeout=120
        )
        assert killed.returncode == -signal.SIGKILL, (step, killed)
        git(lineage, "fsck", "--strict", "--no-dangling")
        after = json.loads(avo("attempts", "--lineage", lineage, "--json").stdout)
        assert after[: len(before)] == before, step
        assert len(after) - len(before) in (0, 1), step
    avo("evolve", "--lineage", lineage, "--attempts", "1")
