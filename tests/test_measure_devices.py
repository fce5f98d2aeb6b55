"""GPUs shared between threads and engines: real processes, simulated devices."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from avo_cute import sandbox
from avo_cute.config import DEFAULT_TARGET
from avo_cute.errors import BadInput, MachineFailed
from avo_cute.measure import devices as module
from avo_cute.measure.devices import Devices, Gpu, find_devices
from avo_cute.measure.process import Confinement, Setting
from avo_cute.measure.request import Effort, MeasureRequest
from avo_cute.measure.rig import Rig, open_rig
from avo_cute.plan import Wanted, default_target, make_bench
from avo_cute.records import Status
from avo_cute.target import find_target

FAKE = Path(__file__).with_name("fake_worker.py")
PYTHON = (sys.executable, "-I", "-S")
TWO = (Gpu(0, "GPU-aa"), Gpu(1, "GPU-bb"))


@pytest.fixture
def setting() -> Setting:
    layer = sandbox.choose_layer(allow_none=True)
    prober = (*PYTHON, "-c", "print('ok fake GPU')")
    return Setting(layer, (FAKE,), worker=(*PYTHON, str(FAKE)), prober=prober, limit_s=60)


@pytest.fixture
def engine(tmp_path):
    """engine(code) starts another engine: `take(seconds)` there measures and prints when."""
    script = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from avo_cute.measure.devices import Devices, Gpu
        def say(text): print(text, flush=True)
        def devices(*numbers):
            gpus = [Gpu(n, "GPU-" + 2 * "ab"[n]) for n in numbers]
            return Devices(gpus, Path({str(tmp_path)!r}), lambda text: say("told " + text))
        def take(devices, seconds):
            with devices.one() as gpu:
                start = time.monotonic()
                say(f"begin {{gpu.index}} {{start}}")
                time.sleep(seconds)
                say(f"took {{gpu.index}} {{start}} {{time.monotonic()}}")
        """
    )
    started = []

    def start(code):
        argv = [sys.executable, "-c", script + textwrap.dedent(code)]
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def taken(output):
    """(device, from, to) of every line "took"."""
    lines = [line.split() for line in output.splitlines() if line.startswith("took")]
    return [(int(device), float(start), float(end)) for _, device, start, end in lines]


def overlaps(visits):
    ordered = sorted((start, end) for _, start, end in visits)
    return [b for a, b in pairwise(ordered) if b[0] < a[1]]


def test_two_engines_never_measure_on_one_device_at_once(engine):
    loop = "for _ in range(5): take(devices(0), 0.05)"
    engines = [engine(loop) for _ in range(3)]
    visits = [v for e in engines for v in taken(e.communicate(timeout=60)[0])]
    assert len(visits) == 15
    assert not overlaps(visits)


def test_two_devices_are_used_side_by_side(engine):
    loop = "for _ in range(4): take(devices(0, 1), 0.2)"
    engines = [engine(loop) for _ in range(2)]
    visits = [v for e in engines for v in taken(e.communicate(timeout=60)[0])]
    for device in (0, 1):
        mine = [v for v in visits if v[0] == device]
        assert mine and not overlaps(mine)
    assert overlaps(visits), "never both at once"


def test_an_engine_that_asks_again_at_once_starves_nobody(engine):
    """Without a queue the holder would win against whoever looks only now and then."""
    greedy = engine("for _ in range(40): take(devices(0), 0.05)")
    assert greedy.stdout.readline().startswith("begin")
    modest = engine("take(devices(0), 0.01)")
    ((_, start, _),) = taken(modest.communicate(timeout=60)[0])
    visits = taken(greedy.communicate(timeout=60)[0])
    before = [v for v in visits if v[1] < start]
    assert len(visits) == 40 and len(before) < 35


def test_first_come_first_served(tmp_path):
    devices, order = Devices([Gpu(0)], tmp_path), []
    with devices.one():
        threads = []
        for n in range(6):
            threads.append(threading.Thread(target=lambda n=n: serve(devices, order, n)))
            threads[-1].start()
            wait_for(lambda n=n: len(list(tmp_path.glob("*.ticket"))) == n + 1)
    for thread in threads:
        thread.join(timeout=20)
    assert order == [0, 1, 2, 3, 4, 5]


def serve(devices, order, n):
    with devices.one():
        order.append(n)


def test_who_waits_for_another_device_holds_nobody_up(engine, tmp_path):
    with Devices(TWO[:1], tmp_path).one():
        waiting = engine("take(devices(0), 0)")
        wait_for(lambda: list(tmp_path.glob("*.ticket")))
        started = time.monotonic()
        with Devices(TWO, tmp_path).one() as gpu:
            assert gpu.index == 1
        assert time.monotonic() - started < 2
        assert waiting.poll() is None
    assert len(taken(waiting.communicate(timeout=20)[0])) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_engine_frees_its_device(engine, tmp_path, number):
    holder = engine("take(devices(0), 600)")
    assert holder.stdout.readline().startswith("begin 0")
    waiter = engine("take(devices(0), 0)")
    assert waiter.stdout.readline().startswith("told waiting for GPU 0")
    holder.send_signal(number)
    holder.wait(timeout=10)
    assert len(taken(waiter.communicate(timeout=10)[0])) == 1


