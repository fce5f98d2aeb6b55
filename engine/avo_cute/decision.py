"""Decision: paired rounds of several fresh processes become a ruling, by one fixed rule; pure.

A round's statistic is log(t_against / t_arm), a workload's the median of its valid rounds in a
process, averaged over processes, and a gain the mean over workloads: as ratios, geometric means.
`screen` may only reject; `decide` accepts. What a ruling means is in docs/measured-score.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import stats
from .errors import BadInput
from .records import Interval, Samples, Status
from .stats import Calibration, Cell, Comparison, is_sound, log_ratios

CANDIDATE, INCUMBENT = ARMS = "candidate", "incumbent"
Process = Sequence[Samples]  # everything that one measuring process timed


@dataclass(frozen=True, slots=True)
class Rule:
    """The numbers of the rule. `confidence` is one-sided: 0.995 makes 99 % intervals."""

    confidence: float = 0.995
    margin_factor: float = 3.0  # times the spread between fresh processes on this machine
    least_margin: float = 0.001
    worst_workload: float = 0.99  # a public workload's gain may not be less
    worst_hidden: float = 0.995  # the hidden workloads' bound must be more
    implausible: float = 1.3  # believed only after a re-check with full correctness
    processes: int = 3
    rounds: int = 60  # planned per public workload, over all processes
    fewest: int = 5  # valid rounds of a workload in one process; and at least half of the planned
    resamples: int = stats.RESAMPLES


RULE = Rule()
SCREENING = Rule(confidence=0.8, processes=1, rounds=3, fewest=3, resamples=2_000)


@dataclass(frozen=True, slots=True)
class Case:
    """What one decision is about, apart from the samples.

    A workload named here and not measured refutes the candidate; a name stands once or it is
    `BadInput`. `floors` are physical limits in seconds by workload name. `baseline` is the arm
    that the score is against: "incumbent" while the seed is the incumbent. `seed` makes the
    bootstrap repeatable. `rechecked`: a fresh process with full correctness has already looked
    at a gain that was not believed.
    """

    public: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    floors: Mapping[str, float] = field(default_factory=dict)
    baseline: str = "seed"
    seed: int = 0
    rechecked: bool = False

    def __post_init__(self) -> None:
        names = (*self.public, *self.hidden)
        if not self.public or len(set(names)) < len(names):
            raise BadInput("a decision needs public workloads, and every name once")


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the samples say. `status` None: nothing speaks against going on (`screen` only).

    `workloads` and `overall` give the candidate's gain by the arm it is compared with.
    Flags: "unsound", "undecided", "quarantined", or a warning in words.
    """

    status: Status | None
    reason: str
    margin: float = 0.0  # a log-ratio
    gain: Interval | None = None  # against the high-water mark
    score: Interval | None = None  # against the seed, head to head
    processes: tuple[Interval, ...] = ()  # `gain` in each process alone
    workloads: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    overall: Mapping[str, Interval] = field(default_factory=dict)  # arms timed on every workload
    hidden: Interval | None = None
    hidden_count: int = 0
    rounds: int = 0  # valid ones, of the public workload that has the fewest
    voids: Mapping[str, int] = field(default_factory=dict)  # reason -> rounds
    flags: tuple[str, ...] = ()


def decide(
    processes: Sequence[Process], case: Case, calibration: Calibration, rule: Rule = RULE
) -> Ruling:
    """Rule on a candidate from `rule.processes` or more fresh processes.

    ACCEPTED only if (1) the lower bound of the gain is above the margin, (2) no public workload
    and not the hidden ones lose more than allowed and none is missing, (3) each process alone
    shows (1) too. REJECTED: refuted, or not better. EQUAL: inside the margin, or a gain that is
    not established. INFRA_ERROR: too few valid rounds, so nobody can say. `BadInput` if one
    process is given twice.
    """
    ruling = _examined(processes, case, calibration, rule)
    if ruling.status is not None:
        return ruling
    status, reason = _refuted(ruling, rule) or _established(ruling)
    if status is Status.ACCEPTED and "quarantined" in ruling.flags and not case.rechecked:
        status = Status.REJECTED
        reason = f"quarantined: {reason}; more than {rule.implausible} x needs a second check"
    if status is Status.ACCEPTED and ruling.score is None:
        status, reason = Status.INFRA_ERROR, f"{reason}, but the seed was not timed beside it"
    return replace(ruling, status=status, reason=reason)


