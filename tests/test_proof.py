"""benchmarks/proof.py: its parts on a simulated GPU, and a page that follows from its numbers."""

import json
import random
import shutil
import subprocess
import sys
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from avo_cute import transcripts
from avo_cute.errors import MachineFailed
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
    fails: dict = field(default_factory=dict)  # number of the process, from 1 -> what is raised
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
        if len(self.asked) in self.fails:
            raise self.fails[len(self.asked)]
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
        facts |= {f"waited {p.name}": request.delay * SEED_S for p in request.points}
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


def test_a_process_that_fails_is_replaced_and_told(ground):
    import proof

    ground.rig.fails = {2: MachineFailed("the GPU was away")}
    assert proof.measured_parts(ground, ["aa"]) == []
    data = json.loads((ground.out / "aa.json").read_text())
    assert len(data["processes"]) == 6 and data["lost"] == ["the GPU was away"]
    assert "**1 processes failed**: the GPU was away" in told("aa", data)


def test_too_few_processes_decide_nothing_and_stop_nothing(ground, capfd):
    import proof

    ground.rig.fails = {n: MachineFailed("the GPU was away") for n in range(3, 9)}
    assert proof.measured_parts(ground, ["aa", "detect"]) == ["aa"]
    data = json.loads((ground.out / "aa.json").read_text())
    assert len(data["processes"]) == 2 and "comparisons" not in data
    text = told("aa", data)
    assert "2 processes were measured and nothing was decided" in text and "None was" not in text
    assert len(json.loads((ground.out / "detect.json").read_text())["delays"]) == 4


def test_both_kinds_of_equal_objects_are_compared(ground):
    import proof_ground
    import proof_timing

    data = proof_ground.plain(proof_timing.aa_ruled(proof_timing.aa(ground, 6, FEW)))
    kinds = [c["kind"] for c in data["comparisons"]]
    assert kinds.count("the same library") == 150 and len(kinds) == 300
    for c in data["comparisons"]:
        copied = ["loaded-again" in pair for pair in c["pairs"]]
        assert all(copied) if c["kind"] != "the same library" else not any(copied)
    assert "| the library and its copy | 150 | 0 |" in told("aa", data)


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
    assert [r.delay for r in ground.rig.asked] == [0.02, 0.01, 0.005, 0.0025]
    assert {len(r.points) for r in ground.rig.asked} == {len(data["workloads"])}
    for d in data["delays"]:
        assert d["low"] < d["seen"] < d["high"]
        assert d["seen"] == pytest.approx(d["delay"], abs=0.001)
    assert "Every delay was seen" in told("detect", data)
    text = told("detect", {**data, "delays": [{**d, "waited": None} for d in data["delays"]]})
    assert "was not kept: 2.00%, 1.00%, 0.50%, 0.25%" in text
    assert "Every delay" not in text and "Not seen" not in text
    data["delays"][2] |= {"seen": 0.0001, "low": -0.0002, "high": 0.0004}
    text = told("detect", data)
    assert "Every delay" not in text and "Not seen as what they are: 0.50%" in text
    data["delays"][3] |= {"seen": None, "low": None, "high": None}
    assert "0.25% (nothing valid)" in told("detect", data)


def test_a_delay_that_fails_costs_the_others_nothing(ground):
    import proof

    ground.rig.fails = {2: MachineFailed("the GPU was away")}
    assert proof.measured_parts(ground, ["detect"]) == []
    data = json.loads((ground.out / "detect.json").read_text())
    text = told("detect", data)
    assert "1.00% (nothing valid)" in text and "| 0.25% |" in text and "Every delay" not in text
    assert "Not run" not in text
    cut_short = {**data, "delays": data["delays"][:1]}
    text = told("detect", cut_short)
    assert "Every delay that was run was seen" in text
    assert "**Not run: 0.25%, 0.50%, 1.00%.**" in text


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


