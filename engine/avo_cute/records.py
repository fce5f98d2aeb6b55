"""What passes between modules: frozen dataclasses, nothing else.

Reading order: what is asked for (`Workload`, `Target`), what a build gives (`Launch`, `Facts`,
`Artifact`), what we conclude (`Estimate`, `Verdict`), and what the lineage keeps (`Attempt`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

Param = int | float | bool | str


class Status(StrEnum):
    """How an attempt ended (design: nouns). `INFRA_ERROR` is nobody's fault and never evidence."""

    ACCEPTED = "accepted"
    EQUAL = "equal"
    REJECTED = "rejected"
    INCORRECT = "incorrect"
    BUILD_FAILED = "build-failed"
    AUDIT_FAILED = "audit-failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    NO_CHANGE = "no-change"
    INFRA_ERROR = "infra-error"


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape/dtype/mask point of a task.

    `class_name` names the workload class: workloads of one class are built by one process.
    `groups` are the names that `--workloads` accepts.
    """

    name: str
    class_name: str
    groups: tuple[str, ...]
    params: Mapping[str, Param]


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU model to build for. `smem_bytes` is the limit of dynamic shared memory per block."""

    name: str
    arch: str  # what ptxas is asked for, e.g. "sm_100a"
    family: str  # "sm90", "sm100" or "sm120": which instructions and which cost model
    sms: int
    smem_bytes: int
    l2_bytes: int
    title: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch as the object's own host code requests it for one workload."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_bytes: int  # dynamic
    pdl: bool  # programmatic dependent launch asked for
    attributes: tuple[int, ...] = ()  # cudaLaunchAttributeID values, sorted


@dataclass(frozen=True, slots=True)
class Facts:
    """What one object's cubin says about itself. Counts are static instruction counts."""

    arch: str
    cubin_sha256: str
    kernels: tuple[str, ...]
    registers: int  # per thread, as ptxas allocated
    register_roles: tuple[int, ...]  # distinct setmaxnreg values in order of appearance
    spill_loads: int
    spill_stores: int
    local_bytes: int  # stack frame per thread
    static_smem: int
    tmem_columns: int  # 0 where there is no tensor memory
    barrier_waits: int
    fences: int
    instructions: int
    mix: Mapping[str, int]  # unit name -> instructions

    @property
    def spills(self) -> int:
        """Local-memory instructions."""
        return self.spill_loads + self.spill_stores


@dataclass(frozen=True, slots=True)
class Artifact:
    """The build's result for one workload; workloads may share one object."""

    workload: Workload
    object_path: Path
    object_sha256: str
    facts: Facts
    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a candidate ended before it had a score. `detail` (≤ 4 kB) is what operators are told."""

    status: Status
    reason: str  # one line
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Static estimate for one workload: `cycles` of the whole launch on the target.

    `parts` maps a unit ("tensor", "mufu", …) to the cycles it is busy; the largest, plus
    penalties, makes `cycles`. Never comparable with a measured time.
    """

    workload: str
    cycles: float
    bound: str  # the unit that decides
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A gain as a ratio of times (1.01 is +1 %) with its lower and upper bound."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value - 1:+.2%} [{self.low - 1:+.2%}, {self.high - 1:+.2%}]"


@dataclass(frozen=True, slots=True)
class Measured:
    """What measuring adds to a verdict. Mappings are by workload name unless said otherwise.

    `seconds` and `cold` are medians of the candidate's launches, sustained and isolated; `floor`
    is the physical limit. `workloads` and `overall` give the gain by the arm it is against.
    `findings` counts comparisons with the reference, `worst` is the largest quotient of an error
    and its bound among them. `raw` has everything, as JSON.
    """

    level: str  # "screening" or "commit"
    device: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    cold: Mapping[str, float] = field(default_factory=dict)
    flops: Mapping[str, float] = field(default_factory=dict)
    floor: Mapping[str, float] = field(default_factory=dict)
    gain: Interval | None = None
    score: Interval | None = None
    workloads: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)  # arm first
    overall: Mapping[str, Interval] = field(default_factory=dict)
    hidden: Interval | None = None
    hidden_count: int = 0
    margin: float = 0.0  # a log-ratio: what a gain must exceed on this machine
    rounds: int = 0
    voids: Mapping[str, int] = field(default_factory=dict)  # reason -> rounds
    findings: int = 0
    worst: float = 0.0
    worst_what: str = ""
    unsupported: tuple[str, ...] = ()  # what the seed itself cannot do
    facts: Mapping[str, str | float] = field(default_factory=dict)
    busy: float = 0.0  # share of the timing in which the GPU computed
    wall_s: float = 0.0  # of the measuring processes
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Samples:
    """Timed rounds of one workload in one process; every sequence has one entry per round.

    `times` maps an arm ("candidate", "incumbent", "seed", "cudnn", …) to seconds per launch: the
    median over the launches of its visit. `clocks` maps it to the SM clock seen, in MHz. `void`
    says why a round does not count, and is empty where it does.
    """

    workload: str
    role: str  # "public" or "hidden"
    mode: str  # "sustained" or "cold"
    process: int  # the seed of the process that took them
    times: Mapping[str, tuple[float, ...]]
    clocks: Mapping[str, tuple[float, ...]]
    void: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What we say about a candidate, computed by us."""

    status: Status
    reason: str
    detail: str = ""
    score: float | None = None  # geomean speed-up over the run's baseline
    gain: float | None = None  # against the high-water mark
    kind: str = "static"
    artifact: str = ""  # sha256 over all objects
    estimates: tuple[Estimate, ...] = ()
    facts: Mapping[str, Facts] = field(default_factory=dict)  # by workload name
    launches: Mapping[str, tuple[Launch, ...]] = field(default_factory=dict)
    signals: tuple[str, ...] = ()  # worth a look, decides nothing
    sandbox: str = ""
    toolchain: str = ""
    tree: str = ""
    objects: Mapping[str, Path] = field(default_factory=dict)  # by workload, checks included
    measured: Measured | None = None
    beyond: bool = False  # it failed by objects that `artifact` does not cover


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that a model's API billed. What was read from or written to the prompt cache is not in
    `input`; `cache_write` is all that was written, `cache_write_1h` the part kept for an hour."""

    input: int = 0
    output: int = 0  # thinking included
    cache_read: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.cache_write_1h + other.cache_write_1h,
        )

    @property
    def prompt(self) -> int:
        """Tokens sent, cached or not."""
        return self.input + self.cache_read + self.cache_write

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.prompt + self.output


@dataclass(frozen=True, slots=True)
class Attempt:
    """One evaluated candidate as the lineage records it; every field comes from its commit."""

    commit: str
    tree: str
    parent: str
    run: str
    number: int
    status: Status
    subject: str
    body: str
    when: int  # seconds since the epoch
    trailers: Mapping[str, str]
    score: float | None = None
    gain: float | None = None
