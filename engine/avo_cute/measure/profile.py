"""A profile for an operator: what the hardware counted during one launch, and the hot loop.

Counters come from Nsight Compute (`ncu`), which replays one launch of a trusted process that holds
the candidate's linked object. Where counters are not to be had the digest says why in one line;
the part about the machine code is always there. Nothing here decides anything.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..build.sass import Kernel
from ..gpu import cuda_tool
from ..records import Launch
from ..sandbox import Completed
from .hotloop import describe_loops
from .profiling import WARM

DIGEST_BYTES = 4096
Start = Callable[[Sequence[str]], Completed]  # runs a command to its end and tells how it went


@dataclass(frozen=True, slots=True)
class Profile:
    """`text` is the digest, at most 4 kB. `counters` maps ncu's metric names to values in base
    units (bytes, nanoseconds, %); it is empty where `why` says why there are none."""

    text: str
    counters: Mapping[str, float]
    why: str


def profile(
    argv: Sequence[str],
    start: Start,
    kernels: Sequence[Kernel],
    launch: Launch,
    log: Path,
    room: int = DIGEST_BYTES,
) -> Profile:
    """Profile the launch of `launch.kernel` after `WARM` others in the process that `argv` starts.

    `start` runs commands, `log` is a file that both they and we can reach. `kernels` are those of
    the object's cubin, `room` the bytes of the digest. Never raises for what ncu does or does not.
    """
    found = count(argv, start, launch.kernel, log)
    counters, why = ({}, found) if isinstance(found, str) else (found, "")
    head = f"no counters: {why}" if why else describe_counters(counters)
    text = head + "\n" + describe_loops(kernels, launch, room - len(head.encode()) - 1)
    return Profile(text, counters, why)


def count(argv: Sequence[str], start: Start, kernel: str, log: Path) -> dict[str, float] | str:
    """ncu's counters of one launch, by metric name, or one line that says why there are none.

    Metrics that this GPU or this ncu does not know are left out.
    """
    ncu = cuda_tool("ncu")
    if ncu is None:
        return "ncu is not installed (Nsight Compute, part of the CUDA toolkit)"
    names = metric_names()
    said = ""
    for _ in range(_TRIES):
        log.unlink(missing_ok=True)
        done = start(ncu_command(ncu, argv, kernel, names, log))
        said = log.read_text(errors="replace") if log.is_file() else ""
        if values := parse_counters(said):
            return values
        said += done.stdout + done.stderr
        known = [name for name in names if name not in unknown_metrics(said)]
        if done.timed_out or len(known) in (0, len(names)):
            return "ncu was not done in time" if done.timed_out else reason(said)
        names = known
    return reason(said)


_TRIES = 3  # ncu may name the metrics it does not know one at a time, but it names families


def ncu_command(
    ncu: str, argv: Sequence[str], kernel: str, names: Sequence[str], log: Path
) -> list[str]:
    """ncu over one launch of one kernel. Clocks are left alone: they are part of what is measured.

    Its output goes to `log`, apart from whatever the process prints.
    """
    output = ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
    which = ["--kernel-name-base", "mangled", "--kernel-name", kernel]
    one = ["--launch-skip", str(WARM), "--launch-count", "1"]
    how = ["--clock-control", "none", "--target-processes", "all", "--metrics", ",".join(names)]
    return [ncu, *output, *which, *one, *how, *argv]


def parse_counters(text: str) -> dict[str, float]:
    """The first launch in the output of `ncu --csv --page raw`; empty where there is none.

    A row of names, a row of units, a row per launch; ncu's own remarks stand before and between.
    What is not a number (n/a, names, tuples) is left out.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID",')), None)
    rows = [] if start is None else list(csv.reader(lines[start : start + 3]))
    if len(rows) < 3:
        return {}
    pairs = zip(rows[0], rows[2], strict=False)
    values = {name: _number(value) for name, value in pairs if "__" in name}
    return {name: value for name, value in values.items() if value is not None}


def unknown_metrics(text: str) -> set[str]:
    """Names of ours that ncu complains about."""
    complaints = "\n".join(line for line in text.splitlines() if _COMPLAINT.search(line))
    return {name for name in metric_names() if name in complaints or _base(name) in complaints}