def test_a_group_that_fails_costs_the_others_nothing(ground):
    import proof_timing

    ground.rig.fails = {1: MachineFailed("out of memory")}
    data = proof_timing.table(ground)
    assert data["rows"] and len(data["rows"]) < len(data["planned"])
    missing = len(data["planned"]) - len(data["rows"])
    text = told("table", data)
    assert f"**Not timed: {missing} of {len(data['planned'])} workloads**" in text
    assert "out of memory" in text
    assert told("table", {**data, "rows": []}).startswith("Not run: ")


def test_the_table_shows_baselines_and_what_is_missing():
    flops, floor = 1e12, 2e-3
    mode = {
        "seconds": {"candidate": 4e-3, "cudnn": 8e-3, "fa2": None},
        "tflops": {"candidate": 250.0, "cudnn": 125.0},
        "mhz": {"candidate": 1400.0, "cudnn": None},
    }
    row = {"workload": "w", "group": "mha", "floor_s": floor, "flops": flops, "sustained": mode}
    times = {"candidate": [4e-3, 4e-3, 5e-3], "cudnn": [8e-3, 6e-3, 12e-3]}
    samples = [{"workload": "w", "mode": m, "times": times} for m in ("sustained", "cold")]
    data = {"rows": [{**row, "cold": mode}], "raw": {"mha": {"samples": samples}}}
    text = told("table", data)
    assert text.count("| w | 250 | 125 | – | 2.00 (1.50–2.40) | – | 50% | 1400 |") == 2
    assert "| w | 250 | 125 | – | – | – | 50% |" in told("table", {"rows": data["rows"]})
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
    name = ground.task.select("narrow")[0].name
    finding = Finding(name, "normal", 3.0, "relative error of out", 1e-2, 1e-3, "too large")
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


def test_what_was_not_judged_is_said(ground):
    """A case that fails in our own code, one that the time does not reach: the rest is kept."""
    from proof_redteam import Built, RedTeam

    cases = [replace(CASE, name=name) for name in ("right", "broken", "late")]
    ground.rig.answer = Result(status="incorrect", reason="too large")
    team = RedTeam(ground, cases, lane=lambda rig, number, limit_s: rig)
    bench = ground.bench(ground.task.select("narrow")[:1], alone=True)
    source = ground.source({KERNEL: CHANGED.encode()}, "right")
    verdict = evaluate(source, bench, None)
    team.built = {name: Future() for name in ("right", "broken", "late")}
    team.built["right"].set_result(Built(cases[0], source, bench, verdict, 0.0))
    team.built["broken"].set_exception(LookupError("no such line"))
    team.until = proof_passed() + 1.0
    with pytest.raises(MachineFailed, match="broken: LookupError: no such line"):
        team.run()
    data = json.loads((ground.out / "redteam.json").read_text())
    assert [row["case"] for row in data["cases"]] == ["right"]
    text = told("redteam", data)
    assert "**Not judged: 2 of 3** (broken, late)" in text
    assert "No honest variant was judged" in text
    assert team.built["late"].cancelled()


def proof_passed():
    import proof_ground

    return proof_ground.passed()


def test_a_machine_that_failed_is_no_success_of_a_case(ground):
    ground.rig.fails = {1: MachineFailed("the GPU was away")}
    row = judged(ground, CASE, CHANGED)
    assert row["status"] == "infra-error" and not row["as_expected"]
    text = told("redteam", {"cases": [row], "lanes": 4, "hang_limit_s": 30.0})
    assert "**Nobody can say** (the machine failed): case" in text


def test_judging_again_hides_nothing(ground):
    assert judged(ground, CASE, CHANGED)["then"] == "equal"
    row = judged(ground, CASE, CHANGED, Result(status="incorrect", reason="too large"))
    assert row["as_expected"] and row["earlier"] == ["equal"]
    text = told("redteam", {"cases": [row], "lanes": 4, "hang_limit_s": 30.0})
    assert "incorrect (in an earlier run equal)" in text and "**Judged more than once**" in text
    kept = judged(ground, CASE, CHANGED)  # as expected: not judged a third time
    assert kept == row


