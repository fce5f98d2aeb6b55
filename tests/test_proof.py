"""benchmarks/proof.py: its parts on a simulated GPU, and a page that follows from its numbers."""

import json
import random
import shutil
import sys
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from avo_cute.executor import LocalExecutor
from avo_cute.lineage import AttemptDraft, Lineage
from avo_cute.measure.devices import Gpu
from avo_cute.measure.process import Setting
from avo_cute.measure.request import Effort, Finding, Result, samples_of
from avo_cute.plan import seed_of
from avo_cute.records import Samples, Status
from avo_cute.score import evaluate
from avo_cute.target import find_target
from avo_cute.task import find_task

from .conftest import KERNEL, kernel_source
from .redteam.gpu.edits import Case

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
FEW = Effort(warm_s=0.0, rounds=20, families="none", large=False)
SEED_S = 1e-4


@pytest.fixture(scope="module", autouse=True)
def importable():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@dataclass
class Rig:
    """A GPU of invented times. `speeds` says how fast an arm is beside the others."""

    libraries: Path
    speeds: dict = field(default_factory=dict)
    noise: float = 0.001
    answer: Result | None = None  # where correctness is asked for
    asked: list = field(default_factory=list)
    calibrations: dict = field(default_factory=dict)
    calibration = None
    gpus = (Gpu(0, "GPU-simulated"),)
    trailer = "measure: simulated"
    setting = Setting("none")

    def link(self, objects):
        linked = {}
        for name, path in objects.items():
            library = self.libraries / f"{path.parent.name}-{path.name}.so"
            shutil.copyfile(path, library)
            linked[name] = str(library)
        return linked

    @contextmanager
    def held(self, wanted=None):
        yield self.gpus[0]

    def measure(self, request):
        self.asked.append(request)
        if request.effort.families != "none" and self.answer is not None:
            return self.answer
        rng = random.Random(request.seed)
        samples = tuple(
            self._samples(request, point, mode, rounds, rng)
            for point in request.points
            if point.role != "correctness-only"
            for mode, rounds in (
                ("sustained", request.effort.rounds),
                ("cold", request.effort.cold),
            )
            if rounds
        )
        facts = {"device": "Simulated GPU", "driver": "1.0", "torch": "2", "cuda": "13"}
        return Result(samples=samples, facts=facts, busy_s=0.8, timed_s=1.0, wall_s=2.0)

    def close(self):
        pass

    def _samples(self, request, point, mode, rounds, rng):
        times = {}
        for arm in (*request.kernels, *request.baselines):
            slow = request.delay if arm == "candidate" else 0.0
            mean = SEED_S * (1 + slow) / self.speeds.get(arm, 1.0)
            times[arm] = tuple(mean * rng.lognormvariate(0, self.noise) for _ in range(rounds))
        clocks = dict.fromkeys(times, (1500.0,) * rounds)
        void = ("",) * rounds
        return Samples(point.name, point.role, mode, request.seed, times, clocks, void)


@pytest.fixture
def ground(tmp_path, shared_cache):
    """The row softmax on a simulated H200."""
    import proof_ground

    for folder in ("linked", "out", "scratch"):
        (tmp_path / folder).mkdir()
    task = find_task("softmax")
    made = proof_ground.Ground(
        task,
        find_target("h200"),
        shared_cache,
        tmp_path / "out",
        LocalExecutor(2),
        Rig(tmp_path / "linked"),
        2,
        seed_of(task).files,
        tmp_path / "scratch",
    )
    yield made
    proof_ground.close_ground(made)


def told(part, data):
    import proof_page

    return "\n".join(proof_page.short(part, data))


