"""R30: `os._exit(0)` before anything was built."""

import pytest

from avo_cute.records import Status


@pytest.mark.parametrize("when", ["", "import atexit\natexit.register(lambda: None)\n"])
def test_status_0_without_a_record_is_a_failed_build(attack, when):
    verdict = attack(f"{when}import os\nos._exit(0)")
    assert verdict.status is Status.BUILD_FAILED
    assert "before its record was complete" in verdict.reason
    assert verdict.score is None
