"""The profile: what ncu prints becomes a digest, and the digest is there without ncu too.

The samples follow Nsight Compute's raw CSV page (a row of names, a row of units, a row per launch)
and its messages; the stand-in for ncu is a program that prints them.
"""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from avo_cute.build.sass import parse
from avo_cute.measure.profile import (
    DIGEST_BYTES,
    count,
    describe_counters,
    metric_names,
    ncu_command,
    parse_counters,
    profile,
    reason,
    unknown_metrics,
)
from avo_cute.records import Launch
from avo_cute.sandbox import Completed

KERNEL = "kernel_cutlass_kernel_flash_fwd_0"
LAUNCH = Launch(KERNEL, (4096, 1, 1), (384, 1, 1), (1, 1, 1), 200_000, False)
PIPE = "avg.pct_of_peak_sustained_elapsed"
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
H200 = {
    "dram__bytes_read.sum": ("byte", "268,435,456"),
    "dram__bytes_write.sum": ("byte", "134,217,728"),
    f"gpu__dram_throughput.{PIPE}": ("%", "2.51"),
    "gpu__time_duration.sum": ("ns", "3,325,120"),
    "launch__occupancy_limit_blocks": ("block", "32"),
    "launch__occupancy_limit_registers": ("block", "1"),
    "launch__occupancy_limit_shared_mem": ("block", "1"),
    "launch__registers_per_thread": ("register/thread", "168"),
    f"sm__pipe_tc_cycles_active.{PIPE}": ("%", "n/a"),
    f"sm__pipe_tensor_cycles_active.{PIPE}": ("%", "61.234"),
    f"sm__inst_executed_pipe_xu.{PIPE}": ("%", "38.5"),
    "sm__cycles_elapsed.max": ("cycle", "5,652,704"),
    STALLED.format("gmma"): ("inst", "6.00"),
    STALLED.format("barrier"): ("inst", "1.50"),
    STALLED.format("wait"): ("inst", "2.50"),
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum": ("sector", "0"),
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum": ("sector", "(!) n/a"),
}
ABOUT = {"ID": "0", "Process ID": "4711", "Kernel Name": KERNEL, "Block Size": "(384, 1, 1)"}
DENIED = """==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance \
Counters on the target device 0. For instructions see https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 4711
==WARNING== No kernels were profiled.
"""
SASS = f"""
.text.{KERNEL}:
        /*0000*/                   MOV R1, RZ ;
.L_x_0:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
        /*0020*/                   UIADD3 UR5, UR5, 0x1, URZ ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], !UPT ;
        /*0040*/                   UIADD3 UR5, UR5, 0x1, URZ ;
        /*0050*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0060*/                   FFMA R3, R3, R4, R5 ;
        /*0070*/                   MUFU.EX2 R3, R3 ;
        /*0080*/                   STL [R1+0x10], R3 ;
        /*0090*/               @P1 BRA `(.L_x_0) ;
.L_x_1:
        /*00a0*/                   LDG.E R3, desc[UR4][R6.64] ;
        /*00b0*/               @P2 BRA `(.L_x_1) ;
        /*00c0*/                   EXIT ;
"""


def raw_page(metrics, about=ABOUT) -> str:
    def row(cells):
        return ",".join(f'"{cell}"' for cell in cells) + "\n"

    names = row([*about, *metrics])
    units = row([*("" for _ in about), *(unit for unit, _ in metrics.values())])
    values = row([*about.values(), *(value for _, value in metrics.values())])
    return (
        "==PROF== Connected to process 4711 (/usr/bin/python3.12)\n"
        f'==PROF== Profiling "{KERNEL}" - 0: 0%....50%....100% - 38 passes\n'
        f"==PROF== Disconnected from process 4711\n{names}{units}{values}"
    )