def test_equal_kernels_are_compared_and_none_is_accepted(ground):
    import proof

    assert proof.measured_parts(ground, ["aa"]) == []
    data = json.loads((ground.out / "aa.json").read_text())
    assert len(data["processes"]) == 6 and len(ground.rig.asked) == 6
    assert len({r.seed for r in ground.rig.asked}) == 6
    kernels = ground.rig.asked[0].kernels
    assert kernels["candidate"] == kernels["incumbent"]
    for name, again in kernels["loaded-again"].items():
        assert again != kernels["candidate"][name]
        assert Path(again).read_bytes() == Path(kernels["candidate"][name]).read_bytes()
    found = data["comparisons"]
    assert len(found) >= 200
    assert len({(tuple(c["processes"]), tuple(c["pairs"])) for c in found}) == len(found)
    assert not any(c["status"] == "accepted" for c in found)
    assert all(c["rounds"] >= 60 for c in found)
    assert 0.0005 < data["spreads"]["within"] < 0.002
    assert data["spreads"]["between"] < data["spreads"]["within"]
    assert "None was accepted" in told("aa", data)
    assert ground.rig.calibrations  # what comes later knows this machine


def test_an_accepted_null_comparison_is_said(ground):
    """An arm that is 3 % faster than its equals must be seen, and must be told."""
    import proof_timing

    ground.rig.speeds = {"loaded-again": 1.03}
    data = proof_timing.aa_ruled(proof_timing.aa(ground, 6, FEW))
    accepted = sum(str(c["status"]) == "accepted" for c in data["comparisons"])
    assert accepted
    import proof_ground

    text = told("aa", proof_ground.plain(data))
    assert f"**{accepted} were accepted.**" in text and "None was accepted" not in text


def test_a_null_comparison_takes_its_margin_from_other_processes(ground):
    import proof_timing

    data = proof_timing.aa(ground, 6, FEW)
    processes = [[samples_of(s) for s in p["samples"]] for p in data["processes"]]
    lame = [
        replace(s, times={**s.times, "candidate": tuple(1.01 * t for t in s.times["candidate"])})
        for s in processes[5]
    ]
    found = proof_timing.null_comparisons([*processes[:5], lame], 60)
    without = [c["margin"] for c in found if 5 in c["processes"]]
    with_it = [c["margin"] for c in found if 5 not in c["processes"]]
    assert max(without) < 0.005 < min(with_it)


def test_arms_in_other_roles_meet_the_clock_rule():
    import proof_ground

    clocks = {"a": (1500.0, 1500.0, 1500.0), "b": (1510.0, 1560.0, float("nan"))}
    times = {"a": (1.0, 2.0, 3.0), "b": (4.0, 5.0, 6.0)}
    sample = Samples("w", "public", "sustained", 1, times, clocks, ("", "", "throttled"))
    found = proof_ground.relabelled(sample, "b", "a")
    assert found.times == {"candidate": (4.0, 5.0, 6.0), "incumbent": (1.0, 2.0, 3.0)}
    assert found.void == ("", "SM clocks apart", "throttled")


def test_known_delays_are_seen(ground):
    import proof

    assert proof.measured_parts(ground, ["detect"]) == []
    data = json.loads((ground.out / "detect.json").read_text())
    assert [r.delay for r in ground.rig.asked] == [0.0025, 0.005, 0.01, 0.02]
    for d in data["delays"]:
        assert d["low"] < d["seen"] < d["high"]
        assert d["seen"] == pytest.approx(d["delay"], abs=0.001)
    assert "Every delay was seen" in told("detect", data)
    data["delays"][1] |= {"seen": 0.0001, "low": -0.0002, "high": 0.0004}
    text = told("detect", data)
    assert "Every delay" not in text and "Not seen as what they are: 0.50%" in text
    data["delays"][0] |= {"seen": None, "low": None, "high": None}
    assert "0.25% (nothing valid)" in told("detect", data)


def test_the_table_has_every_public_workload(ground):
    import proof_timing

    ground.rig.speeds = {"candidate": 2.0}
    data = proof_timing.table(ground)
    assert [r["workload"] for r in data["rows"]] == [w.name for w in ground.task.workloads]
    for row in data["rows"]:
        assert row["sustained"]["seconds"]["candidate"] == pytest.approx(SEED_S / 2, rel=0.01)
        assert row["share"] == pytest.approx(row["floor_s"] / (SEED_S / 2), rel=0.01)
    assert not any("cold" in row for row in data["rows"])  # the default group has no own workloads
    assert told("table", data).count("softmax-") == 5


