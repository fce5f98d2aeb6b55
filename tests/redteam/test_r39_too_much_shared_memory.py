"""R39: a launch that would fail quietly (too much shared memory) and look fast."""

from tests.conftest import KERNEL, kernel_source

from avo_cute.records import Status


def test_dynamic_shared_memory_above_the_target_is_refused(judge):
    text = kernel_source().replace(
        "            stream=stream,\n", "            smem=300_000,\n            stream=stream,\n", 1
    )
    assert text != kernel_source()
    verdict = judge({KERNEL: text})
    assert verdict.status is Status.AUDIT_FAILED, verdict
    assert "shared memory" in verdict.reason
    assert verdict.score is None