def run(argv) -> Completed:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return Completed(done.returncode, done.stdout, done.stderr, False, 0.1, 0)


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """ncu(code): a stand-in on the PATH; `metrics`, `log` and `rest` are its arguments."""

    def install(code: str) -> None:
        program = tmp_path / "bin" / "ncu"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!{sys.executable}\nimport sys\n"
            "after = lambda option: sys.argv[sys.argv.index(option) + 1]\n"
            "metrics, log = after('--metrics').split(','), open(after('--log-file'), 'w')\n" + code
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)

    return install


@pytest.fixture
def no_ncu(monkeypatch):
    if Path("/usr/local/cuda/bin/ncu").exists():
        pytest.skip("this machine has a CUDA toolkit in its usual place")
    monkeypatch.setenv("PATH", "/nowhere")


def test_numbers_are_read_and_everything_else_is_left_out():
    values = parse_counters(raw_page(H200))
    assert values["dram__bytes_read.sum"] == 268435456
    assert values[f"sm__pipe_tensor_cycles_active.{PIPE}"] == 61.234
    assert f"sm__pipe_tc_cycles_active.{PIPE}" not in values
    assert "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum" not in values
    assert "Process ID" not in values
    assert len(values) == len(H200) - 2


@pytest.mark.parametrize("text", ["", DENIED, '"ID","Kernel Name"\n', "no CSV at all\n"])
def test_no_launch_gives_no_values(text):
    assert parse_counters(text) == {}


def test_the_digest_of_the_counters():
    text = describe_counters(parse_counters(raw_page(H200)))
    assert text.splitlines() == [
        "counters of one launch (ncu): 3.325 ms at 1.70 GHz; a profiled launch is no timing",
        "busy, % of the peak rate: tensor 61.2, xu (exp2) 38.5, DRAM 2.5",
        "waiting warps wait for: gmma 60%, wait 25%, barrier 15%",
        "memory: read 268.4 MB, written 134.2 MB",
        "residency: 1 blocks an SM by registers, 168 registers a thread at launch, "
        "local memory 0 sectors",
    ]


def test_on_blackwell_the_tensor_pipe_is_another_counter():
    found = {**H200, f"sm__pipe_tc_cycles_active.{PIPE}": ("%", "72.1")}
    found[f"sm__pipe_tensor_cycles_active.{PIPE}"] = ("%", "0.4")
    assert "tensor 72.1" in describe_counters(parse_counters(raw_page(found)))


def test_the_command_counts_one_launch_and_leaves_the_clocks_alone(tmp_path):
    log = tmp_path / "ncu.csv"
    words = ncu_command("ncu", ["python", "-I", "x.py"], KERNEL, ["a.sum", "b.sum"], log)
    assert words[-3:] == ["python", "-I", "x.py"]
    pairs = dict(pairwise(words))
    assert pairs["--clock-control"] == "none"
    assert pairs["--launch-count"] == "1"
    assert pairs["--kernel-name"] == KERNEL
    assert pairs["--metrics"] == "a.sum,b.sum"
    assert pairs["--log-file"] == str(log)


def test_metrics_are_asked_for_once_each():
    names = metric_names()
    assert len(set(names)) == len(names) < 64
    assert all(("__" in name and "." in name) or name.startswith("launch__") for name in names)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (DENIED, "NVreg_RestrictProfilingToAdminUsers"),
        ("==WARNING== No kernels were profiled.\n", "no launch of the kernel"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n", "profiling library"),
        ("==ERROR== The application returned an error code (11).\n", "error code (11)"),
        ("", "printed nothing"),
    ],
)
def test_why_there_are_no_counters(said, line):
    assert line in reason(said)
    assert "\n" not in reason(said)


def test_metrics_that_ncu_does_not_know_are_named_by_it():
    said = (
        "==ERROR== Failed to find metric sm__pipe_tc_cycles_active.avg\n==PROF== sm__issue_active"
    )
    assert unknown_metrics(said) == {f"sm__pipe_tc_cycles_active.{PIPE}"}