def test_the_table_shows_baselines_and_what_is_missing():
    flops, floor = 1e12, 2e-3
    mode = {
        "seconds": {"candidate": 4e-3, "cudnn": 8e-3, "fa2": None},
        "tflops": {"candidate": 250.0, "cudnn": 125.0},
        "mhz": {"candidate": 1400.0, "cudnn": None},
    }
    row = {"workload": "w", "group": "mha", "floor_s": floor, "flops": flops, "sustained": mode}
    text = told("table", {"rows": [{**row, "cold": mode}]})
    assert text.count("| w | 250 | 125 | – | 2.00 | – | 50% | 1400 |") == 2
    assert "Not available: w: fa2" in text


CASE = Case("case", "B", "does harm", (), Status.INCORRECT, "numbers", ("narrow",))


def judged(ground, case, text, answer=None):
    """One case through the red team, its source being the softmax with `text`."""
    from proof_redteam import Built, RedTeam

    ground.rig.answer = answer
    team = RedTeam(ground, [case], lane=lambda rig, number, limit_s: rig)
    bench = ground.bench(ground.task.select("narrow")[:1], alone=True)
    source = ground.source({KERNEL: text.encode()}, case.name)
    future = Future()
    future.set_result(Built(case, source, bench, evaluate(source, bench, None), 0.0))
    team.built[case.name] = future
    team.run()
    (row,) = json.loads((ground.out / "redteam.json").read_text())["cases"]
    return row


CHANGED = kernel_source().replace('"rows_per_cta": 1', '"rows_per_cta": 2')


def test_a_wrong_candidate_ends_as_the_process_says(ground):
    finding = Finding("w", "normal", 3.0, "relative error of out", 1e-2, 1e-3, "too large")
    wrong = Result(status="incorrect", reason="too large", findings=(finding,))
    row = judged(ground, CASE, CHANGED, wrong)
    assert row["status"] == "incorrect" and row["as_expected"] and row["comparisons"] == 1
    (request,) = ground.rig.asked
    assert request.effort.families == "all" and request.effort.large
    assert {p.role for p in request.points} == {"public", "correctness-only"}
    text = told("redteam", {"cases": [row], "lanes": 4, "hang_limit_s": 30.0})
    assert "none was accepted; 1 ended as they should" in text and "did not see" not in text


def test_a_wrong_candidate_that_passes_is_shown(ground):
    """Nothing hides it: the whole evaluation follows, and the page says what it says."""
    row = judged(ground, CASE, CHANGED)
    assert row["status"] == "passes" and not row["as_expected"] and row["then"] == "equal"
    text = told("redteam", {"cases": [row], "lanes": 4, "hang_limit_s": 30.0})
    assert "**Correctness did not see** case, in the end equal" in text
    row["then"] = "accepted"
    text = told("redteam", {"cases": [row], "lanes": 4, "hang_limit_s": 30.0})
    assert "**accepted: case**" in text


def test_judging_again_hides_nothing(ground):
    assert judged(ground, CASE, CHANGED)["then"] == "equal"
    row = judged(ground, CASE, CHANGED, Result(status="incorrect", reason="too large"))
    assert row["as_expected"] and row["earlier"] == ["equal"]
    text = told("redteam", {"cases": [row], "lanes": 4, "hang_limit_s": 30.0})
    assert "incorrect (in an earlier run equal)" in text and "**Judged more than once**" in text
    kept = judged(ground, CASE, CHANGED)  # as expected: not judged a third time
    assert kept == row


def test_what_does_not_build_is_not_measured(ground):
    row = judged(ground, CASE, "import nothing_of_that_name\n")
    assert row["status"] == "build-failed" and not row["as_expected"]
    assert not ground.rig.asked


