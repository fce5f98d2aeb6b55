"""What compute-sanitizer's log is read as."""

import pytest

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