def test_a_killed_waiter_does_not_hold_up_the_queue(engine, tmp_path):
    devices = Devices(TWO[:1], tmp_path)
    with devices.one():
        waiter = engine("take(devices(0), 600)")
        wait_for(lambda: list(tmp_path.glob("*.ticket")))
        waiter.kill()
        waiter.wait(timeout=10)
    with devices.one():
        assert not [*tmp_path.glob("*.ticket"), *tmp_path.glob("*.new")]


def test_waiting_is_said_once_and_only_of_others(engine, tmp_path):
    holder = engine("take(devices(0), 0.5); take(devices(0), 0.5)")
    assert holder.stdout.readline().startswith("begin")
    said = []
    devices = Devices(TWO[:1], tmp_path, said.append)
    for _ in range(2):
        with devices.one():
            pass
    assert said == [f"waiting for GPU 0: process {holder.pid} is measuring"]
    quiet = Devices(TWO[:1], tmp_path, said.append)
    holder.communicate(timeout=20)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: serve(quiet, [], 0), range(6)))
    assert len(said) == 1


def test_a_failure_frees_the_device(tmp_path):
    devices = Devices([Gpu(0)], tmp_path)
    with pytest.raises(MachineFailed), devices.one():
        raise MachineFailed("the GPU is lost")
    with devices.one() as gpu:
        assert gpu.index == 0


def test_a_folder_that_cannot_be_made_is_the_machines_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineFailed, match="device locks"):
        Devices([Gpu(0)], tmp_path / "file" / "devices")


# With processes that measure


def rig_of(setting, gpus, folder):
    return closing(Rig(Devices(gpus, folder), setting, folder, Confinement(setting.layer)))


def ask(task, about=""):
    return MeasureRequest(task, about, 7, (), {}, Effort())


def test_candidates_are_measured_side_by_side_each_in_a_fresh_process(setting, tmp_path):
    with rig_of(setting, TWO, tmp_path) as rig, ThreadPoolExecutor(4) as pool:
        results = list(pool.map(rig.measure, [ask("occupy", "0.4")] * 6))
    visits = [(r.facts["device"], r.facts["from"], r.facts["to"]) for r in results]
    for gpu in TWO:
        mine = [v for v in visits if v[0] == gpu.name]
        assert mine and not overlaps(mine)
    assert overlaps(visits), "never both at once"


def test_the_next_process_is_started_ahead_and_ended_in_the_end(setting, tmp_path):
    with rig_of(setting, TWO[:1], tmp_path) as rig:
        folders = set()
        for _ in range(3):
            assert rig.measure(ask("honest")).status == ""
            (ahead,) = rig._ahead.values()
            assert ahead.folder.is_dir() and not ahead.ended
            folders.add(ahead.folder)
        assert len(folders) == 3, "a process was used twice"
    assert not any(folder.exists() for folder in folders)
    assert rig._ahead == {}


def test_a_hang_on_one_device_leaves_the_other_alone(setting, tmp_path):
    with rig_of(setting, TWO, tmp_path) as rig, ThreadPoolExecutor(2) as pool:
        hanging = pool.submit(rig.measure, ask("hang", "2"))
        statuses = [rig.measure(ask("honest")).status for _ in range(3)]
        assert hanging.result(timeout=30).status == Status.TIMED_OUT
        assert statuses == ["", "", ""]
        assert rig.measure(ask("honest")).status == ""


def test_a_process_that_died_ahead_is_replaced(setting, tmp_path):
    with rig_of(setting, TWO[:1], tmp_path) as rig:
        assert rig.measure(ask("honest")).status == ""
        (ahead,) = rig._ahead.values()
        ahead._watch.stop()
        wait_for(lambda: ahead.ended)
        assert rig.measure(ask("honest")).status == ""


# Which devices


