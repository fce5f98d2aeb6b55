"""Measuring processes from start to end: real ones, with a script in the place of the worker."""

import json
import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Timer

import pytest

from avo_cute import sandbox
from avo_cute.errors import MachineFailed, Stopped
from avo_cute.measure import watch
from avo_cute.measure.answer import Unbelievable, read_answer
from avo_cute.measure.devices import Devices, Gpu
from avo_cute.measure.process import Confinement, Setting, Worker, choose_measuring_layer, probe
from avo_cute.measure.request import Effort, MeasureRequest
from avo_cute.measure.rig import Rig
from avo_cute.records import Status
from avo_cute.sandbox import seccomp

FAKE = Path(__file__).with_name("fake_worker.py")
PYTHON = (sys.executable, "-I", "-S")
GOOD_PROBE = (*PYTHON, "-c", "print('ok fake GPU')")
BAD_PROBE = (*PYTHON, "-c", "import sys; sys.exit('the GPU is lost')")


@pytest.fixture(params=["bwrap", "landlock", "none"])
def layer(request) -> str:
    if request.param != "none":
        found = next(p for p in sandbox.layers() if p.name == request.param)
        if not found.works:
            pytest.skip(f"{found.name} does not work here: {found.detail}")
    return request.param


@pytest.fixture
def setting(layer) -> Setting:
    return fake_setting(layer)


@pytest.fixture
def anyhow() -> Setting:
    """In whatever layer works: for what does not depend on it."""
    return fake_setting(sandbox.choose_layer(allow_none=True))


def fake_setting(layer: str, mode: str = "", prober: tuple[str, ...] = GOOD_PROBE) -> Setting:
    worker = (*PYTHON, str(FAKE), *filter(None, [mode]))
    return Setting(layer, (FAKE,), worker=worker, prober=prober, limit_s=60)


def ask(task: str, about: str = "") -> MeasureRequest:
    return MeasureRequest(task, about, 7, (), {}, Effort())


def measure(setting, task, about=""):
    with Worker(setting, "3") as worker:
        worker.submit(ask(task, about))
        return worker.wait()


def test_a_result_comes_back_and_nothing_stays(setting):
    with Worker(setting, "3") as worker:
        folder = worker.folder
        worker.submit(ask("honest"))
        result = worker.wait()
    assert (result.status, result.facts["device"]) == ("", "3")
    assert not folder.parent.exists()


def test_the_environment_is_ours(setting, monkeypatch, tmp_path):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:relative:/nowhere")
    seen = measure(replace(setting, env={"EXTRA": "1"}), "environment").facts
    assert seen["CUDA_VISIBLE_DEVICES"] == "3"
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert seen["LD_LIBRARY_PATH"] == str(tmp_path)
    assert seen["EXTRA"] == seen["PYTHONNOUSERSITE"] == "1"
    assert Path(seen["AVO_CUTE_DSL_RUNTIME"]).is_file()
    assert "ANTHROPIC_API_KEY" not in seen


def test_it_may_write_to_its_own_folder_only(layer, setting, tmp_path):
    if layer == "none":
        pytest.skip("nothing keeps it from writing")
    result = measure(setting, "write-outside", str(tmp_path / "planted"))
    assert result.reason in ("PermissionError", "FileNotFoundError")
    assert not (tmp_path / "planted").exists()


def test_an_unused_process_is_closed(setting):
    worker = Worker(setting, "0")
    wait_for(lambda: (worker.folder / "phase").read_text().endswith("ready\n"))
    assert not worker.ended
    worker.close()
    assert worker.ended and not worker.folder.exists()
    worker.close()


def test_an_unused_process_is_closed_before_it_began(setting):
    Worker(setting, "0").close()


@pytest.mark.parametrize("about", ["1"])
def test_a_hang_is_killed_with_all_it_started(setting, about):
    started = time.monotonic()
    result = measure(setting, "hang", about)
    assert result.status == Status.TIMED_OUT
    assert "'timing mha-4k' took longer than 1 s" in result.reason
    assert time.monotonic() - started < 20


@pytest.mark.parametrize(
    ("turn", "who"), [("seed", "seed"), ("incumbent", "incumbent"), ("", "our own code")]
)
def test_what_hangs_in_another_turn_is_the_machines(anyhow, monkeypatch, turn, who):
    monkeypatch.setattr(watch, "HANG_S", 2.0)
    with pytest.raises(MachineFailed, match=rf"^{who} hangs on this machine: 'timing mha-4k'"):
        measure(anyhow, "hang-for", turn)


