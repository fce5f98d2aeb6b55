"""What compute-sanitizer's log is read as, and what follows; the tool is a script, run for real."""

import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest

from avo_cute import sandbox, sanitize
from avo_cute.bench import Side
from avo_cute.errors import Stopped
from avo_cute.measure.process import Setting
from avo_cute.records import Workload
from avo_cute.sanitize import parse

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
BROKEN = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 16 bytes
=========     at kernel_cutlass_kernel+0x1f0
========= ERROR SUMMARY: 12 errors
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at k+0x10 and Read access at k+0x20
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
NO_RACE = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed\n"


@pytest.mark.parametrize(
    ("text", "errors", "first"),
    [
        (CLEAN, 0, ""),
        (NO_RACE, 0, ""),
        (BROKEN, 12, "Invalid __global__ write of size 16 bytes"),
        (RACE, 1, "Error: Race reported between Write access at k+0x10 and Read access at k+0x20"),
        ("", None, ""),
        ("========= COMPUTE-SANITIZER\n========= Target application terminated\n", None, ""),
    ],
)
def test_a_log(text, errors, first):
    assert parse(text) == (errors, first)


# The word in a library's file says what the tool makes of it; "once" is a tool that dies first.
TOOL = """#!{python}
import json, pathlib, sys, time
asked = json.loads(pathlib.Path(sys.argv[-1], "request.json").read_text())
library = pathlib.Path(asked["library"])
word, log = library.read_text(), pathlib.Path(sys.argv[sys.argv.index("--log-file") + 1])
mark = library.with_name(library.name + sys.argv[sys.argv.index("--tool") + 1])
if word == "once" and not mark.exists():
    mark.write_text("")
    sys.exit(1)
if word == "dies":
    sys.exit("the tool broke")
if word == "slow":
    time.sleep(60)
errors = 3 if word == "bad" else 0
log.write_text(f"========= Invalid read\\n========= ERROR SUMMARY: {{errors}} errors\\n")
"""


@pytest.fixture
def sanitized(tmp_path, monkeypatch):
    """sanitized(candidate, seed) -> what is found where the tool makes that of each."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(TOOL.format(python=sys.executable))
    tool.chmod(0o755)
    workload = Workload("small", "class", (), {})
    monkeypatch.setattr(sanitize, "cuda_tool", lambda name: str(tool))
    monkeypatch.setattr(sanitize, "chosen", lambda bench, objects: [workload])
    monkeypatch.setattr(sanitize, "_LIMITS", replace(sanitize._LIMITS, wall_s=3.0))

    @contextmanager
    def held():
        yield SimpleNamespace(name="0")

    rig = SimpleNamespace(
        link=lambda objects: {n: str(p) for n, p in objects.items()},
        held=held,
        setting=Setting("none"),
    )
    about = SimpleNamespace(directory=Path("/none"))
    bench = SimpleNamespace(rig=rig, task=about, target=SimpleNamespace(name="h200"))

    def run(candidate, seed):
        sides = []
        for name, word in (("candidate", candidate), ("seed", seed)):
            (tmp_path / name).write_text(word)
            sides.append(Side(name, {"small": tmp_path / name}))
        return sanitize.sanitize(*sides, bench)

    return run


@pytest.mark.parametrize(
    ("candidate", "seed", "failure"),
    [
        ("good", "good", ""),
        ("bad", "good", "memcheck finds 3 in small: Invalid read"),
        ("bad", "bad", ""),
        ("dies", "good", "memcheck does not get through small, on the seed it does"),
        ("slow", "good", "memcheck does not get through small, on the seed it does"),
        ("dies", "dies", ""),
        ("good", "dies", ""),
        ("once", "good", ""),
        ("bad", "once", "memcheck finds 3 in small: Invalid read"),
    ],
)
def test_the_seed_is_the_yardstick(sanitized, candidate, seed, failure):
    found = sanitized(candidate, seed)
    assert found.failure == failure
    assert len(found.told) == len(sanitize.TOOLS)
    dead = candidate in ("dies", "slow"), seed == "dies"
    assert found.told[0].count("did not get through") == sum(dead)


def test_every_object_of_a_class_is_looked_at(tmp_path):
    """A candidate may keep a kernel for long sequences that no small workload ever runs."""
    for name, data in (("a", b"1"), ("again", b"1"), ("b", b"2"), ("other", b"3")):
        (tmp_path / name).write_bytes(data)
    reference = SimpleNamespace(
        small=lambda params: params["n"] < 100, flops=lambda params: params["n"]
    )
    names = {"c1": ("a", 1), "c2": ("again", 2), "c3": ("a", 3), "long": ("b", 5000),
             "longer": ("b", 9000), "d1": ("other", 7), "unbuilt": ("", 1)}  # fmt: skip
    beside = [Workload(n, n[0], (), {"n": size}) for n, (_, size) in names.items()]
    bench = SimpleNamespace(beside=beside, task=SimpleNamespace(reference=reference))
    objects = {n: tmp_path / of for n, (of, _) in names.items() if of}
    found = [w.name for w in sanitize.chosen(bench, objects)]
    assert found == ["c2", "long", "d1"]


def test_a_tool_that_the_engine_ends_decides_nothing(sanitized):
    ending = Timer(1.0, sandbox.kill_all)
    ending.start()
    try:
        with pytest.raises(Stopped):
            sanitized("slow", "good")
    finally:
        ending.cancel()
