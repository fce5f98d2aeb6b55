"""R36: the network, or pip, from a build."""

import socket
import threading

from avo_cute.records import Status


def test_not_even_loopback_is_reached(attack):
    with socket.create_server(("127.0.0.1", 0)) as server:
        called = []

        def accept():
            try:
                called.append(server.accept())
            except OSError:
                pass

        threading.Thread(target=accept, daemon=True).start()
        port = server.getsockname()[1]
        verdict = attack(
            "import socket, subprocess, sys\n"
            "try:\n"
            f"    socket.create_connection(('127.0.0.1', {port}), timeout=2)\n"
            "except OSError: pass\n"
            "else: raise AssertionError('connected')\n"
            "try: done = subprocess.run([sys.executable, '-m', 'pip', 'download', 'six'], "
            "capture_output=True, timeout=20).returncode\n"
            "except (OSError, subprocess.TimeoutExpired): done = 1\n"
            "assert done != 0\n"
        )
    assert verdict.status is Status.NO_CHANGE, verdict.detail
    assert not called