def test_a_bad_end_is_kept_until_the_case_is_judged_again(ground):
    from proof_redteam import RedTeam

    row = judged(ground, CASE, CHANGED)
    assert row["status"] == "passes"
    late = RedTeam(ground, [CASE], lane=lambda rig, number, limit_s: rig, until=0.0)
    late.built[CASE.name] = Future()
    late.run()
    assert json.loads((ground.out / "redteam.json").read_text())["cases"] == [row]


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
    import proof_limits

    ground.rig.speeds = {"candidate": 1.0}
    data = proof_limits.limits(ground, {KERNEL: CHANGED.encode()}, "rows: two")
    data = proof_ground.plain(data)
    assert {n: v["processes"] for n, v in data["levels"].items()} == {"screening": 1, "commit": 3}
    assert all(v["busy"] == pytest.approx(0.8) for v in data["levels"].values())
    assert "within their limits" in told("limits", data)
    data["levels"]["commit"] |= {"wall_s": 121.0, "busy": 0.5}
    text = told("limits", data)
    assert "Over the limit: commit" in text and "less than 70 %: commit" in text
    data["levels"]["commit"] = {"wall_s": 1.0, "processes": 0, "timed_s": 0, "after_s": 0}
    data["levels"]["screening"]["busy"] = None
    text = told("limits", data)
    assert "**Not reached: commit.**" in text and "within their limits" not in text
    assert "less than 70 %: screening" in text


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
    transcripts.keep(made.repo, "proof", 1, {"transcript.jsonl": b"", **raw}, {})
    return made


def draft(lineage, parent, number, status, facts):
    seen = f"What was seen: {status}: told"
    return lineage.record(
        AttemptDraft("proof", lineage.tree(parent), parent, status, f"Try {number}", seen, facts,
                     number)
    )  # fmt: skip


def kept(lineage, **command):
    import proof_lineage

    began = min(a.when for a in lineage.attempts("proof"))
    facts = {"code": 0, "began": began, "seconds": 60.0, "stopped": False, **command}
    return {"target": "h200", "command": facts, **proof_lineage.run_of(lineage, "proof")}


def test_a_run_is_told_from_its_lineage(lineage):
    data = kept(lineage)
    text = told("evolve", data)
    assert "3 attempts in 60 s, 180 an hour" in text
    assert "Best: attempt 2, +5.00% over the seed, head to head" in text
    assert "lower bound within its processes +4.00% (99.5 %)" in text and "+5.00% on 4" in text
    assert "GPU busy in 75% of the timing" in text and "SM clocks apart" in text
    assert data["attempts"][2]["against_seed"]["softmax-1k"] == pytest.approx(0.04879, abs=1e-4)
    assert "told" in data["attempts"][1]["seen"]
    assert "It ended with exit code 3" in told("evolve", kept(lineage, code=3))
    assert "stopped for lack of time" in told("evolve", kept(lineage, stopped=True))


def test_the_static_estimate_is_ranked_against_what_was_measured(lineage):
    import proof_lineage

    found = proof_lineage.rank_correlation(kept(lineage))
    assert found["all"] == {"n": 3, "spearman": pytest.approx(1.0)}
    data = kept(lineage)
    data["attempts"][1]["cycles"] = [900.0] * 3  # the slowest, by the estimate the fastest
    assert proof_lineage.rank_correlation(data)["all"]["spearman"] == pytest.approx(-0.5)


def test_nothing_accepted_is_said(lineage):
    data = kept(lineage)
    data["attempts"] = [a for a in data["attempts"] if a["status"] != "accepted"]
    assert "**Nothing was accepted.**" in told("evolve", data)


