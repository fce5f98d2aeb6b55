"""The digest for an operator: which objects it is about, and what is started to look into them."""

import json
import os
import sys
from dataclasses import replace

import pytest

from avo_cute.errors import MachineFailed
from avo_cute.measure.devices import Devices, Gpu
from avo_cute.measure.kernel import find_runtime
from avo_cute.measure.process import Confinement, Setting
from avo_cute.measure.rig import Rig
from avo_cute.profiles import OBJECTS, profile_of, representatives
from avo_cute.records import Status, Verdict
from avo_cute.score import evaluate
from avo_cute.task import find_task

from .conftest import bench_for, write_candidate


@pytest.fixture(scope="module")
def judged(shared_cache, tmp_path_factory):
    """The seed of the softmax on its five workloads: five objects of two classes."""
    bench = bench_for("softmax", "h200", "all", shared_cache)
    source = write_candidate(tmp_path_factory.mktemp("profiles") / "tree", {})
    verdict = evaluate(source, bench, None)
    assert len(set(verdict.objects.values())) == len(bench.workloads) == 5
    return bench, verdict


@pytest.fixture
def on_a_gpu(judged, tmp_path):
    """The bench with a rig whose one GPU is only a name."""
    try:
        find_runtime()
    except MachineFailed as error:
        pytest.skip(str(error))
    bench, verdict = judged
    libraries = tmp_path / "linked"
    devices = Devices((Gpu(0),), tmp_path / "devices")
    rig = Rig(devices, Setting("none"), libraries, Confinement("none"))
    return replace(bench, rig=rig), verdict


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """ncu(code): a stand-in on the PATH that is given `log`, `kernel` and the profiled `argv`."""

    def install(code):
        program = tmp_path / "bin" / "ncu"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            "after = lambda option: sys.argv[sys.argv.index(option) + 1]\n"
            "log, kernel = open(after('--log-file'), 'w'), after('--kernel-name')\n"
            "argv = sys.argv[sys.argv.index('--metrics') + 2 :]\n" + code
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)

    return install


PAGE = """
busy = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
log.write('"ID","Kernel Name","gpu__time_duration.sum","' + busy + '"\\n')
log.write('"","","ns","%"\\n"0","' + kernel + '","50000","41.5"\\n')
"""


def test_the_shortest_of_each_class_represents_a_candidate(judged):
    bench, verdict = judged
    chosen = representatives(verdict, bench)
    assert len(chosen) == OBJECTS == 2
    assert {w.class_name for w in chosen} == {"narrow", "wide"}
    work = find_task("softmax").reference.flops
    for w in chosen:
        alike = [o for o in bench.workloads if o.class_name == w.class_name]
        assert work(w.params) == min(work(o.params) for o in alike)


def test_workloads_of_one_object_are_told_about_once(judged):
    bench, verdict = judged
    one = verdict.objects["softmax-1k"]
    shared = replace(verdict, objects=dict.fromkeys(verdict.objects, one))
    assert len(representatives(shared, bench)) == 1
    text = profile_of(shared, bench)
    assert "the object of softmax-1k, softmax-2k, softmax-4k" in text
    assert text.count("SASS of ") == 1


def test_without_a_gpu_there_is_the_machine_code_and_one_line_why(judged):
    bench, verdict = judged
    text = profile_of(verdict, bench)
    assert (
        text.count("no counters: nothing is launched: no NVIDIA H200")
        == text.count("SASS of ")
        == 2
    )
    assert "LDG" in text and 500 < len(text.encode()) <= 4096


def test_a_candidate_without_objects_has_no_profile(judged):
    text = profile_of(Verdict(Status.BUILD_FAILED, "no such name"), judged[0])
    assert text == "nothing to profile: the candidate is build-failed and has no objects"


def test_counters_of_each_object_are_told(on_a_gpu, ncu, tmp_path):
    seen = tmp_path / "seen"
    ncu(
        "from pathlib import Path\n"
        "ask = json.loads((Path(argv[-1]) / 'request.json').read_text())\n"
        f"open({str(seen)!r}, 'a').write(json.dumps([argv, ask, kernel]) + '\\n')\n" + PAGE
    )
    bench, verdict = on_a_gpu
    text = profile_of(verdict, bench)
    assert text.count("counters of one launch (ncu): 0.05 ms") == 2
    assert text.count("busy, % of the peak rate: L2 41.5") == 2
    assert text.count("SASS of ") == 2 and len(text.encode()) <= 4096
    chosen = representatives(verdict, bench)
    told = [json.loads(line) for line in seen.read_text().splitlines()]
    for workload, (argv, ask, kernel) in zip(chosen, told, strict=True):
        assert argv[:4] == [sys.executable, "-I", "-W", "ignore"]
        assert ask["params"] == dict(workload.params) and ask["target"] == "h200"
        assert ask["library"].endswith(".so")
        assert kernel == verdict.launches[workload.name][0].kernel


def test_what_may_not_run_is_not_run(on_a_gpu, ncu, tmp_path):
    ncu(f"open({str(tmp_path / 'seen')!r}, 'w')\n" + PAGE)
    bench, verdict = on_a_gpu
    for status in (Status.CRASHED, Status.TIMED_OUT, Status.INCORRECT, Status.AUDIT_FAILED):
        text = profile_of(replace(verdict, status=status), bench)
        assert f"a candidate that is {status} is not launched" in text and "SASS of " in text
    assert not (tmp_path / "seen").exists()


def test_why_a_launch_failed_is_told_in_its_own_words(on_a_gpu, ncu):
    """Without CUDA the profiled process ends with a traceback: its last line is the reason."""
    ncu(
        "import subprocess\n"
        "done = subprocess.run(argv, capture_output=True, text=True)\n"
        "sys.stderr.write(done.stderr)\n"
        "log.write('==ERROR== The application returned an error code (1).\\n')\n"
    )
    import torch

    if torch.cuda.is_available():
        pytest.skip("CUDA is there: it would not fail")
    bench, verdict = on_a_gpu
    line = next(x for x in profile_of(verdict, bench).splitlines() if x.startswith("no counters"))
    assert "error code (1)" in line and ("CUDA" in line or "NVIDIA" in line)


@pytest.mark.gpu
def test_a_real_launch_is_profiled_or_says_why_not(judged, tmp_path):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from avo_cute.measure.devices import find_devices

    bench, verdict = judged
    gpus = find_devices("", bench.target.name)
    if not gpus:
        pytest.skip(f"objects for {bench.target.title} do not run here")
    from avo_cute.measure.rig import open_rig

    rig = open_rig(bench.task.directory, tmp_path, gpus, lambda text: None)
    text = profile_of(verdict, replace(bench, rig=rig))
    assert "SASS of " in text
    assert "counters of one launch" in text or "no counters: " in text