@pytest.mark.parametrize(("task", "turn"), [("hang-for", "candidate"), ("hang-after-turns", "")])
def test_what_hangs_in_no_other_turn_is_the_candidates(anyhow, monkeypatch, task, turn):
    monkeypatch.setattr(watch, "HANG_S", 2.0)
    assert measure(anyhow, task, turn).status == Status.TIMED_OUT


def test_the_kernel_kills_for_want_of_memory_whoever_runs(anyhow):
    assert measure(anyhow, "killed-for", "candidate").status == Status.CRASHED
    with pytest.raises(MachineFailed, match="killed while our own code ran"):
        measure(anyhow, "killed-for", "")


def test_one_phase_after_the_other_does_not_last_for_ever(anyhow):
    result = measure(replace(anyhow, limit_s=2), "hang-politely")
    assert result.status == Status.TIMED_OUT
    assert "no answer after 2 s" in result.reason


def test_a_phase_may_not_take_as_long_as_it_likes(anyhow, monkeypatch):
    monkeypatch.setattr(watch, "MAX_PHASE_S", 0.5)
    result = measure(anyhow, "boast")
    assert result.status == Status.TIMED_OUT
    assert "longer than 0.5 s" in result.reason


def test_a_hang_does_not_touch_the_next_evaluation(anyhow, tmp_path):
    rig = Rig(Devices([Gpu(0)], tmp_path), anyhow, tmp_path, Confinement(anyhow.layer))
    with closing(rig):
        assert rig.measure(ask("hang", "1")).status == Status.TIMED_OUT
        assert rig.measure(ask("crash")).status == Status.CRASHED
        result = rig.measure(ask("honest"))
    assert (result.status, result.facts["device"]) == ("", "0")


def test_a_crash_names_the_signal_and_the_phase(setting):
    result = measure(setting, "crash")
    assert result.status == Status.CRASHED
    assert "SIGSEGV" in result.reason and "'checking causal'" in result.reason
    assert "about to touch address 0" in result.detail


@pytest.mark.parametrize(
    ("task", "about", "says"),
    [
        ("exit-quietly", "", "left no result"),
        ("fail", "", "status 1"),
        ("text", "", "malformed"),
        ("text", "[" * 100_000, "malformed"),
        ("text", "[]", "malformed"),
        ("text", '{"status": 1, "samples": [], "findings": []}', "malformed"),
        ("verdict", "splendid", "malformed"),
        ("link", "/etc/hostname", "left no result"),
        ("fifo", "", "left no result"),
        ("huge", "", "left no result"),
    ],
    ids=["none", "status", "empty", "deep", "list", "types", "unknown", "link", "fifo", "huge"],
)
def test_what_is_no_result_is_the_candidates_fault(anyhow, task, about, says):
    result = measure(anyhow, task, about)
    assert result.status == Status.CRASHED
    assert says in result.reason


GOOD_SAMPLES = {
    "workload": "w",
    "role": "public",
    "mode": "sustained",
    "process": 1,
    "times": {"candidate": [1.0, 2.0]},
    "clocks": {"candidate": [1980.0, 1980.0]},
    "void": ["", "hot"],
}


@pytest.mark.parametrize(
    ("change", "believed"),
    [
        ({}, True),
        ({"void": [""]}, False),
        ({"void": [0, 0]}, False),
        ({"times": {"candidate": ["x", 1.0]}}, False),
        ({"process": "1"}, False),
        ({"extra": 1}, False),
        ({"times": {"candidate": [10**400, 1.0]}}, False),
        ({"clocks": []}, False),
    ],
)
def test_samples_are_checked(anyhow, change, believed):
    samples = {**GOOD_SAMPLES, **change}
    text = json.dumps({"status": "", "samples": [samples], "findings": []})
    result = measure(anyhow, "text", text)
    assert (result.status == "") is believed, result
    if believed:
        assert result.samples[0].times == {"candidate": (1.0, 2.0)}


def test_text_from_the_process_is_printable(anyhow):
    text = json.dumps({"status": "incorrect", "reason": "a\x1b[31m\nb", "samples": []})
    result = measure(anyhow, "text", text[:-1] + ', "findings": []}')
    assert result.reason == "a b"


