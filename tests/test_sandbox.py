"""The sandbox: the same promises from both layers, tried with real processes."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from avo_cute import sandbox
from avo_cute.errors import MachineFailed
from avo_cute.sandbox import Limits


@pytest.fixture(params=["bwrap", "landlock"])
def layer(request) -> str:
    probe = next(p for p in sandbox.layers() if p.name == request.param)
    if not probe.works:
        pytest.skip(f"{probe.name} does not work here: {probe.detail}")
    return request.param


@pytest.fixture
def confined(layer):
    """confined(code, **settings) runs Python code in the sandbox."""

    def run(code, **settings):
        argv = [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]
        return sandbox.run(argv, layer=layer, **settings)

    return run


def test_one_layer_works_on_this_machine():
    assert any(p.works for p in sandbox.layers()), sandbox.layers()
    assert sandbox.choose_layer() in ("bwrap", "landlock")
    assert all(p.detail for p in sandbox.layers())


def test_output_and_status_come_back(confined):
    done = confined("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    assert not done.timed_out
    assert 1 << 20 < done.max_rss_bytes < 1 << 30


def test_only_what_was_granted_can_be_read(confined, tmp_path):
    (tmp_path / "granted").mkdir()
    (tmp_path / "granted" / "a").write_text("seen")
    (tmp_path / "secret").write_text("not seen")
    done = confined(
        f"""
        import os
        print(open({str(tmp_path / "granted" / "a")!r}).read())
        for path in ({str(tmp_path / "secret")!r}, {str(Path(__file__))!r}, "/etc/shadow",
                     os.path.expanduser("~root/.bashrc")):
            try: print("LEAK", path, open(path).read()[:20])
            except OSError: pass
        """,
        read=[tmp_path / "granted"],
    )
    assert done.returncode == 0, done
    assert done.stdout == "seen\n"


def test_the_engines_environment_cannot_be_read(layer, tmp_path):
    """/proc shows other processes of the same user in the Landlock layer: not their environment."""
    code = (
        "import os\n"
        "for pid in range(1, os.getpid() + 500):\n"
        "    try: text = open(f'/proc/{pid}/environ').read()\n"
        "    except OSError: continue\n"
        "    assert 'sk-' + 'secret' not in text\n"
        "print('done')\n"
    )
    script = (
        "import sys; from avo_cute import sandbox\n"
        f"print(sandbox.run([sys.executable, '-I', '-S', '-c', {code!r}], layer={layer!r}))\n"
    )
    env = {**os.environ, "ANTHROPIC_API_KEY": "sk-secret"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert "done" in done.stdout and "AssertionError" not in done.stdout, done


def test_only_what_was_granted_can_be_written(confined, tmp_path):
    readable, writable = tmp_path / "r", tmp_path / "w"
    readable.mkdir(), writable.mkdir()
    (readable / "kept").write_text("kept")
    done = confined(
        f"""
        import os, sys
        open({str(writable / "new")!r}, "w").write("new")
        os.symlink({str(readable / "kept")!r}, {str(writable / "link")!r})
        for path in ({str(readable / "new")!r}, {str(readable / "kept")!r},
                     {str(writable / "link")!r}, sys.prefix + "/planted", "/usr/planted",
                     "/planted", {str(tmp_path / "outside")!r}):
            try:
                with open(path, "w") as f: f.write("x")
            except OSError: continue
            print("wrote", path)
        """,
        read=[readable],
        write=[writable],
    )
    assert done.returncode == 0, done
    # bwrap's /tmp is a private one: what was written there is nowhere
    assert done.stdout in ("", f"wrote {tmp_path / 'outside'}\n")
    assert (writable / "new").read_text() == "new"
    assert (readable / "kept").read_text() == "kept"
    assert not (tmp_path / "outside").exists()


def test_home_tmp_and_shm_are_private_and_gone_afterwards(confined):
    leave = """
        import os, tempfile
        open(os.path.expanduser("~/left"), "w").write("x")
        print(tempfile.gettempdir(), tempfile.NamedTemporaryFile(delete=False).name)
        try: open("/dev/shm/left-by-candidate", "w").write("x")
        except OSError: pass
    """
    first = confined(leave)
    assert first.returncode == 0, first
    assert not Path("/dev/shm/left-by-candidate").exists()
    second = confined(
        """
        import os
        print(os.listdir(os.path.expanduser("~")), os.path.exists("/dev/shm/left-by-candidate"))
        """
    )
    assert second.stdout.strip() == "[] False"


def test_the_environment_is_ours(confined, monkeypatch):
    monkeypatch.setenv("LD_PRELOAD_TEST", "1")
    monkeypatch.setenv("CUTE_DSL_DUMP_DIR", "/tmp")
    done = confined("import os; print(sorted(os.environ))", env={"EXTRA": "1"})
    names = set(eval(done.stdout))
    assert "EXTRA" in names
    assert names <= {
        "PATH",
        "LANG",
        "LC_CTYPE",
        "HOME",
        "TMPDIR",
        "USER",
        "LOGNAME",
        "EXTRA",
        "PWD",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
    }


def test_no_network_of_any_kind(confined):
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(0.3)
        tcp.settimeout(0.3)
        done = confined(
            f"""
            import socket
            for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
                    try: socket.socket(family, kind)
                    except OSError: continue
                    print("OPENED", family, kind)
            try: socket.create_connection(("127.0.0.1", {tcp.getsockname()[1]}), timeout=1)
            except OSError: print("refused")
            a, b = socket.socketpair(); a.send(b"x"); print(b.recv(1))
            """
        )
        assert done.stdout == "refused\nb'x'\n", done
        with pytest.raises(TimeoutError):
            tcp.accept()
        with pytest.raises(TimeoutError):
            udp.recv(1)


def test_system_calls_into_others_are_refused(confined):
    done = confined(
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        x86 = os.uname().machine == "x86_64"
        calls = dict(ptrace=(101, 117), unshare=(272, 97), mount=(165, 40), bpf=(321, 280),
                     io_uring_setup=(425, 425), keyctl=(250, 219), process_vm_readv=(310, 270))
        for name, numbers in calls.items():
            result = libc.syscall(numbers[0 if x86 else 1], 0x10000000, 0, 0, 0, 0, 0)
            print(name, result, ctypes.get_errno())
        """
    )
    lines = done.stdout.split("\n")[:-1]
    assert len(lines) == 7, done
    assert all(line.endswith(" -1 1") for line in lines), done.stdout


