"""What the program says of itself, and how a shell completes it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from avo_cute import __version__
from avo_cute.build.toolchain import toolchain

AVO = str(Path(sys.executable).with_name("avo-cute"))


def test_the_version_names_what_candidates_are_built_with():
    done = subprocess.run([AVO, "--version"], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == f"avo-cute {__version__}"
    assert second.startswith(toolchain())


@pytest.mark.parametrize(("typed", "offered"), [("ev", "evolve"), ("doc", "doctor"), ("xx", None)])
def test_a_shell_completes_commands(typed, offered):
    env = dict(os.environ, COMP_WORDS=f"avo-cute {typed}", COMP_CWORD="1")
    env |= {"_AVO_CUTE_COMPLETE": "bash_complete"}
    done = subprocess.run([AVO], env=env, capture_output=True, text=True)
    found = [line.partition(",")[2] for line in done.stdout.splitlines() if line]
    assert (offered in found) if offered else not found
