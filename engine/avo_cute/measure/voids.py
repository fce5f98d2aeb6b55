"""Why a round does not count. Pure: it sees the visits of a round, and says nothing or a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from .device import Condition

JUDGED = ("candidate", "incumbent", "seed")  # arms whose conditions must be alike

CLOCKS_AGREE, CLOCKS_SLACK_S = 0.02, 20e-6  # the device's clock and the host's
BETWEEN_FACTOR, BETWEEN_SLACK_S = 1.5, 20e-6
MHZ_APART = 0.02
CAP_MHZ_APART = 0.01

# NVML's bits (nvml.h, clocks event reasons), spelled here so that this module needs no NVML.
REASONS = {
    0x1: "idle",
    0x2: "set clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
IDLE, SET_CLOCKS, POWER_CAP = 0x1, 0x2, 0x4
HARMLESS = IDLE | SET_CLOCKS


@dataclass(frozen=True, slots=True)
class Visit:
    """Launches of one arm in one go. All times in seconds."""

    arm: str
    seconds: float  # of a launch: the median
    between: float  # median from the end of a launch to the start of the next; NaN for one launch
    span: float  # from first to last mark, on the device's clock
    host: float  # the same on the host's clock, around the synchronised batch
    launches: int
    conditions: tuple[Condition, ...]

    @property
    def mhz(self) -> float:
        """Mean SM clock over the samples that have one, else NaN."""
        seen = [c.sm_mhz for c in self.conditions if c.sm_mhz == c.sm_mhz]
        return fmean(seen) if seen else math.nan

    @property
    def throttle(self) -> int:
        """Every reason seen in any sample, except those that are no throttling."""
        mask = 0
        for condition in self.conditions:
            mask |= condition.throttle
        return mask & ~HARMLESS


def void_reason(visits: Mapping[str, Visit], isolated: bool = False) -> str:
    """One line, or "" for a round that counts.

    The two clocks and other processes void for any arm. What compares arms compares the judged
    ones: a baseline with half the power may well run at another clock. Isolated launches are not
    compared: the clock is then on its way up, whoever runs.
    """
    rules: tuple[Callable[[list[Visit]], str], ...] = (_between, _throttled, _apart)
    alone = next((r for v in visits.values() if (r := _alone(v))), "")
    judged = [v for name, v in visits.items() if name in JUDGED]
    if alone or isolated or len(judged) < 2:
        return alone
    return next((reason for rule in rules if (reason := rule(judged))), "")


def reason_names(mask: int) -> str:
    """The reasons in a throttle mask, e.g. "power cap, thermal slowdown"; "" for none."""
    known = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return ", ".join([*known, f"0x{rest:x}"] if rest else known)


def _alone(visit: Visit) -> str:
    if not abs(visit.host - visit.span) <= CLOCKS_AGREE * visit.span + CLOCKS_SLACK_S:
        return (
            f"two clocks disagree for {visit.arm}: "
            f"{visit.span * 1e3:.3f} ms by the device, {visit.host * 1e3:.3f} ms by the host"
        )
    others = max((c.others for c in visit.conditions), default=0)
    return f"{others} other processes on the device" if others else ""


def _between(judged: list[Visit]) -> str:
    """Work hidden behind the mark delays what follows: the rewriting before the next launch."""
    timed = [v for v in judged if v.between == v.between]
    if len(timed) < 2:
        return ""
    low, high = min(timed, key=lambda v: v.between), max(timed, key=lambda v: v.between)
    if high.between <= BETWEEN_FACTOR * low.between + BETWEEN_SLACK_S:
        return ""
    return (
        f"{high.between * 1e6:.0f} us between launches of {high.arm}, "
        f"{low.between * 1e6:.0f} us of {low.arm}"
    )


def _throttled(judged: list[Visit]) -> str:
    """Reasons that only some arms had. The power cap flickers near the limit and acts through the
    clock: in one arm only it counts where the clocks differ too."""
    all_had = judged[0].throttle
    any_had = 0
    for visit in judged:
        all_had &= visit.throttle
        any_had |= visit.throttle
    partial = any_had & ~all_had
    if _distance(judged) <= CAP_MHZ_APART:
        partial &= ~POWER_CAP
    if not partial:
        return ""
    arms = ", ".join(v.arm for v in judged if v.throttle & partial)
    return f"throttled in one arm only: {arms} ({reason_names(partial)})"


def _apart(judged: list[Visit]) -> str:
    if _distance(judged) <= MHZ_APART:
        return ""
    return "SM clocks apart: " + ", ".join(f"{v.arm} {v.mhz:.0f} MHz" for v in judged)


def _distance(judged: list[Visit]) -> float:
    """Relative distance of the arms' clocks; 0 where fewer than two are known."""
    known = [v.mhz for v in judged if v.mhz > 0]
    return max(known) / min(known) - 1 if len(known) > 1 else 0.0