def test_no_gpu_device(confined):
    done = confined("import glob; print(glob.glob('/dev/nvidia*'))")
    assert done.stdout.strip() == "[]" or done.returncode != 0


def test_a_child_that_never_returns(confined):
    started = time.monotonic()
    done = confined("print('begun', flush=True)\nwhile True: pass", limits=Limits(wall_s=0.7))
    assert done.timed_out
    assert done.stdout == "begun\n"
    assert time.monotonic() - started < 5


def test_a_child_that_ignores_signals_and_closes_its_streams(confined):
    done = confined(
        """
        import os, signal, time
        for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(n, signal.SIG_IGN)
        os.close(1); os.close(2)
        time.sleep(60)
        """,
        limits=Limits(wall_s=0.7),
    )
    assert done.timed_out
    assert done.wall_s < 6


def test_a_hundred_megabytes_of_output(confined):
    done = confined(
        """
        import sys
        for _ in range(1000): sys.stdout.write("x" * 100_000)
        print("the end")
        """,
        limits=Limits(output_bytes=10_000),
    )
    assert done.returncode == 0
    assert len(done.stdout) < 10_100
    assert "bytes dropped" in done.stdout and done.stdout.endswith("the end\n")


def test_foul_bytes_become_printable(confined):
    done = confined(r"import os; os.write(1, b'a\x00b\x1b[31mred\xff\xfe\r\x07 end\n')")
    assert done.stdout == "a?b?[31mred\ufffd\ufffd?? end\n"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_death_by_signal(confined, number):
    done = confined(f"import os; os.kill(os.getpid(), {int(number)})")
    assert done.returncode == -number


