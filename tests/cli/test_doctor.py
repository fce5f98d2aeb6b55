"""`avo-cute doctor`: a line for each thing, true here, and a remedy for what is missing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from avo_cute.cli.doctor import check
from avo_cute.gpu import counters_open, cuda_tool, find_gpus

ADMIN = "Name:\tpython\nCapEff:\t000001ffffffffff\n"
CONTAINER = "Name:\tpython\nCapEff:\t00000000a80425fb\n"  # root as docker starts it
CLOSED = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n"
OPEN = "RmProfilingAdminOnly: 0\nOther: 1\n"


@pytest.fixture(scope="module")
def lines():
    return {line.name: line for line in check()}


def test_everything_that_measuring_needs_has_a_line(lines):
    wanted = ["GPU", "linker", "torch", "launcher", "profiler", "counters", "sanitizer"]
    assert [name for name in lines if name in wanted] == wanted


def test_whatever_is_missing_has_a_remedy(lines):
    for line in lines.values():
        assert line.says
        assert line.ok or line.remedy, line


def test_measuring_is_not_needed_for_builds(lines):
    needed = {line.name for line in lines.values() if line.needed}
    assert needed.isdisjoint({"GPU", "linker", "torch", "launcher", "profiler", "sanitizer"})
    assert {"git", "DSL", "nvdisasm", "disk"} <= needed


def test_the_linker_is_tried(lines):
    assert lines["linker"].ok == (shutil.which("cc", path="/usr/bin:/bin") is not None)


def test_the_gpu_line_agrees_with_the_driver(lines):
    gpus = find_gpus()
    assert lines["GPU"].ok == any(gpu.target for gpu in gpus)
    assert all(gpu.name in lines["GPU"].says for gpu in gpus)


@pytest.mark.gpu
@pytest.mark.skipif(not find_gpus(), reason="needs an NVIDIA GPU")
def test_with_a_gpu_torch_is_asked_whether_it_can_use_it(lines):
    import torch

    assert lines["torch"].ok == torch.cuda.is_available()
    assert str(torch.version.cuda) in lines["torch"].says


@pytest.mark.parametrize(
    ("parameters", "status", "may"),
    [
        (CLOSED, ADMIN, True),
        (CLOSED, CONTAINER, False),
        (OPEN, CONTAINER, True),
        ("", ADMIN, True),
        ("", CONTAINER, False),
        (CLOSED, "", False),
    ],
)
def test_who_may_read_counters(parameters, status, may):
    assert counters_open(parameters, status) is may


def test_a_tool_is_found_on_the_path(tmp_path, monkeypatch):
    program = tmp_path / "avo-cute-no-such-tool"
    assert cuda_tool(program.name) is None
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda_tool(program.name) == str(program)


def test_json_and_the_exit_code():
    command = [str(Path(sys.executable).with_name("avo-cute")), "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    listed = json.loads(done.stdout)
    assert done.returncode == (3 if any(x["needed"] and not x["ok"] for x in listed) else 0)
    assert len({entry["name"] for entry in listed}) == len(listed)


@pytest.mark.parametrize(
    ("found", "ok", "says"),
    [
        ({}, False, "no ANTHROPIC_API_KEY"),
        ({"ANTHROPIC_API_KEY": "k"}, True, "ANTHROPIC_API_KEY is set, not tried"),
        ({"ANTHROPIC_AUTH_TOKEN": "t"}, True, "ANTHROPIC_AUTH_TOKEN is set, not tried"),
        ({"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://x"}, True, ", at http://x"),
    ],
)
def test_the_key_is_named_and_never_shown(monkeypatch, found, ok, says):
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    line = next(line for line in check() if line.name == "key")
    assert line.ok is ok and says in line.says
    assert not line.needed and "ANTHROPIC_API_KEY" in line.remedy
