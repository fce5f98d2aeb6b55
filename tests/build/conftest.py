"""One child process compiles what the tests of this folder read."""

from runpy import run_path

import pytest

TINY = run_path(__file__.replace("conftest.py", "tiny_objects.py"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> dict[str, bytes]:
    """Objects by "ARCH:VARIANT"."""
    names = ["sm_90a:honest", "sm_100a:honest", "sm_100a:cluster", "sm_100a:two-kernels"]
    return TINY["compile_tiny"](tmp_path_factory.mktemp("tiny"), names)


@pytest.fixture(scope="session")
def honest(tiny) -> bytes:
    return tiny["sm_100a:honest"]


@pytest.fixture(scope="session")
def judge_object():
    """judge_object(data, arguments, limits, target) -> broken rules and their lines."""
    return TINY["judge_object"]