def test_the_seed_again_is_no_change(ground):
    case = replace(CASE, ends=Status.NO_CHANGE)
    row = judged(ground, case, kernel_source() + "\n# a comment\n")
    assert row["status"] == "no-change" and row["as_expected"] and not ground.rig.asked


def test_an_evaluation_is_timed_by_level(ground):
    import proof_ground
    import proof_timing

    ground.rig.speeds = {"candidate": 1.0}
    data = proof_timing.limits(ground, {KERNEL: CHANGED.encode()}, "rows: two")
    data = proof_ground.plain(data)
    assert {n: v["processes"] for n, v in data["levels"].items()} == {"screening": 1, "commit": 3}
    assert all(v["busy"] == pytest.approx(0.8) for v in data["levels"].values())
    assert "within their limits" in told("limits", data)
    data["levels"]["commit"] |= {"wall_s": 121.0, "busy": 0.5}
    text = told("limits", data)
    assert "Over the limit: commit" in text and "less than 70 %: commit" in text


def result(seed_s, candidate_s, workloads, arms=("seed",)):
    """The raw answer of a process in which the candidate took `candidate_s`."""
    times = {"candidate": [candidate_s] * 3, **{arm: [seed_s] * 3 for arm in arms}}
    samples = [
        {"workload": w, "role": "public", "mode": "sustained", "times": times,
         "void": ["", "SM clocks apart: a 1 MHz", ""]}
        for w in workloads
    ]  # fmt: skip
    return {"samples": samples, "wall_s": 9.0, "timed_s": 2.0, "busy_s": 1.5}


@pytest.fixture
def lineage(tmp_path):
    """A run of three measured attempts, the second accepted; estimate and times disagree once."""
    task = find_task("softmax")
    made = Lineage.create(tmp_path / "out" / "lineage.git")
    start = made.init_seed("softmax", seed_of(task))
    made.start_run("proof", start, {"Task": "softmax", "Target": "h200", "Workloads": "narrow"})
    names = [w.name for w in task.select("narrow")]
    gains = {1: (0.98, 1.01), 2: (1.05, 1.03), 3: (1.02, 1.02)}  # measured, estimated
    common = {"Score-kind": "measured", "Level": "commit", "Device": "GPU"}
    zero = {"Cycles": "1000 1000 1000"}
    draft(made, start, 0, Status.NO_CHANGE, zero)
    parent, raw = start, {}
    for number, (seen, estimated) in gains.items():
        cycles = " ".join([f"{1000 / estimated:.3f}"] * 3)
        facts = {**common, "Cycles": cycles, "Score": f"{seen}", "Gain": f"{seen} 1.0 1.1"}
        facts |= {"Score-interval": f"{seen - 0.01} {seen + 0.01}", "Hidden": f"{seen} 4"}
        status = Status.ACCEPTED if number == 2 else Status.REJECTED
        attempt = draft(made, parent, number, status, facts)
        parent = attempt.commit if number == 2 else parent
        arms = ("incumbent",) if number < 3 else ("incumbent", "seed")
        raw[f"attempt-{number:04d}.json"] = json.dumps(
            [result(1e-3, 1e-3 / seen, names, arms)] * (1 if number != 2 else 3)
        ).encode()
    made.record_transcript("proof", 1, {"transcript.jsonl": b"", **raw})
    return made


def draft(lineage, parent, number, status, facts):
    seen = f"What was seen: {status}: told"
    return lineage.record(
        AttemptDraft("proof", lineage.tree(parent), parent, status, f"Try {number}", seen, facts,
                     number)
    )  # fmt: skip


def kept(lineage, **command):
    import proof_run

    began = min(a.when for a in lineage.attempts("proof"))
    facts = {"code": 0, "began": began, "seconds": 60.0, "stopped": False, **command}
    return {"target": "h200", "command": facts, **proof_run.told(lineage, "proof")}