def test_a_verification_is_told_as_it_ended():
    said = {"attempt": 7, "artifact_equal": True, "why": "", "holds": True, "measured_now": True,
            "gain_interval": {"value": 1.01, "low": 1.005, "high": 1.02}}  # fmt: skip
    command = {"code": 0, "seconds": 80.0}
    text = told("verify", {"said": said, "command": command})
    assert "the record holds" in text and "+1.00% [+0.50%, +2.00%]" in text
    assert "measured it again" in text
    bad = {**said, "holds": False, "why": "the gain does not hold"}
    failed = {"said": bad, "command": {**command, "code": 1}}
    assert "**it does not hold** (exit 1): the gain does not hold" in told("verify", failed)
    blind = told("verify", {"said": {**said, "measured_now": False}, "command": command})
    assert "**measured nothing**" in blind and "measured it again" not in blind


@pytest.mark.parametrize(
    ("code", "stopped", "said"), [(3, False, "this machine"), (130, True, "lack of time")]
)
def test_a_verification_without_an_answer_claims_nothing(code, stopped, said):
    command = {"code": code, "seconds": 9.0, "stopped": stopped}
    text = told("verify", {"said": {"text": "this machine failed"}, "command": command})
    assert f"gave no answer** (exit {code} after 9 s)" in text and said in text
    assert "hold" not in text
    nothing = told("verify", {"why": "nothing was accepted"})
    assert nothing == "Not run: nothing was accepted."


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
    assert text.startswith("# Measured on Simulated GPU\n") and "| 1.0 | 2 |" in text
    assert text.count("Not run.") == len(proof_page.PARTS) - len(proof_page.OPTIONAL) - 1
    assert "**Not run: `aa`, `table`" in text
    assert "## What this does not show" in text and "Not recorded is which GPU ran detect" in text
    kept = json.loads((tmp_path / "results" / "h200" / "detect.json").read_text())
    assert len(kept["delays"]) == 4
    assert str(tmp_path) not in text and str(BENCHMARKS.parent) not in text


def test_the_page_of_what_is_there_already(tmp_path):
    """Real figures of an earlier state of the parts: nothing may be claimed that they lack."""
    import proof_page

    kept = tmp_path / "kept"
    shutil.copytree(BENCHMARKS.parent / "docs" / "results" / "h200", kept)
    for path in kept.glob("*.json"):
        if path.stem not in ("aa", "table"):
            path.unlink()
        else:
            path.chmod(0o444)
    text = proof_page.write(kept, tmp_path / "results").read_text()
    assert text.startswith("# Measured on NVIDIA H200\n")
    assert "None was accepted" in text and "mha-causal-32k" in text
    assert "**Not run: `detect`, `redteam`, `limits`, `evolve`, `verify`, `gqa`.**" in text
    assert "cannot be shown" not in text
    again = proof_page.write(tmp_path / "results" / "h200", tmp_path / "results").read_text()
    assert again == text


def test_a_part_that_cannot_be_shown_costs_the_others_nothing(tmp_path):
    import proof_ground
    import proof_page

    proof_ground.save(tmp_path / "detect.json", {"target": "h200", "delays": [{}]})
    proof_ground.save(tmp_path / "redteam.json", {"target": "h200", "cases": [], "why": "no time"})
    text = proof_page.write(tmp_path, tmp_path / "results").read_text()
    assert "**Its JSON is not whole and cannot be shown** (KeyError" in text
    assert "Not run: no time." in text


SURROUNDINGS = {"when": "2026-12-02T10:00:00Z", "device": "NVIDIA H200", "driver": "580.1",
                "torch": "2.11", "toolchain": "dsl 4"}  # fmt: skip


def test_the_page_says_where_each_part_ran():
    import proof_about

    here = {"sources": proof_about.sources(proof_about.ROOT), "commit": "c" * 40}
    one = {**SURROUNDINGS, "gpu": "GPU-aaaaaaaa-1", "commit": "d" * 40, "sources": "s" * 64}
    other = {**one, "gpu": "GPU-bbbbbbbb-2", "commit": ""}
    text = "\n".join(proof_about.setting({"aa": one, "detect": one}))
    assert text.startswith("One GPU ran all of it.") and f"| {'d' * 12} |" in text
    assert "| aa | 2026-12-02T10:00:00Z | NVIDIA H200 | GPU-aaaaaaaa | 580.1 | 2.11 |" in text
    text = "\n".join(proof_about.setting({"aa": one, "detect": other}))
    assert text.startswith("2 GPUs of the model ran it") and f"| files {'s' * 12} |" in text
    text = "\n".join(proof_about.setting({"aa": one, "table": {"when": "x"}}))
    assert text.startswith("Not recorded is which GPU ran table") and "not recorded |" in text
    same = {**other, "sources": here["sources"]}
    assert proof_about._commit(same, here) == "c" * 12


