"""`verify`, `--devices` and `--profile` as commands, on a machine without the target's GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from avo_cute.gpu import find_gpus
from avo_cute.lineage import AttemptDraft
from avo_cute.plan import init, seed_of
from avo_cute.records import Status
from avo_cute.task import find_task

FACTS = {"Task": "softmax", "Target": "b200", "Workloads": "softmax-2k"}
no_gpu = pytest.mark.skipif(bool(find_gpus()), reason="this machine has a GPU")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify-command")
    task = find_task("softmax")
    lineage = init(folder / "lineage.git", task, seed_of(task))
    seed = lineage.seed("softmax")
    lineage.start_run("r", seed, FACTS)
    forged = FACTS | {"Artifact": "0" * 64, "Score-kind": "static"}
    tree = lineage.tree(seed)
    lineage.record(AttemptDraft("r", tree, seed, Status.EQUAL, "Forged", "", forged))
    return folder


@pytest.fixture
def avo(home):
    """avo("verify", …, code=1) -> the finished process."""

    def run(*words, code=0):
        command = [str(Path(sys.executable).with_name("avo-cute")), *words]
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("AVO_CUTE_", "GIT_"))}
        env = {**keep, "AVO_CUTE_CACHE": str(home / "cache"), "NO_COLOR": "1"}
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return done

    return run


def refused(done) -> str:
    """The one line that says why."""
    said = [line for line in done.stderr.splitlines() if not line.startswith("…")]
    assert len(said) == 1 and said[0].startswith("avo-cute: "), said
    return said[0]


def test_a_seed_holds_and_says_that_nothing_was_measured(avo):
    words = ("seed/softmax", "--target", "b200", "--workloads", "softmax-2k", "--devices", "none")
    told = json.loads(avo("verify", *words, "--json").stdout)
    assert told["holds"] is True and told["artifact_equal"] is True
    assert told["measured_now"] is False and told["gain_interval"] is None
    assert any("nothing was measured" in line for line in told["remarks"])
    shown = json.loads(avo("show", "seed/softmax", "--json").stdout)
    assert "Holds: yes" in shown["note"]
    assert "Verified later:" in avo("show", "seed/softmax").stdout


def test_other_bytes_are_refused_with_one_line(avo):
    done = avo("verify", "1", code=1)
    assert "1 does not hold: the rebuilt objects are not the recorded ones" in refused(done)
    assert "other objects" in done.stdout and "the record does not hold" in done.stdout
    told = json.loads(avo("verify", "1", "--json", code=1).stdout)
    assert told["holds"] is False and told["artifact_equal"] is False
    note = json.loads(avo("show", "1", "--json").stdout)["note"]
    assert note.count("Holds: no: ") == 2, "every verification is kept"


@no_gpu
@pytest.mark.parametrize("command", ["evolve", "evaluate", "verify"])
def test_a_gpu_that_is_not_there_is_refused(avo, command):
    words = () if command == "evolve" else ("seed/softmax",)
    line = refused(avo(command, *words, "--target", "b200", "--devices", "0", code=1))
    assert "--devices 0: this machine has no GPU" in line


@pytest.mark.parametrize("devices", [",", " "])
@pytest.mark.parametrize("command", ["evolve", "evaluate", "verify"])
def test_a_list_of_no_gpus_is_refused_before_anything_is_made(avo, tmp_path, command, devices):
    words = () if command == "evolve" else ("seed/softmax",)
    place = tmp_path / "new.git"
    line = refused(avo(command, *words, "--lineage", str(place), "--devices", devices, code=1))
    assert f"--devices {devices!r} names no GPU" in line and not place.exists()


def test_none_estimates(avo):
    told = json.loads(avo("evaluate", "seed/softmax", "--devices", "none", "--json").stdout)
    assert told["score_kind"] == "static" and "measured" not in told


@no_gpu
def test_a_profile_without_a_gpu_is_the_machine_code(avo):
    done = avo("evaluate", "seed/softmax", "--profile")
    assert "no counters: " in done.stdout and "LDG" in done.stdout
    told = json.loads(avo("evaluate", "seed/softmax", "--profile", "--json").stdout)
    assert 0 < len(told["profile"].encode()) <= 4096
