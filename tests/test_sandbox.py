"""The sandbox: the same promises from both layers, tried with real processes."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from avo_cute import sandbox
from avo_cute.errors import MachineFailed, Stopped
from avo_cute.sandbox import Limits, seccomp


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
                     "/proc/1/environ", "/proc/1/mem", "/proc/1/maps",
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


def test_no_new_namespaces_by_way_of_clone(confined):
    done = confined(
        """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        clone = 56 if os.uname().machine == "x86_64" else 220
        pid = libc.syscall(clone, 0x10000000 | 17, 0, 0, 0, 0)  # CLONE_NEWUSER | SIGCHLD
        if pid == 0: os._exit(0)
        print(pid, ctypes.get_errno())
        arguments = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
        pid = libc.syscall(435, ctypes.byref(arguments), 88)
        if pid == 0: os._exit(0)
        print(pid, ctypes.get_errno())
        """
    )
    assert done.stdout == "-1 1\n-1 38\n", done


def test_the_machines_settings_cannot_be_written(confined):
    done = confined(
        """
        import os
        for folder, _, files in os.walk("/proc/sys"):
            for name in files:
                try: os.close(os.open(os.path.join(folder, name), os.O_WRONLY))
                except OSError: continue
                print("opened", folder, name)
        for path in ("/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/mtrr"):
            try: os.close(os.open(path, os.O_WRONLY))
            except OSError: continue
            print("opened", path)
        print("done")
        """
    )
    assert done.stdout == "done\n"


def test_unix_sockets_of_others_are_not_reached(confined, tmp_path):
    """A container engine's or an agent's socket would be a way out of everything else."""
    stream, datagram = (
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
    )
    with stream, datagram:
        stream.bind(str(tmp_path / "s")), stream.listen(), stream.settimeout(0.2)
        datagram.bind(str(tmp_path / "d")), datagram.settimeout(0.2)
        abstract = socket.socket(socket.AF_UNIX)
        with abstract:
            abstract.bind(f"\0{tmp_path}"), abstract.listen(), abstract.settimeout(0.2)
            done = confined(
                f"""
                import socket
                tries = [
                    lambda: socket.socket(socket.AF_UNIX).connect({str(tmp_path / "s")!r}),
                    lambda: socket.socket(socket.AF_UNIX).connect(chr(0) + {str(tmp_path)!r}),
                    lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(
                        b"x", {str(tmp_path / "d")!r}),
                    lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(
                        b"x", {str(tmp_path / "d")!r}),
                    lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)[0].sendto(
                        b"x", {str(tmp_path / "d")!r}),
                ]
                for n, attempt in enumerate(tries):
                    try: attempt()
                    except OSError: continue
                    print("reached", n)
                """
            )
            assert done.stdout == "" and done.returncode == 0, done
            for server in (stream, abstract):
                with pytest.raises(TimeoutError):
                    server.accept()
        with pytest.raises(TimeoutError):
            datagram.recv(1)


def test_modes_and_times_of_other_files_stay(confined, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("x")
    victim.chmod(0o640)
    os.utime(victim, (1000, 1000))
    (tmp_path / "out").mkdir()
    done = confined(
        f"""
        import os, shutil, sys
        for path in ({str(victim)!r},):  # nothing else: without the defence it would happen
            for act in (lambda: os.chmod(path, 0o777), lambda: os.utime(path, (5, 5)),
                        lambda: os.chown(path, 1, 1), lambda: os.setxattr(path, "user.a", b"b"),
                        lambda: os.truncate(path, 0),
                        lambda: os.fchmod(os.open(path, os.O_RDONLY), 0o777)):
                try: act()
                except OSError: pass
        open({str(tmp_path / "out" / "a")!r}, "w").write("content")
        shutil.copy2({str(tmp_path / "out" / "a")!r}, {str(tmp_path / "out" / "b")!r})
        """,
        read=[victim],
        write=[tmp_path / "out"],
    )
    assert done.returncode == 0, done
    about = victim.stat()
    assert (about.st_mode & 0o777, about.st_mtime, about.st_uid) == (0o640, 1000, os.getuid())
    assert victim.read_text() == "x" and os.listxattr(victim) == []
    assert (tmp_path / "out" / "b").read_text() == "content"


def test_no_shared_memory_outlives_a_run(confined, tmp_path):
    code = """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        x86 = os.uname().machine == "x86_64"
        made = libc.syscall(29 if x86 else 194, 0x41564F, 4096, {flags})
        queue = libc.syscall(240 if x86 else 180, b"avo-left", {mode}, 0o600, 0)
        print(made >= 0, queue >= 0)
    """
    confined(code.format(flags="0o1600", mode="0o102"))
    assert confined(code.format(flags="0", mode="0")).stdout == "False False\n"
    assert "4282959" not in Path("/proc/sysvipc/shm").read_text()


def test_other_processes_keep_their_limits_and_priority(confined, layer):
    """Acts on a process of its own: without the defence it would really happen."""
    with subprocess.Popen(["sleep", "60"]) as victim:
        pid = victim.pid
        before = (resource.prlimit(pid, resource.RLIMIT_NOFILE), os.getpriority(0, pid))
        done = confined(
            f"""
            import os, resource
            for act in (lambda: resource.prlimit({pid}, resource.RLIMIT_NOFILE, (64, 64)),
                        lambda: os.setpriority(os.PRIO_PROCESS, {pid}, 19),
                        lambda: os.sched_setaffinity({pid}, [0]),
                        lambda: os.kill({pid}, 0)):
                try: act()
                except OSError: print("refused")
            for which, who in ((os.PRIO_USER, 987654321), (os.PRIO_PGRP, 0)):
                try: os.setpriority(which, who, 19)
                except PermissionError: print("by the filter")
                except OSError: pass
            os.setpriority(os.PRIO_PROCESS, 0, 19)
            """
        )
        after = (resource.prlimit(pid, resource.RLIMIT_NOFILE), os.getpriority(0, pid))
        victim.kill()
    assert done.returncode == 0 and done.stdout.count("refused") == 4, done
    assert layer == "bwrap" or done.stdout.count("by the filter") == 2, done
    assert after == before


def test_devices_of_the_machine_are_closed(confined):
    nodes = [p for p in Path("/dev").iterdir() if not p.is_symlink()]  # /dev/stdin is a link
    devices = [str(p) for p in nodes if p.is_char_device() or p.is_block_device()]
    done = confined(
        f"""
        import os
        for path in {devices!r}:
            for flags in (os.O_RDONLY, os.O_WRONLY):
                try: os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY))
                except OSError: continue
                print(path)
        """
    )
    harmless = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "ptmx")}
    assert set(done.stdout.split()) <= harmless, done
    assert "/dev/null" in done.stdout


def test_the_folder_a_command_starts_in(confined, tmp_path):
    assert confined("import os; print(os.getcwd())", read=[tmp_path], cwd=tmp_path).stdout == (
        f"{tmp_path}\n"
    )
    own = confined("import os; print(os.getcwd() == os.environ['HOME'] == os.environ['TMPDIR'])")
    assert own.stdout == "True\n"


def test_what_confined_a_child_is_told(confined, layer):
    done = confined("pass")
    assert "+".join(done.layers) == sandbox.describe(layer)
    assert "seccomp" in done.layers
    bare = sandbox.run(["/bin/true"], layer="none")
    assert bare.layers == () and bare.returncode == 0


def test_where_landlock_cannot_keep_signals_in_the_filter_does(tmp_path):
    """Older kernels: the filter for Landlock 5, loaded on this one."""
    code = textwrap.dedent(
        f"""
        import os, signal
        for act in (lambda: os.kill({os.getpid()}, 0), lambda: os.kill(os.getppid(), 0),
                    lambda: os.kill(-1, 0), lambda: signal.pthread_kill(1, 0)):
            try: act()
            except OSError: print("refused")
        os.kill(0, 0)
        print("own group")
        """.replace(", lambda: signal.pthread_kill(1, 0)", "")
    )
    ready, started = os.pipe()
    spec = {
        "landlock": "",
        "supervise": True,
        "read": [],
        "write": [],
        "home": str(tmp_path),
        "seccomp": seccomp.program("landlock", 5).hex(),
        "cwd": "/",
        "started": started,
        "limits": [1 << 33, 60, 1 << 20],
        "nice": 0,
        "privileged": False,
    }
    argv = [sys.executable, "-I", "-S", str(sandbox.CONFINE), json.dumps(spec)]
    done = subprocess.run(
        [*argv, sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        pass_fds=[started],
    )
    os.close(ready), os.close(started)
    assert done.stdout == "refused\nrefused\nrefused\nown group\n", done


def test_no_gpu_device(confined):
    done = confined("import glob; print(glob.glob('/dev/nvidia*'))")
    assert done.stdout.strip() == "[]" or done.returncode != 0


def test_a_child_that_never_returns(confined):
    started = time.monotonic()
    done = confined("print('begun', flush=True)\nwhile True: pass", limits=Limits(wall_s=0.7))
    assert done.timed_out and done.returncode is None
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
    assert done.stdout == "abred\ufffd\ufffd end\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07kept", "kept"),
        ("\x1b]8;;http://x\x1b\\\\link", "\\link"),
        ("\x1b]never ended\nnext line", "\nnext line"),
        ("\x9b2Jcleared\x1b7", "cleared"),
        ("a\u202eb\tc", "ab\tc"),
        ("\x1b", ""),
    ],
)
def test_escape_sequences_go_whole(text, shown):
    assert sandbox.printable(text) == shown


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


def test_a_tree_of_forks_is_all_gone(confined, tmp_path):
    marker = f"forks-of-{tmp_path.name}"
    done = confined(
        f"""
        import os, time
        for n in range(7):  # 128 processes, each of which starts others
            if os.fork() == 0 and n % 2: os.setsid()
        time.sleep(31)  # {marker}
        """,
        limits=Limits(wall_s=2),
    )
    assert done.timed_out and done.wall_s < 8
    assert _running_with(marker) == []


def test_when_the_engine_dies_so_does_the_tree(layer, tmp_path):
    path = tmp_path / "alive"
    body = DAEMON.format(close=True, path=str(path), ending="time.sleep(60)")
    code = (
        "import sys, pathlib; from avo_cute import sandbox\n"
        f"sandbox.run([sys.executable, '-I', '-S', '-c', {textwrap.dedent(body)!r}], "
        f"write=[pathlib.Path({str(tmp_path)!r})], layer={layer!r})\n"
    )
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    engine = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)}
    )
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
    assert list(temporary.iterdir()) == [], "the private folder is gone too"


def test_a_candidate_that_kills_its_group_only_kills_itself(layer, tmp_path):
    path = tmp_path / "alive"
    for chosen in (layer, "none"):
        body = DAEMON.format(close=True, path=str(path), ending="os.kill(0, 9)")
        argv = [sys.executable, "-I", "-S", "-c", textwrap.dedent(body)]
        done = sandbox.run(argv, write=[tmp_path], layer=chosen)
        assert done.returncode == -9, done
        before = path.read_text()
        time.sleep(0.3)
        assert path.read_text() == before


def test_an_interrupted_engine_leaves_nothing(layer, tmp_path):
    path = tmp_path / "alive"
    body = DAEMON.format(close=True, path=str(path), ending="time.sleep(60)")
    code = (
        "import sys, pathlib, signal; from avo_cute import sandbox\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a background job
        "try:\n"
        f"  sandbox.run([sys.executable, '-I', '-S', '-c', {textwrap.dedent(body)!r}], "
        f"write=[pathlib.Path({str(tmp_path)!r})], layer={layer!r})\n"
        f"except KeyboardInterrupt: print(pathlib.Path({str(path)!r}).read_text(), end='')\n"
    )
    engine = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    while not path.exists() and engine.poll() is None:
        time.sleep(0.05)
    engine.send_signal(signal.SIGINT)
    seen, _ = engine.communicate(timeout=20)
    assert "alive" in seen, "it came back as KeyboardInterrupt"
    time.sleep(0.3)
    assert path.read_text() == seen, "all was dead before the exception went on"


def test_kill_all_ends_what_runs_in_other_threads(confined):
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(confined, "import time; time.sleep(60)")
        time.sleep(0.5)
        sandbox.kill_all()
        with pytest.raises(Stopped):
            running.result(timeout=10)


def test_open_descriptors_do_not_leak_in(confined, tmp_path):
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        done = confined(
            """
            import os
            for fd in range(3, 4096):
                try: os.write(fd, b"score 99")
                except OSError: continue
                print("open", fd)
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
    with pytest.raises(MachineFailed, match="no-such-program"):
        sandbox.run(["/usr/bin/no-such-program"], layer=layer)