def test_limits_of_memory_files_and_cpu(confined, tmp_path):
    done = confined("x = bytearray(3 << 30)", limits=Limits(memory_bytes=1 << 30))
    assert "MemoryError" in done.stderr
    done = confined(
        f"open({str(tmp_path / 'big')!r}, 'wb').write(bytes(3 << 20))",
        write=[tmp_path],
        limits=Limits(file_bytes=1 << 20),
    )
    assert done.returncode != 0
    assert (tmp_path / "big").stat().st_size <= 1 << 20
    done = confined("while True: pass", limits=Limits(cpu_s=1, wall_s=20))
    assert done.returncode < 0 and not done.timed_out


DAEMON = """
    import os, sys, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(0)
            if {close}: os.close(1); os.close(2)
            for _ in range(40):
                time.sleep(0.1)
                open({path!r}, "a").write("alive\\n")
        os._exit(0)
    time.sleep(0.3)
    {ending}
"""


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("ending", ["print('done')", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_daemon_does_not_survive(confined, tmp_path, close, ending):
    path = tmp_path / "alive"
    done = confined(DAEMON.format(close=close, path=str(path), ending=ending), write=[tmp_path])
    assert not done.timed_out
    assert done.wall_s < 3
    before = path.read_text() if path.exists() else ""
    assert "alive" in before, "the daemon ran"
    time.sleep(0.5)
    assert path.read_text() == before


def test_many_children_are_all_gone(confined, tmp_path):
    marker = f"children-of-{tmp_path.name}"
    done = confined(
        f"""
        import os, time
        for n in range(60):
            if os.fork() == 0:
                if n % 2: os.setsid()
                if n % 3 == 0 and os.fork(): os._exit(0)
                time.sleep(31)  # {marker}
        time.sleep(0.2)
        """,
        limits=Limits(wall_s=20),
    )
    assert not done.timed_out
    assert _running_with(marker) == []


def test_when_the_engine_dies_so_does_the_tree(layer, tmp_path):
    path = tmp_path / "alive"
    body = DAEMON.format(close=True, path=str(path), ending="time.sleep(60)")
    code = (
        "import sys, pathlib; from avo_cute import sandbox\n"
        f"sandbox.run([sys.executable, '-I', '-S', '-c', {textwrap.dedent(body)!r}], "
        f"write=[pathlib.Path({str(tmp_path)!r})], layer={layer!r})\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 20
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert path.exists()
    finally:
        engine.kill()
        engine.wait()
    time.sleep(0.3)
    before = path.read_text()
    time.sleep(0.5)
    assert path.read_text() == before
    assert _running_with(str(path)) == []


def test_kill_all_ends_what_runs_in_other_threads(confined):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(confined("import time; time.sleep(60)"))
    )
    thread.start()
    time.sleep(0.5)
    sandbox.kill_all()
    thread.join(10)
    assert not thread.is_alive()
    assert results[0].returncode != 0
    assert results[0].wall_s < 10


def test_open_descriptors_do_not_leak_in(confined, tmp_path):
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        done = confined(
            """
            import os
            for fd in range(3, 64):
                try: os.write(fd, b"score 99")
                except OSError: pass
            print(os.read(0, 10))
            """
        )
    assert done.stdout == "b''\n"
    assert (tmp_path / "open").read_text() == ""


def test_several_side_by_side(confined):
    results = {}

    def one(n):
        results[n] = confined(f"import time; time.sleep(0.2); print({n})").stdout

    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {n: f"{n}\n" for n in range(8)}


def test_a_command_that_does_not_exist(layer):
    done = sandbox.run(["/usr/bin/no-such-program"], layer=layer)
    assert done.returncode == 125
    assert "no-such-program" in done.stderr or "No such file" in done.stderr


def test_a_candidate_cannot_blame_the_machine(confined):
    done = confined("import os; os.write(2, b'bwrap: failed'); os._exit(125)")
    assert done.returncode == 125


def test_a_layer_that_does_not_start_is_the_machines_fault(layer, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "CONFINE", tmp_path / "gone.py")
    with pytest.raises(MachineFailed, match="did not start"):
        sandbox.run(["/bin/true"], layer=layer)


def test_without_bwrap_on_the_path_the_machine_is_blamed(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    probe = sandbox._probe_bwrap()
    assert not probe.works
    assert "bubblewrap" in probe.detail


def test_no_temporary_folder_blames_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(MachineFailed, match="temporary"):
        sandbox.run(["true"])


def _running_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found
