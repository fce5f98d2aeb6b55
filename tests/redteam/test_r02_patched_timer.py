"""R02: timer classes patched from candidate Python. There is no timer in that process."""

from avo_cute.records import Status


def test_patched_clocks_change_nothing(attack):
    verdict = attack(
        "import time, statistics\n"
        "time.perf_counter = time.monotonic = time.time = lambda: 0.0\n"
        "time.perf_counter_ns = time.monotonic_ns = lambda: 0\n"
        "statistics.median = statistics.mean = lambda *_: 1e-9\n"
    )
    assert verdict.status is Status.NO_CHANGE
    assert verdict.score == 1.0