@pytest.fixture
def eight(monkeypatch):
    """A machine with eight GPUs, as NVML would list them."""
    gpus = tuple(Gpu(n, f"GPU-{n}{n}cafe", "NVIDIA H200") for n in range(8))
    monkeypatch.setattr(module, "_gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return gpus


@pytest.fixture
def mixed(monkeypatch):
    """A machine whose first GPU is another model than the two others."""
    models = ("NVIDIA RTX A4000", "NVIDIA H200", "NVIDIA H200", "NVIDIA H100 PCIe")
    gpus = tuple(Gpu(n, f"GPU-{n}{n}cafe", model) for n, model in enumerate(models))
    monkeypatch.setattr(module, "_gpus", lambda: gpus)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return gpus


@pytest.mark.parametrize(
    ("wanted", "visible", "found"),
    [
        ("", None, range(8)),
        ("0,3", None, [0, 3]),
        (" 7 , 1,", None, [1, 7]),
        ("5", "1,2", [5]),
        ("5", "-1", [5]),
        ("0,GPU-00cafe", None, [0]),
        ("", "1,2", [1, 2]),
        ("", " 2, 1 ", [1, 2]),
        ("", "GPU-44", [4]),
        ("", "GPU-44cafe,0", [0, 4]),
        ("", "", []),
        ("", "-1", []),
        ("", "NoDevFiles", []),
        ("", "3,-1,5", [3]),
        ("", "8", []),
        ("", "GPU-", []),  # may mean any
        ("", "MIG-1c2d", []),
        ("", "6,MIG-GPU-11cafe/1/0", [6]),
    ],
)
def test_the_devices_asked_for_or_shown(eight, monkeypatch, wanted, visible, found):
    """CUDA's own rules: it reads the variable up to the first word that it does not know."""
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in find_devices(wanted)] == [*found]
    assert [gpu.index for gpu in find_devices(wanted, "h200")] == [*found]


@pytest.mark.parametrize("wanted", ["8", "0,9", "-1", "all", "GPU-99", "0,none", "MIG-1c2d"])
def test_a_device_that_is_not_there_is_named(eight, wanted):
    with pytest.raises(BadInput, match=r"GPU 0 \(NVIDIA H200\), .* GPU 7 \(NVIDIA H200\)$"):
        find_devices(wanted)


@pytest.mark.parametrize("wanted", [",", " ", ", ,", "\t"])
def test_a_list_of_no_devices_is_refused(eight, wanted):
    with pytest.raises(BadInput, match="names no GPU") as refused:
        find_devices(wanted, "h200")
    assert "\n" not in str(refused.value)


def test_only_gpus_of_the_target_are_measured_on(mixed):
    said = []
    assert [gpu.index for gpu in find_devices("", "h200", said.append)] == [1, 2]
    line = "not measured on, as the target is h200: GPU 0 (NVIDIA RTX A4000), GPU 3"
    assert len(said) == 1 and said[0].startswith(line)
    said.clear()
    assert find_devices("", "b200", said.append) == ()
    assert len(said) == 1 and "the target is b200" in said[0]
    assert [gpu.index for gpu in find_devices("1,2", "h200", said.append)] == [1, 2]
    assert len(said) == 1


def test_a_gpu_of_another_model_is_refused_where_it_is_asked_for(mixed):
    with pytest.raises(BadInput, match=r"the target is h200, which is not GPU 0 \(NVIDIA RTX"):
        find_devices("0,1", "h200")


def test_the_target_is_found_wherever_it_stands(mixed, monkeypatch):
    """On the bus the fitting GPU may come after another one."""
    assert default_target() == "h200"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert default_target() == DEFAULT_TARGET


def test_hidden_gpus_are_said_once_and_leave_the_estimate(eight, monkeypatch, softmax_bench):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = []
    assert find_devices("", "h200", said.append) == ()
    assert said == ["CUDA_VISIBLE_DEVICES= leaves no GPU to measure on"]
    watch, wanted = Said(), Wanted(Path("unused"))
    bench = make_bench(softmax_bench.task, find_target("h200"), "all", wanted, map, watch)
    assert bench.rig is None and watch.lines == said


@pytest.mark.parametrize("wanted", ["none", " none "])
def test_none_is_for_estimates(eight, wanted, softmax_bench):
    asked = Wanted(Path("unused"), devices=wanted)
    bench = make_bench(softmax_bench.task, find_target("h200"), "all", asked, map, Said())
    assert bench.rig is None


class Said:
    """A watch that keeps what it was told."""

    def __init__(self):
        self.lines = []

    def phase(self, text):
        self.lines.append(text)


def test_no_gpu_is_no_rig(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_gpus", lambda: ())
    said = []
    assert find_devices("", "h200", said.append) == () and said == []
    with pytest.raises(BadInput, match="this machine has no GPU"):
        find_devices("0", "h200")
    with pytest.raises(MachineFailed, match="no GPU"):
        open_rig(tmp_path, tmp_path, (), said.append)


def test_names_are_safe_as_files():
    assert Gpu(0, "GPU-1a2b").lock_name == "GPU-1a2b.lock"
    assert Gpu(3).lock_name == "3.lock"
    assert Gpu(0, "../x").lock_name == "___x.lock"


@pytest.mark.gpu
def test_this_machines_gpus_are_found():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    gpus = find_devices()
    assert len(gpus) == torch.cuda.device_count() or "CUDA_VISIBLE_DEVICES" in os.environ
    assert all(gpu.uuid.startswith("GPU-") for gpu in gpus)


def wait_for(true, seconds=10):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if true():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen in time")