def test_a_launch_is_counted_without_the_unknown_metrics(ncu, tmp_path):
    page = raw_page({name: ("%", "50") for name in metric_names() if "tmem" not in name})
    ncu(
        "bad = [m for m in metrics if 'tmem' in m]\n"
        "[print('==ERROR== Failed to find metric', m, file=log) for m in bad]\n"
        f"bad or log.write({page!r})\nsys.exit(bool(bad))\n"
    )
    values = count(["true"], run, KERNEL, tmp_path / "log")
    assert isinstance(values, dict), values
    assert values[f"sm__issue_active.{PIPE}"] == 50
    assert len(values) == len(metric_names()) - 1


def test_a_refusal_is_not_tried_again(ncu, tmp_path):
    ncu(f"open({str(tmp_path / 'calls')!r}, 'a').write('x')\nlog.write({DENIED!r})\nsys.exit(1)\n")
    assert "NVreg_Restrict" in count(["true"], run, KERNEL, tmp_path / "log")
    assert (tmp_path / "calls").read_text() == "x"


def test_what_the_process_prints_is_no_counter(ncu, tmp_path):
    """The log is ncu's own: a page on stdout is somebody's text."""
    ncu(f"print({raw_page(H200)!r})\n")
    assert isinstance(count(["true"], run, KERNEL, tmp_path / "log"), str)


def test_a_digest_has_counters_and_the_hot_loop(ncu, tmp_path):
    ncu(f"log.write({raw_page(H200)!r})\n")
    found = profile(["true"], run, parse(SASS), LAUNCH, tmp_path / "log")
    assert found.why == ""
    assert found.counters["launch__registers_per_thread"] == 168
    assert found.text.startswith("counters of one launch")
    lines = found.text.splitlines()
    assert "loop at 0x10: 9 instructions: tensor 2, mufu 1, fma 1, local 1" in found.text
    order = lines[lines.index("the first of these loops, in order:") + 1 :]
    assert [line.strip() for line in order] == [
        "0x0010 SYNCS.PHASECHK.TRANS64.TRYWAIT",
        "0x0030 HGMMA.64x128x16.F32.BF16 x 2",
        "0x0060   mufu 1, fma 1",
        "0x0080 STL",
    ]


def test_without_ncu_one_line_says_so_and_the_loop_is_there(no_ncu, tmp_path):
    found = profile(["true"], run, parse(SASS), LAUNCH, tmp_path / "log")
    first, *rest = found.text.splitlines()
    assert first.startswith("no counters: ncu is not installed")
    assert found.counters == {}
    assert any("HGMMA.64x128x16.F32.BF16 x 2" in line for line in rest)


def test_a_digest_never_exceeds_4_kb(no_ncu, tmp_path):
    body = "".join(
        f"        /*{16 * n:04x}*/                   {op} R1, R2 ;\n"
        for n, op in enumerate(["HGMMA.64x128x16.F32.BF16", "FFMA"] * 2000)
    )
    text = f"\n.text.{KERNEL}:\n.L_x_0:\n{body}"
    text += f"        /*{16 * 4000:04x}*/               @P0 BRA `(.L_x_0) ;\n"
    text += f"        /*{16 * 4001:04x}*/                   EXIT ;\n"
    found = profile(["true"], run, parse(text), LAUNCH, tmp_path / "log")
    assert DIGEST_BYTES - 100 < len(found.text.encode()) <= DIGEST_BYTES
    assert found.text.splitlines()[-1].endswith("more lines")


def test_a_kernel_without_loops_is_shown_whole(no_ncu, tmp_path):
    text = f"\n.text.{KERNEL}:\n        /*0000*/                   LDG.E R1, [R2] ;\n"
    text += "        /*0010*/                   EXIT ;\n"
    found = profile(["true"], run, parse(text), LAUNCH, tmp_path / "log")
    assert "0x0000 LDG.E" in found.text