def screen(
    process: Process, case: Case, calibration: Calibration, rule: Rule = SCREENING
) -> Ruling:
    """Reject early what `decide` would hardly accept, from the rounds of one process so far.

    It may be asked again as rounds come in. Status None is "go on", also where too few rounds are
    valid. Hidden workloads are not needed.
    """
    ruling = _examined([process], replace(case, hidden=()), calibration, rule)
    if ruling.status is Status.INFRA_ERROR:
        return replace(ruling, status=None)
    if ruling.gain is None:
        return ruling
    for name, part in ruling.workloads[INCUMBENT].items():
        if part.high < rule.worst_workload:
            lost = f"screened: {name} loses more than {1 - rule.worst_workload:.1%}: {part}"
            return replace(ruling, status=Status.REJECTED, reason=lost)
    if math.log(ruling.gain.high) < ruling.margin:
        status, reason = _established(ruling)
        return replace(ruling, status=status, reason=f"screened: {reason}")
    return replace(ruling, reason=f"{ruling.gain} may exceed the margin of {ruling.margin:.2%}")


def compare(
    processes: Sequence[Process],
    names: Sequence[str],
    arms: tuple[str, str] = ARMS,
    *,
    mode: str = "sustained",
    seed: int = 0,
    rule: Rule = RULE,
) -> Comparison | None:
    """The gain of the first arm over the second on the workloads `names`, with bounds.

    A process that lacks a workload is left out of that workload's mean; None if a workload was
    not timed soundly by any process.
    """
    cells = [
        Cell(s.workload, p, tuple(log_ratios(s, *arms)))
        for name in sorted(set(names))
        for p, process in enumerate(processes)
        for s in _named([process], name, mode)
        if is_sound(s, arms) and "" in s.void
    ]
    if not cells or {c.workload for c in cells} != set(names):
        return None
    return stats.stratified(cells, rule.confidence, seed, rule.resamples)


def _examined(
    processes: Sequence[Process], case: Case, calibration: Calibration, rule: Rule
) -> Ruling:
    """Every number there is; with a status only where the samples allow no ruling by numbers."""
    margin = calibration.margin(rule.margin_factor, rule.least_margin)
    start = Ruling(None, "", margin, voids=_voids(processes), hidden_count=len(case.hidden))
    if why := _unsound(processes, case):
        return replace(start, status=Status.REJECTED, reason=why, flags=("unsound",))
    if why := _too_little(processes, case, rule):
        return replace(start, status=Status.INFRA_ERROR, reason=why, flags=("undecided",))
    by_arm = _by_arm(processes, case, rule)
    overall = {arm: c.gain for arm, c in by_arm.items() if len(c.workloads) == len(case.public)}
    hidden = compare(processes, case.hidden, seed=case.seed, rule=rule)
    ruling = replace(
        start,
        gain=overall[INCUMBENT],
        score=overall.get(case.baseline),
        processes=by_arm[INCUMBENT].processes,
        workloads={arm: c.workloads for arm, c in by_arm.items()},
        overall=overall,
        hidden=None if hidden is None else hidden.gain,
        rounds=min(sum(s.void.count("") for s in _named(processes, n)) for n in case.public),
    )
    return replace(ruling, flags=_flags(ruling, calibration, rule))


def _by_arm(processes: Sequence[Process], case: Case, rule: Rule) -> dict[str, Comparison]:
    """The candidate against every arm, on the workloads where every process timed that arm."""
    arms = {arm for process in processes for s in process for arm in s.times} - {CANDIDATE}
    found = {}
    for arm in sorted(arms):
        pair = (CANDIDATE, arm)
        timed = [n for n in case.public if all(is_sound(s, pair) for s in _named(processes, n))]
        found[arm] = compare(processes, timed, pair, seed=case.seed, rule=rule)
    return {arm: comparison for arm, comparison in found.items() if comparison is not None}


def _refuted(ruling: Ruling, rule: Rule) -> tuple[Status, str] | None:
    """Where condition 2 fails."""
    parts = ruling.workloads[INCUMBENT]
    worst = min(parts, key=lambda name: parts[name].value)
    if parts[worst].value < rule.worst_workload:
        lost = f"{worst} loses more than {1 - rule.worst_workload:.1%}: {parts[worst]}"
        return Status.REJECTED, f"{ruling.gain} in the mean, but {lost}"
    if ruling.hidden is not None and ruling.hidden.low <= rule.worst_hidden:
        bound = f"the bound is not above {rule.worst_hidden - 1:+.1%}"
        return Status.REJECTED, f"{ruling.gain}, but hidden workloads {ruling.hidden}: {bound}"
    return None