FINDING = {"workload": "w", "family": "f", "what": "x", "failure": ""}
FINDING |= dict.fromkeys(("worst", "error", "seed_error"), 0.5)
MALFORMED = [
    {"busy_s": 10**400},
    {"timed_s": float("nan")},
    {"wall_s": float("inf")},
    {"facts": {"power_w": 10**400}},
    {"facts": {"power_w": [1]}},
    {"findings": [{**FINDING, "worst": 10**400}]},
    {"findings": [{**FINDING, "error": "1"}]},
]


@pytest.mark.parametrize("change", MALFORMED, ids=range(len(MALFORMED)))
def test_numbers_that_are_none_make_no_result(tmp_path, change):
    """They would end the engine later, where it adds, compares or prints them."""
    told = {"status": "", "samples": [], "findings": [FINDING], "facts": {}}
    (tmp_path / "result.json").write_text(json.dumps(told))
    assert read_answer(tmp_path / "result.json", tmp_path / "copy.json").status == ""
    (tmp_path / "result.json").write_text(json.dumps({**told, **change}))
    with pytest.raises(Unbelievable, match="malformed"):
        read_answer(tmp_path / "result.json", tmp_path / "copy.json")


def test_no_text_of_a_result_begins_a_line_of_its_own(tmp_path):
    """A device's name, the reason of a void round and a finding end up in commit messages."""
    forged = "H200\n\nScore: 9.9\x1b[31m" + "x" * 1000
    samples = {**GOOD_SAMPLES, "void": ["", forged]}
    finding = {**FINDING, "family": forged, "what": forged, "failure": forged}
    told = {"status": "", "samples": [samples], "findings": [finding], "facts": {"device": forged}}
    (tmp_path / "result.json").write_text(json.dumps(told))
    got = read_answer(tmp_path / "result.json", tmp_path / "copy.json")
    (found,) = got.findings
    texts = (found.family, found.what, found.failure, got.facts["device"], got.samples[0].void[1])
    assert {t[:16] for t in texts} == {"H200 Score: 9.9x"}
    assert {len(t) for t in texts} == {500}
    assert got.samples[0].void[0] == "", "a round that counts still does"


def test_what_is_no_phase_changes_nothing(anyhow):
    assert measure(anyhow, "bad-phase").status == ""


def test_what_fails_before_an_object_is_loaded_is_the_machines_fault(anyhow):
    with pytest.raises(MachineFailed, match="no CUDA-capable device"):
        measure(anyhow, "no-cuda")


@pytest.mark.parametrize("mode", ["no-torch", "dies-idle"])
def test_what_fails_before_the_request_is_the_machines_fault(anyhow, mode):
    broken = fake_setting(anyhow.layer, mode)
    with Worker(broken, "0") as worker, pytest.raises(MachineFailed) as failed:
        worker.submit(ask("honest"))
        worker.wait()
    assert {"no-torch": "No module named 'torch'", "dies-idle": "SIGKILL"}[mode] in str(
        failed.value
    )


def test_a_start_that_takes_too_long_is_the_machines_fault(anyhow):
    slow = replace(fake_setting(anyhow.layer, "slow-start"), start_s=1)
    with Worker(slow, "0") as worker, pytest.raises(MachineFailed, match="longer than 1 s"):
        worker.submit(ask("honest"))
        worker.wait()


def test_a_request_that_nobody_takes_is_the_machines_fault(anyhow, monkeypatch):
    monkeypatch.setattr(watch, "PICK_UP_S", 0.5)
    deaf = fake_setting(anyhow.layer, "deaf")
    with Worker(deaf, "0") as worker, pytest.raises(MachineFailed, match="'ready' took longer"):
        worker.submit(ask("honest"))
        worker.wait()


def test_the_worker_may_say_that_the_machine_failed(anyhow):
    with pytest.raises(MachineFailed, match="because"):
        measure(anyhow, "verdict", "infra-error")


def test_what_cannot_be_started_is_the_machines_fault(anyhow):
    missing = replace(anyhow, worker=("/nowhere/python",))
    with pytest.raises(MachineFailed, match="nowhere"):
        measure(missing, "honest")


@pytest.mark.parametrize(("task", "about"), [("hang", "1"), ("crash", ""), ("verdict", "crashed")])
def test_a_gpu_that_does_not_answer_afterwards_is_no_verdict(anyhow, task, about):
    with pytest.raises(MachineFailed) as failed:
        measure(replace(anyhow, prober=BAD_PROBE), task, about)
    assert "GPU 3 does not answer after a candidate" in str(failed.value)
    assert "the GPU is lost" in str(failed.value)


