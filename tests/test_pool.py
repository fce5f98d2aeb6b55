"""Pools of threads that wait for children: Ctrl-C ends them, real processes and real signals."""

import os
import signal
import sys
import threading
import time
from concurrent.futures import wait
from dataclasses import replace

import pytest

from avo_cute import measured, sandbox
from avo_cute.cli.run import building
from avo_cute.errors import Stopped
from avo_cute.sandbox import Pool
from avo_cute.score import evaluate, standing_of

from .conftest import KERNEL, kernel_source, write_candidate
from .simulated_rig import SimulatedRig

AT_ONCE_S = 2.0


@pytest.fixture(autouse=True)
def handler():
    """Python's own, whatever the tests are started from."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def press():
    """press(*pauses) sends this process Ctrl-C after each; press.at is when the first was."""

    class Press:
        at = 0.0

        def __call__(self, *pauses):
            threading.Thread(target=self._send, args=pauses).start()

        def _send(self, *pauses):
            for pause in pauses:
                time.sleep(pause)
                self.at = self.at or time.monotonic()
                os.kill(os.getpid(), signal.SIGINT)

    return Press()


def child(seconds):
    argv = [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({seconds}); print('done')"]
    return sandbox.run(argv).stdout


def ended(futures):
    """How each one ended: "cancelled", the error's class, or what it printed."""
    errors = [None if f.cancelled() else f.exception() for f in futures]
    return [
        "cancelled" if f.cancelled() else type(e).__name__ if e else f.result()
        for f, e in zip(futures, errors, strict=True)
    ]


def stubborn():
    """Starts a child, whatever became of the one before."""
    for _ in range(4):
        with pytest.raises(Stopped):
            child(60)


def test_ctrl_c_ends_children_at_once_and_begins_no_more(press):
    press(1.0)
    with pytest.raises(KeyboardInterrupt), Pool(4, "test") as pool:
        futures = [pool.submit(child, 60) for _ in range(12)]
        futures[0].result()
    assert time.monotonic() - press.at < AT_ONCE_S
    assert ended(futures) == ["Stopped"] * 4 + ["cancelled"] * 8


def test_ctrl_c_ends_a_thread_that_starts_one_child_after_the_other(press):
    press(0.7)
    with pytest.raises(KeyboardInterrupt), Pool(1, "test") as pool:
        pool.submit(stubborn).result()
    assert time.monotonic() - press.at < AT_ONCE_S


def test_another_failure_lets_the_others_end():
    with pytest.raises(ValueError, match="one of them"), Pool(2, "test") as pool:
        futures = [pool.submit(child, 0.5), pool.submit(child, 0.5)]
        raise ValueError("one of them")
    assert ended(futures) == ["done\n", "done\n"]


def test_ctrl_c_while_the_others_end_means_now(press):
    press(0.7)
    with pytest.raises(KeyboardInterrupt), Pool(2, "test") as pool:
        futures = [pool.submit(child, 60)]
        raise ValueError("one of them")
    assert time.monotonic() - press.at < AT_ONCE_S
    assert ended(futures) == ["Stopped"]


def test_an_impatient_user_leaves_no_child_behind(press):
    """A third Ctrl-C breaks the waiting, not the killing."""
    press(0.7, 0.1)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Pool(2, "test") as pool:
        futures = [pool.submit(stubborn) for _ in range(2)]
        time.sleep(5)
    assert time.monotonic() - began < 1.0, "not even the rest of the killing was waited for"
    assert not any(f.done() for f in futures)
    assert wait(futures, timeout=AT_ONCE_S).not_done == set()
    assert ended(futures) == [None, None]


def test_a_command_that_fails_waits_for_no_build():
    began = time.monotonic()
    with pytest.raises(ValueError, match="the machine"), building(2) as executor:
        results = executor.map(child, [60] * 6)
        time.sleep(0.5)
        raise ValueError("the machine")
    assert time.monotonic() - began < 0.5 + AT_ONCE_S
    with pytest.raises(Stopped):
        list(results)


def test_ctrl_c_while_measuring_waits_for_no_build(
    softmax_bench, softmax_baseline, tmp_path, monkeypatch, press
):
    """The hidden workloads are being built meanwhile."""
    monkeypatch.setattr(measured, "build_more", lambda trial, seed: child(60))
    rig = SimulatedRig(gain=1.03)

    def during(request):
        if request.effort.families == "all":
            press(0.7)
            time.sleep(5)

    rig.during = during
    bench = replace(softmax_bench, rig=rig)
    baseline = evaluate(write_candidate(tmp_path / "baseline", {}), bench, None)
    text = kernel_source().replace('"rows_per_cta": 1', '"rows_per_cta": 2')
    source = write_candidate(tmp_path / "candidate", {KERNEL: text})
    with pytest.raises(KeyboardInterrupt):
        evaluate(source, bench, standing_of(baseline, baseline), lambda tree, folder: None)
    assert time.monotonic() - press.at < AT_ONCE_S