def test_a_copy_is_known_by_its_files_and_a_checkout_by_its_commit(tmp_path):
    import proof_about

    for name in ("engine/avo_cute/a.py", "seeds/fa4/task.toml", "benchmarks/proof_page.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    first = proof_about.sources(tmp_path)
    assert proof_about.commit(tmp_path) == ""
    (tmp_path / "benchmarks" / "proof_page.py").write_text("2")  # shows, and measures nothing
    assert proof_about.sources(tmp_path) == first
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    assert len(proof_about.commit(tmp_path)) == 40
    (tmp_path / "engine/avo_cute/a.py").write_text("2")
    assert proof_about.commit(tmp_path) == "" and proof_about.sources(tmp_path) != first


def test_a_run_is_kept_while_it_goes_on_and_told_as_unfinished(lineage, monkeypatch):
    """Whoever ends us by force loses what came after the last look."""
    import proof_run

    out = Path(lineage.path).parent
    monkeypatch.setattr(proof_run, "KEEP_S", 0.02)
    kept = []

    def keep(told):
        proof_run._keep(out, "evolve", "proof", {"target": "h200", "command": told})
        kept.append(json.loads((out / "evolve.json").read_text()))

    told_last = proof_run._command(["log"], out / "none.git", out / "log", 1e6, keep)
    keep(told_last)
    assert kept[0]["command"]["code"] is None and len(kept[0]["attempts"]) == 4
    assert "It was still running when this was kept" in told("evolve", kept[0])
    assert kept[-1]["command"]["code"] is not None


def test_a_lineage_comes_back_from_its_bundle(lineage, tmp_path):
    import proof_run

    out = Path(lineage.path).parent
    attempts = lineage.attempts("proof")
    proof_run._bundle(out)
    shutil.rmtree(lineage.path)
    again = proof_run._lineage(out)
    assert [a.commit for a in again.attempts("proof")] == [a.commit for a in attempts]
    assert again.repo.refs("refs/sessions/proof")
    with again.lock():  # it can go on
        pass
    assert proof_run._lineage(tmp_path / "nowhere") is None


def test_without_a_word_the_parts_of_ten_minutes_are_run(monkeypatch):
    import proof

    monkeypatch.setattr(sys, "argv", ["proof.py"])
    assert proof._options().part == ["aa", "detect", "table", "limits"]
    monkeypatch.setattr(sys, "argv", ["proof.py", "redteam", "tables"])
    with pytest.raises(SystemExit):
        proof._options()


def test_a_machine_that_does_not_start_fails_its_parts_and_no_more(tmp_path, monkeypatch, capfd):
    import proof

    def none(out, jobs):
        raise MachineFailed("no GPU to measure on")

    monkeypatch.setattr(proof, "open_ground", none)
    assert proof.measure(["aa", "limits"], tmp_path, 2, 590.0) == ["aa", "limits"]
    assert "no GPU to measure on" in capfd.readouterr().err


def test_a_seed_that_failed_to_build_is_built_again(ground, monkeypatch):
    import proof_ground

    bench = ground.bench(ground.task.select("narrow"))
    whole, tries = proof_ground.evaluate, []

    def evaluate_once_bad(*words):
        tries.append(words)
        if len(tries) == 1:
            raise MachineFailed("disk full")
        return whole(*words)

    monkeypatch.setattr(proof_ground, "evaluate", evaluate_once_bad)
    with pytest.raises(MachineFailed):
        ground.seed(bench)
    assert ground.seed(bench) is ground.seed(bench) and len(tries) == 2


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