def test_an_honest_result_needs_no_probe(anyhow):
    assert measure(replace(anyhow, prober=BAD_PROBE), "verdict", "incorrect").reason == "because"


def test_the_measuring_layer_is_tried_for_real(anyhow):
    best = choose_measuring_layer(anyhow, "0")
    assert best.layer == sandbox.choose_layer(allow_none=True)
    assert best.why == "" and best.trailer == f"measure: {sandbox.describe(best.layer)}"


def test_measuring_goes_on_unconfined_where_cuda_does_not_start_confined(tmp_path, anyhow):
    """A folder that the probe can list outside of any layer only stands for a driver's socket."""
    listing = f"import os; os.listdir({str(tmp_path)!r}); print('ok GPU')"
    found = choose_measuring_layer(replace(anyhow, prober=(*PYTHON, "-c", listing)), "0")
    assert (found.layer, found.trailer) == ("none", "measure: unconfined")
    for probed in sandbox.layers():
        assert (f"{probed.name}: CUDA does not start on GPU 0" in found.why) is probed.works


def test_a_probe_that_the_engine_ends_says_nothing_of_a_layer(anyhow):
    """Ctrl-C while CUDA is tried in the first layer: no other is tried, none is chosen."""
    slow = replace(anyhow, prober=(*PYTHON, "-c", "import time; time.sleep(10)"))
    ending = Timer(2.0, sandbox.kill_all)
    ending.start()
    try:
        with pytest.raises(Stopped):
            choose_measuring_layer(slow, "0")
    finally:
        ending.cancel()


def test_where_cuda_does_not_start_at_all_the_machine_failed(anyhow):
    with pytest.raises(MachineFailed, match="the GPU is lost"):
        choose_measuring_layer(replace(anyhow, prober=BAD_PROBE), "0")


def test_what_the_engine_itself_ends_is_no_verdict(setting):
    """At the second Ctrl-C; without a probe, which nobody would wait for."""
    with Worker(replace(setting, prober=BAD_PROBE), "0") as worker:
        worker.submit(ask("hang", "60"))
        wait_for(lambda: "timing" in (worker.folder / "phase").read_text())
        sandbox.kill_all()
        with pytest.raises(MachineFailed, match="was stopped"):
            worker.wait()


# The sandbox's part


@pytest.fixture
def confined(layer):
    if layer == "none":
        pytest.skip("confinement only")

    def run(code, **settings):
        return sandbox.run([*PYTHON, "-c", code], layer=layer, **settings)

    return run


def test_a_device_file_can_be_used_only_where_it_was_granted(confined):
    """/dev/net/tun and /dev/fuse stand for a GPU's: character devices that answer an ioctl."""
    node = next((p for p in map(Path, ("/dev/fuse", "/dev/net/tun")) if p.exists()), None)
    if node is None or not os.access(node, os.R_OK | os.W_OK):
        pytest.skip("no spare device file here")
    code = (
        "import fcntl, os\n"
        f"try: handle = os.open({str(node)!r}, os.O_RDWR)\n"
        "except OSError as error: print(type(error).__name__); raise SystemExit\n"
        "try: fcntl.ioctl(handle, 0x5600)\n"
        "except OSError as error: print(error.errno)\n"
    )
    refused = confined(code).stdout.strip()
    assert refused in ("PermissionError", "FileNotFoundError")
    granted = confined(code, devices=sandbox.Devices((node,))).stdout.strip()
    assert granted.isdigit() and int(granted) != 13  # whatever the driver says, not EACCES


def test_cuda_finds_the_socket_and_the_facts_that_it_needs(confined):
    code = (
        "import os, socket\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind('\\0cuda-uvmfd-test-%d' % os.getpid()); s.listen(1)\n"
        "for path in ('/proc/devices', '/proc/self/maps', '/proc/sys/vm/mmap_min_addr',\n"
        "             '/sys/devices/system/cpu/online'):\n"
        "    open(path).read()\n"
        "os.listdir('/sys/devices/system/node')\n"
        "print('all')\n"
    )
    done = confined(code, devices=sandbox.gpu_devices())
    assert done.stdout == "all\n", done.stderr


