"""Objects that try to deceive the audit; one child process compiles all of them."""

from pathlib import Path
from runpy import run_path

import pytest

TINY = run_path(str(Path(__file__).parents[1] / "build" / "tiny_objects.py"))
VARIANTS = (
    *("honest", "clock", "clock64", "globaltimer", "globaltimer-lo"),
    *("device-printf", "device-global", "host-call", "host-printf"),
    *("much-smem", "big-block", "pdl", "two-launches", "native-host"),
)


@pytest.fixture(scope="session")
def evil(tmp_path_factory) -> dict[str, bytes]:
    """Objects for sm_100a by variant; "honest" is the one to derive others from."""
    names = [f"sm_100a:{variant}" for variant in VARIANTS]
    objects = TINY["compile_tiny"](tmp_path_factory.mktemp("evil"), names)
    return {name.partition(":")[2]: data for name, data in objects.items()}


@pytest.fixture(scope="session")
def honest(evil) -> bytes:
    return evil["honest"]


@pytest.fixture(scope="session")
def judge_object():
    """judge_object(data, arguments, limits, target) -> broken rules and their lines."""
    return TINY["judge_object"]