def _established(ruling: Ruling) -> tuple[Status, str]:
    """Conditions 1 and 3, and what it is called where they fail."""
    gain, edge, alone = ruling.gain, math.exp(ruling.margin), ruling.processes
    assert gain is not None
    margin = f"the margin of {ruling.margin:.2%}"
    if gain.low > edge:
        weakest = min(alone, key=lambda p: p.low)
        if weakest.low > edge:
            held = f"in each of {len(alone)} processes, {ruling.rounds} rounds"
            return Status.ACCEPTED, f"{gain} against the high-water mark: above {margin} {held}"
        return Status.EQUAL, f"{gain} is not established: one process alone gives {weakest}"
    if gain.low > 1 / edge and gain.high < edge:
        return Status.EQUAL, f"{gain} is within {margin}"
    if gain.value < 1:
        return Status.REJECTED, f"{gain} against the high-water mark: not better"
    return Status.EQUAL, f"{gain} is not established: its bound is not above {margin}"


def _flags(ruling: Ruling, calibration: Calibration, rule: Rule) -> tuple[str, ...]:
    parts, alone = ruling.workloads[INCUMBENT], [math.log(p.value) for p in ruling.processes]
    believed = [*parts.values(), *(i for i in (ruling.gain, ruling.hidden) if i is not None)]
    flags = ["quarantined"] if any(i.value > rule.implausible for i in believed) else []
    flags += [
        f"{name} may lose more than {1 - rule.worst_workload:.1%}: {part}"
        for name, part in parts.items()
        if part.low < rule.worst_workload <= part.value
    ]
    if (apart := max(alone) - min(alone)) > 2 * ruling.margin:
        flags.append(f"processes {apart:.2%} apart, spread calibrated {calibration.spread:.2%}")
    return tuple(flags)


def _unsound(processes: Sequence[Process], case: Case) -> str:
    """Why the samples cannot be evidence for the candidate, whatever they say; "" if they can."""
    seeds = [s for process in processes for s in {s.process for s in process}]
    if len(seeds) > len(set(seeds)) or len(seeds) > len(processes):
        raise BadInput("one process was given twice, or the samples of two processes were mixed")
    for process in processes:
        counts = Counter(s.workload for s in process if s.mode == "sustained")
        if missing := [n for n in case.public if not counts[n]]:
            return f"no measurement of {', '.join(missing)}"
        if twice := [n for n in (*case.public, *case.hidden) if counts[n] > 1]:
            return f"measured twice in one process: {', '.join(twice)}"
    for name in (*case.public, *case.hidden):
        samples = _named(processes, name)
        if not samples:
            return f"no measurement of the hidden workload {name}"
        if not all(is_sound(s, ARMS) for s in samples):
            return f"{name} has a time that is missing, not finite or not above zero"
        floor = case.floors.get(name, 0.0)
        for s in samples:
            times = [t for t, v in zip(s.times[CANDIDATE], s.void, strict=True) if not v]
            if times and stats.median(times) < floor:
                took = f"{name} took {stats.median(times) * 1e6:.1f} µs"
                return f"{took}, less than the physical floor of {floor * 1e6:.1f} µs"
    return ""


def _too_little(processes: Sequence[Process], case: Case, rule: Rule) -> str:
    """Why nobody can say; "" where there are rounds enough."""
    if len(processes) < rule.processes:
        return f"{len(processes)} of {rule.processes} processes"
    for name in (*case.public, *case.hidden):
        samples = _named(processes, name)
        planned = sum(len(s.void) for s in samples)
        if name in case.public and planned < rule.rounds:
            return f"{name}: {planned} of {rule.rounds} rounds"
        for s in samples:
            valid = s.void.count("")
            if valid < rule.fewest or 2 * valid < len(s.void):
                reasons = ", ".join(f"{n} x {why}" for why, n in _voids([[s]]).items())
                return f"machine: {name} has {valid} valid rounds of {len(s.void)} ({reasons})"
    return ""


def _named(processes: Sequence[Process], name: str, mode: str = "sustained") -> list[Samples]:
    return [s for p in processes for s in p if s.workload == name and s.mode == mode]


def _voids(processes: Sequence[Process]) -> Mapping[str, int]:
    reasons = (w for p in processes for s in p if s.mode == "sustained" for w in s.void if w)
    return dict(Counter(reasons).most_common())