def reason(text: str) -> str:
    """One line from what ncu printed when it counted nothing."""
    for mark, line in _REASONS:
        if mark in text:
            return line
    remarks = [line for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
    first = remarks[0].split("==")[2].strip() if remarks else "it printed nothing"
    others = [line.strip() for line in text.splitlines() if line.strip() and line[:2] != "=="]
    last = f" {others[-1]}" if others and "application" in first else ""  # of a traceback
    return f"ncu counted nothing: {first}{last}"[:200]


_REASONS = (
    (
        "ERR_NVGPUCTRPERM",
        "this user may not read the GPU's counters: set the driver option "
        "NVreg_RestrictProfilingToAdminUsers=0, or run as root",
    ),
    ("LibraryNotLoaded", "ncu cannot load the driver's profiling library on this machine"),
    ("No kernels were profiled", "ncu saw no launch of the kernel"),
    ("ERR_NVGPUCTRBUSY", "another profiler holds the GPU's counters"),
)
_COMPLAINT = re.compile(r"==(ERROR|WARNING)==|[Ff]ailed to find|not found|[Uu]nknown metric")


def _base(name: str) -> str:
    return name.partition(".")[0]


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if value == value else None


_PIPE = ".avg.pct_of_peak_sustained_elapsed"

# What is shown -> ncu's names for it, which differ between GPUs; the largest that is known counts.
# Sources: Nsight Compute's profiling guide and its per-chip list (`ncu --query-metrics --chips
# gh100,gb100`): tcgen05 has a pipe of its own (`tc`), fma is split in two from sm_90 on.
_BUSY = {
    "tensor": ("sm__pipe_tc_cycles_active", "sm__pipe_tensor_cycles_active"),
    "fma": ("sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma"),
    "alu": ("sm__pipe_alu_cycles_active", "sm__inst_executed_pipe_alu"),
    "xu (exp2)": ("sm__inst_executed_pipe_xu",),
    "lsu": ("sm__inst_executed_pipe_lsu",),
    "tma": ("sm__pipe_tma_cycles_active", "sm__inst_executed_pipe_tma"),
    "tmem": ("sm__mem_tensor_cycles_active", "sm__inst_executed_pipe_tmem"),
    "issue slots": ("sm__issue_active",),
    "L2": ("lts__throughput",),
    "DRAM": ("gpu__dram_throughput", "dram__throughput"),
}
_STALLS = (
    "long_scoreboard short_scoreboard wait barrier gmma math_pipe_throttle mio_throttle "
    "lg_throttle tex_throttle membar sleeping branch_resolving no_instruction dispatch_stall "
    "imc_miss drain misc not_selected"
).split()
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_TIME, _CYCLES = "gpu__time_duration.sum", "sm__cycles_elapsed.max"
_READ, _WRITTEN, _HITS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sector_hit_rate.pct",
)
_WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
_REGISTERS, _WAVES = "launch__registers_per_thread", "launch__waves_per_multiprocessor"
_LIMITS = {
    n: f"launch__occupancy_limit_{n}" for n in ("registers", "shared_mem", "warps", "blocks")
}
_LOCAL = tuple(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st"))
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"


def metric_names() -> list[str]:
    """Every metric that is asked for."""
    busy = [name + _PIPE for names in _BUSY.values() for name in names]
    stalls = [_STALL.format(name) for name in _STALLS]
    rest = (_TIME, _CYCLES, _READ, _WRITTEN, _HITS, _WARPS, _REGISTERS, _WAVES, *_LIMITS.values())
    return [*busy, *stalls, *rest, *_LOCAL, _CONFLICTS]


def describe_counters(c: Mapping[str, float]) -> str:
    """Five lines at most from ncu's values; what is not known is not mentioned."""
    lines = [_headline(c), _busy(c), _waits(c), _traffic(c), _residency(c)]
    return "\n".join(line for line in lines if line)


def _headline(c: Mapping[str, float]) -> str:
    words = "counters of one launch (ncu)"
    if _TIME not in c:
        return words
    clock = f" at {c[_CYCLES] / c[_TIME]:.2f} GHz" if c.get(_CYCLES) and c[_TIME] else ""
    return f"{words}: {c[_TIME] / 1e6:.4g} ms{clock}; a profiled launch is no timing"


def _busy(c: Mapping[str, float]) -> str:
    parts = []
    for label, names in _BUSY.items():
        known = [c[name + _PIPE] for name in names if name + _PIPE in c]
        if known:
            parts.append(f"{label} {max(known):.1f}")
    return "busy, % of the peak rate: " + ", ".join(parts) if parts else ""


def _waits(c: Mapping[str, float]) -> str:
    """Shares of the warps that could not issue, largest first."""
    found = {name: c[_STALL.format(name)] for name in _STALLS if _STALL.format(name) in c}
    total = sum(found.values())
    if not total:
        return ""
    ranked = sorted(found.items(), key=lambda item: -item[1])[:6]
    shares = (f"{name.replace('_', ' ')} {v / total:.0%}" for name, v in ranked if v / total > 0.01)
    return "waiting warps wait for: " + ", ".join(shares)


def _traffic(c: Mapping[str, float]) -> str:
    parts = [
        f"{word} {c[name] / 1e6:.4g} MB"
        for word, name in (("read", _READ), ("written", _WRITTEN))
        if name in c
    ]
    if _HITS in c:
        parts.append(f"L2 hits {c[_HITS]:.0f} %")
    if _CONFLICTS in c:
        parts.append(f"shared-memory bank conflicts {c[_CONFLICTS]:.3g}")
    return "memory: " + ", ".join(parts) if parts else ""


def _residency(c: Mapping[str, float]) -> str:
    parts = [f"warps {c[_WARPS]:.1f} % of the most"] if _WARPS in c else []
    limits = {label: c[name] for label, name in _LIMITS.items() if name in c}
    if limits:
        least = min(limits, key=limits.__getitem__)
        parts.append(f"{limits[least]:.0f} blocks an SM by {least.replace('_', ' ')}")
    if _REGISTERS in c:
        parts.append(f"{c[_REGISTERS]:.0f} registers a thread at launch")
    if _WAVES in c:
        parts.append(f"{c[_WAVES]:.2f} waves")
    if any(name in c for name in _LOCAL):
        parts.append(f"local memory {sum(c.get(name, 0.0) for name in _LOCAL):.3g} sectors")
    return "residency: " + ", ".join(parts) if parts else ""
