"""R31: a candidate leaves a daemon behind that acts when nobody looks any more."""

import sys
import textwrap
import time

import pytest

from avo_cute import sandbox

DAEMON = """
    import os, signal, sys, time
    path = sys.argv[1]
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            os.closerange(0, 3)
            while True:
                with open(path, "a") as file: file.write("alive\\n")
                time.sleep(0.01)
        os._exit(0)
    while not os.path.exists(path): time.sleep(0.01)
    os._exit(0)
"""


@pytest.mark.parametrize("layer", ["bwrap", "landlock"])
def test_when_the_run_returns_the_daemon_has_written_its_last(layer, tmp_path):
    probe = next(p for p in sandbox.layers() if p.name == layer)
    if not probe.works:
        pytest.skip(f"{layer} does not work here: {probe.detail}")
    path = tmp_path / "alive"
    argv = [sys.executable, "-I", "-S", "-c", textwrap.dedent(DAEMON), str(path)]
    done = sandbox.run(argv, write=[tmp_path], layer=layer)
    written = path.read_text()  # at once: nothing may be running by now
    assert done.returncode == 0 and "alive" in written, done
    time.sleep(0.3)
    assert path.read_text() == written
