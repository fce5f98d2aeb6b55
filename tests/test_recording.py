"""What a measured attempt's commit says, read with plain git and through the command line."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from avo_cute.lineage import AttemptDraft
from avo_cute.operators import Proposal
from avo_cute.plan import init, seed_of
from avo_cute.recording import Origin, body, subject, trailers
from avo_cute.records import Estimate, Interval, Measured, Status, Verdict
from avo_cute.task import find_task

from .conftest import bench_for

GAINS = {"softmax-1k": Interval(1.03, 1.02, 1.04), "softmax-4k": Interval(1.01, 1.0, 1.02)}
MEASURED = Measured(
    level="commit",
    device="Simulated GPU",
    seconds={"softmax-1k": 1e-4, "softmax-4k": 4e-4},
    cold={"softmax-1k": 1.1e-4, "softmax-4k": 4.2e-4},
    flops={"softmax-1k": 2e9, "softmax-4k": 8e9},
    floor={"softmax-1k": 5e-5, "softmax-4k": 3e-4},
    gain=Interval(1.02, 1.015, 1.025),
    score=Interval(1.05, 1.045, 1.055),
    workloads={"incumbent": GAINS, "seed": GAINS},
    overall={"incumbent": Interval(1.02, 1.015, 1.025)},
    hidden=Interval(1.005, 1.0, 1.01),
    hidden_count=4,
    margin=0.003,
    rounds=60,
    voids={"SM clocks apart": 2},
    findings=120,
    worst=0.71,
    worst_what="relative error of out",
    unsupported=("odd-7: unsupported by the seed",),
    facts={"device": "Simulated GPU", "driver": "580.1"},
    busy=0.9,
    wall_s=61.0,
    raw="[]",
)
VERDICT = Verdict(
    Status.ACCEPTED,
    "+2.00% against the high-water mark",
    score=1.05,
    gain=1.02,
    kind="measured",
    artifact="a" * 64,
    estimates=(Estimate("softmax-1k", 100.0, "global", {}), Estimate("softmax-4k", 400.0, "x", {})),
    sandbox="bwrap+seccomp; measure: bwrap+seccomp",
    toolchain="dsl 1; ffi 2",
    measured=MEASURED,
)
EXPECTED = {
    "Status": "accepted",
    "Score": "1.050000",
    "Score-interval": "1.045000 1.055000",
    "Score-kind": "measured",
    "Gain": "1.020000 1.015000 1.025000",
    "Level": "commit",
    "Device": "Simulated GPU",
    "Gains": "1.03000 1.01000",
    "Tflops": "20.0 20.0",
    "Latency-us": "100.0 400.0",
    "Hidden": "1.005000 4",
    "Cycles": "100 400",
    "Workloads": "two",
    "Toolchain": "dsl 1; ffi 2; driver 580.1",
    "Sandbox": "bwrap+seccomp; measure: bwrap+seccomp",
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Two workloads; nothing is built on it."""
    one = bench_for("softmax", "h200", "softmax-1k", tmp_path_factory.mktemp("cache"))
    two = (*one.workloads, *find_task("softmax").select("softmax-4k"))
    return replace(one, workloads=two)


@pytest.fixture(scope="module")
def lineage(bench, tmp_path_factory):
    """A lineage with one accepted attempt and one that was screened out, as `run` records them."""
    task = find_task("softmax")
    path = tmp_path_factory.mktemp("recording") / "lineage.git"
    lineage = init(path, task, seed_of(task))
    seed = lineage.seed("softmax")
    facts = {"Task": "softmax", "Target": "h200", "Workloads": "two"}
    lineage.start_run("r", seed, facts)
    screened = replace(MEASURED, level="screening", seconds={"softmax-1k": 1e-4}, hidden=None)
    lost = replace(VERDICT, status=Status.REJECTED, reason="screened: slower", measured=screened)
    parent = seed
    for number, verdict in enumerate((VERDICT, lost), 1):
        origin = Origin("r", number, 1, "search", "two", f"{parent[:10]} before")
        proposal = Proposal("Use wider loads", "Fewer instructions.\n\nStatus: forged", {})
        draft = AttemptDraft(
            run="r",
            number=number,
            tree=lineage.tree(seed),
            parent=parent,
            status=verdict.status,
            subject=subject(bench, proposal),
            body=body(proposal, verdict, origin),
            trailers=trailers(bench, verdict, origin),
        )
        parent = lineage.record(draft).commit
    return lineage


@pytest.fixture(scope="module")
def avo(lineage):
    """avo("show", "1") -> what the installed command prints."""

    def run(*words):
        command = [str(Path(sys.executable).with_name("avo-cute")), *words]
        command += ["--lineage", str(lineage.path)]
        env = {**os.environ, "NO_COLOR": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        return done.stdout

    return run


def test_plain_git_reads_every_trailer_of_a_measurement(lineage):
    head = lineage.head("r")
    for key, value in EXPECTED.items():
        form = f"--format=%(trailers:key={key},valueonly,separator=%x7C)"
        command = ["git", "--git-dir", str(lineage.path), "log", "-1", form, head]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        assert said == value, key


def test_the_command_line_says_the_same(avo):
    shown = json.loads(avo("show", "1", "--json"))
    listed = json.loads(avo("attempts", "--json"))
    for told in (shown, listed[0]):
        for key, value in EXPECTED.items():
            if key not in ("Score", "Gain"):
                assert told[key.lower().replace("-", "_")] == value, key
        assert told["score"] == 1.05 and told["gain"] == 1.02
    text = avo("show", "1")
    assert "Gain: 1.020000 1.015000 1.025000" in text
    assert "+2.00%" in avo("log") and "1.0500" in avo("attempts")


def test_a_value_that_is_not_there_has_no_trailer(lineage):
    told = lineage.attempts("r")[1].trailers
    assert told["Level"] == "screening"
    assert not {"Tflops", "Latency-us", "Hidden"} & told.keys(), "of two workloads one was timed"
    assert "Gains" in told


def test_the_body_tells_what_was_measured(lineage):
    body_ = lineage.attempts("r")[0].body
    assert "Measured on Simulated GPU (commit level, 60 rounds):" in body_
    assert "20.0 TFLOPS   50% of the limit" in body_ and "+3.00% [+2.00%, +4.00%]" in body_
    assert "4 hidden workloads +0.50%" in body_
    assert "120 comparisons with fp64, the worst at 0.71 of its bound" in body_
    assert "2 rounds void: SM clocks apart" in body_


def test_what_an_operator_writes_is_no_trailer(lineage):
    told = lineage.attempts("r")[0]
    assert told.status is Status.ACCEPTED and told.trailers["Status"] == "accepted"


def test_the_raw_samples_are_not_in_the_message(lineage):
    assert all("raw" not in a.body for a in lineage.attempts("r"))