def test_what_cannot_be_set_up_blames_the_machine_and_not_the_candidate(layer, tmp_path):
    with pytest.raises(MachineFailed, match="did not start"):
        sandbox.run(["true"], layer=layer, cwd=tmp_path / "missing")
    if layer == "bwrap":
        with pytest.raises(MachineFailed, match="missing"):
            sandbox.run(["true"], layer=layer, read=[tmp_path / "missing"])


def test_a_layer_that_does_not_start_is_the_machines_fault(layer, tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox, "CONFINE", tmp_path / "gone.py")
    with pytest.raises(MachineFailed, match="did not start"):
        sandbox.run(["/bin/true"], layer=layer)


@pytest.mark.parametrize("code", [1, 125, 126, 255])
def test_a_candidate_cannot_blame_the_machine(confined, code):
    done = confined(
        f"""
        import os, sys
        for pid in (1, os.getppid()):  # where the sandbox's own pipes may still be open
            for fd in range(64):
                try:
                    with open(f"/proc/{{pid}}/fd/{{fd}}", "wb", buffering=0) as file:
                        file.write(b"0")
                except OSError: continue
                print("reached", pid, fd)
        print("bwrap: failed\\nsandbox: no space left on device", file=sys.stderr)
        os._exit({code})
        """
    )
    assert done.returncode == code
    assert done.stdout == ""


def test_without_bwrap_on_the_path_the_machine_is_blamed(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    probe = sandbox._probe_bwrap()
    assert not probe.works
    assert "bubblewrap" in probe.detail


def test_no_temporary_folder_blames_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(MachineFailed, match="temporary"):
        sandbox.run(["true"], layer="landlock")


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to keep")
@pytest.mark.parametrize("privileged", [False, True])
def test_capabilities_are_kept_for_a_profiler_only(privileged):
    code = "print(open('/proc/self/status').read())"
    limits = Limits(privileged=privileged)
    done = sandbox.run([sys.executable, "-I", "-S", "-c", code], layer="none", limits=limits)
    mine = Path("/proc/self/status").read_text()
    held, ours = (
        next(line.split()[1] for line in text.splitlines() if line.startswith("CapEff"))
        for text in (done.stdout, mine)
    )
    assert int(held, 16) == (int(ours, 16) if privileged else 0)