def test_a_run_is_told_from_its_lineage(lineage):
    data = kept(lineage)
    text = told("evolve", data)
    assert "3 attempts in 60 s, 180 an hour" in text
    assert "Best: attempt 2, +5.00% over the seed, head to head" in text
    assert "at least +4.00%" in text and "+5.00% on 4" in text
    assert "GPU busy in 75% of the timing" in text and "SM clocks apart" in text
    assert data["attempts"][2]["against_seed"]["softmax-1k"] == pytest.approx(0.04879, abs=1e-4)
    assert "told" in data["attempts"][1]["seen"]
    assert "It ended with exit code 3" in told("evolve", kept(lineage, code=3))
    assert "stopped for lack of time" in told("evolve", kept(lineage, stopped=True))


def test_the_static_estimate_is_ranked_against_what_was_measured(lineage):
    import proof_run

    found = proof_run.rank_correlation(kept(lineage))
    assert found["all"] == {"n": 3, "spearman": pytest.approx(1.0)}
    data = kept(lineage)
    data["attempts"][1]["cycles"] = [900.0] * 3  # the slowest, by the estimate the fastest
    assert proof_run.rank_correlation(data)["all"]["spearman"] == pytest.approx(-0.5)


def test_nothing_accepted_is_said(lineage):
    data = kept(lineage)
    data["attempts"] = [a for a in data["attempts"] if a["status"] != "accepted"]
    assert "**Nothing was accepted.**" in told("evolve", data)


def test_a_verification_is_told_as_it_ended():
    said = {"attempt": 7, "artifact_equal": True, "why": "",
            "gain_interval": {"value": 1.01, "low": 1.005, "high": 1.02}}  # fmt: skip
    command = {"code": 0, "seconds": 80.0}
    text = told("verify", {"said": said, "command": command})
    assert "the record holds" in text and "+1.00% [+0.50%, +2.00%]" in text
    failed = {"said": {**said, "why": "the gain does not hold"}, "command": {**command, "code": 1}}
    assert "**it does not hold** (exit 1): the gain does not hold" in told("verify", failed)


def test_the_start_of_another_group_says_what_carried_over(lineage):
    data = {**kept(lineage), "group": "gqa"}
    start = {**data["attempts"][0], "score": 1.02, "score_interval": "1.01 1.03",
             "score_kind": "measured", "gains": [1.01, 1.02, 1.03]}  # fmt: skip
    text = told("gqa", {**data, "attempts": [start, *data["attempts"][1:]]})
    assert "unchanged, it is +2.00% [+1.00%, +3.00%] over the seed" in text
    assert "| softmax-4k | +3.00% |" in text
    assert "No attempt was made" in told("gqa", {**data, "attempts": [start]})
    lost = told("gqa", {**data, "attempts": [], "why": "does not pass"})
    assert "did not get as far as its start**: does not pass" in lost


def test_the_page_has_what_was_run_and_says_what_was_not(ground, tmp_path):
    import proof
    import proof_page

    assert proof.measured_parts(ground, ["detect"]) == []
    page = proof_page.write(ground.out, tmp_path / "results")
    assert page == tmp_path / "results" / "h200.md"
    text = page.read_text()
    assert text.startswith("# Measured on Simulated GPU\n") and "driver 1.0" in text
    assert text.count("Not run.") == len(proof_page.PARTS) - 1
    assert "## What this does not show" in text and "One machine" in text
    kept = json.loads((tmp_path / "results" / "h200" / "detect.json").read_text())
    assert len(kept["delays"]) == 4
    assert str(tmp_path) not in text and str(BENCHMARKS.parent) not in text


def test_no_page_of_nothing(tmp_path):
    import proof_page

    with pytest.raises(SystemExit, match="holds no part"):
        proof_page.write(tmp_path, tmp_path)


def test_a_part_that_fails_does_not_stop_the_others(capfd):
    import proof

    seen = []

    def fail():
        raise ValueError("by design")

    assert proof._attempted({"bad": fail, "good": lambda: seen.append(1)}) == ["bad"]
    assert seen == [1] and "by design" in capfd.readouterr().err