def test_cuda_names_its_threads_and_changes_nothing_of_the_machine(confined):
    """CUDA ends with "OS call failed" where it cannot write a thread's name into /proc."""
    code = (
        "import threading\n"
        "def named():\n"
        "    number = threading.get_native_id()\n"
        "    open(f'/proc/self/task/{number}/comm', 'w').write('cuda')\n"
        "    print(open(f'/proc/self/task/{number}/comm').read().strip())\n"
        "thread = threading.Thread(target=named); thread.start(); thread.join()\n"
        "for path in ('/proc/sys/vm/drop_caches', '/proc/sysrq-trigger', '/proc/1/comm'):\n"
        "    try: open(path, 'w'); print('opened', path)\n"
        "    except OSError: pass\n"
    )
    done = confined(code, devices=sandbox.gpu_devices())
    assert done.stdout.replace("opened /proc/1/comm\n", "") == "cuda\n", done.stderr


def test_a_gpu_opens_no_way_out(confined, tmp_path):
    import socket

    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(1)
        code = (
            "import socket\n"
            "for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):\n"
            "    try:\n"
            "        s = socket.socket(socket.AF_UNIX, kind)\n"
            "        if kind == socket.SOCK_DGRAM: s.sendto(b'x', {0!r})\n"
            "        else: s.connect({0!r})\n"
            "    except OSError: continue\n"
            "    print('out', kind)\n"
            "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):\n"
            "    try: socket.socket(family, socket.SOCK_DGRAM)\n"
            "    except OSError: continue\n"
            "    print('out', family)\n"
            "import os\n"
            "for path in ('/sys/kernel/debug', '/sys/firmware', '/sys/fs'):\n"
            "    try: os.listdir(path); print('out', path)\n"
            "    except OSError: pass\n"
            "try: open('/sys/devices/system/cpu/planted', 'w'); print('out')\n"
            "except OSError: print('done')\n"
        ).replace("{0!r}", repr(str(path)))
        done = confined(code, devices=sandbox.gpu_devices())
    assert done.stdout == "done\n", done


def test_builds_are_confined_as_before():
    """Without devices the filter is the one without sockets, byte for byte."""
    for layer in ("bwrap", "landlock"):
        with_gpu = seccomp.program(layer, 7, gpu=True)
        assert seccomp.program(layer, 7) == seccomp.program(layer, 7, gpu=False) != with_gpu


def test_a_command_can_be_stopped(layer):
    deadline, asked = time.monotonic() + 1.5, []

    def stop() -> bool:
        asked.append(1)
        return time.monotonic() > deadline

    done = sandbox.run([*PYTHON, "-c", "import time; time.sleep(60)"], layer=layer, stop=stop)
    assert done.timed_out and done.returncode is None
    assert done.wall_s < 20 and len(asked) > 5


# On a real GPU


@pytest.fixture
def gpu_setting(layer) -> Setting:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    site = Path(torch.__file__).parents[1]
    return Setting(layer, (site,))


@pytest.mark.gpu
def test_cuda_starts_in_every_layer(gpu_setting):
    assert "MiB free" in probe(gpu_setting, "0")


@pytest.mark.gpu
def test_after_a_spinning_kernel_was_killed_the_gpu_answers(gpu_setting, tmp_path):
    spinner = tmp_path / "spinner.py"
    spinner.write_text(
        "import sys, time, torch\n"
        "from pathlib import Path\n"
        "folder = Path(sys.argv[-1])\n"
        "def say(text):\n"
        "    (folder / 'p').write_text(text); (folder / 'p').rename(folder / 'phase')\n"
        "torch.ones(1, device='cuda')\n"
        "say('60 ready\\n')\n"
        "while not (folder / 'request.json').exists(): time.sleep(0.01)\n"
        "for _ in range(1000): torch.cuda._sleep(10**11)\n"
        "say('2 spinning\\n')\n"
        "torch.cuda.synchronize()\n"
    )
    spin = replace(
        gpu_setting, worker=(sys.executable, str(spinner)), read=(*gpu_setting.read, spinner)
    )
    result = measure_on(spin, "0")
    assert result.status == Status.TIMED_OUT and "spinning" in result.reason
    assert "MiB free" in probe(gpu_setting, "0")


def measure_on(setting, device):
    with Worker(setting, device) as worker:
        worker.submit(ask("spin"))
        return worker.wait()


def wait_for(true, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if true():
                return
        except OSError:
            pass
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")
