"""The measured parts of the proof in words and tables that follow from their JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from statistics import median
from typing import Any

Data = Mapping[str, Any]
DELAYS = (0.0025, 0.005, 0.01, 0.02)


def percent(ratio: float, digits: int = 2) -> str:
    return f"{ratio:+.{digits}%}"


def interval(found: Data | None, digits: int = 2) -> str:
    """A gain with its bounds, as ratios."""
    if not found:
        return "–"
    value, low, high = (percent(found[key] - 1, digits) for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(_cell(c) for c in row)} |" for row in rows]


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


# Null comparisons.


def aa(data: Data) -> list[str]:
    lost = data.get("lost") or []
    failed = [f"**{len(lost)} processes failed**: {'; '.join(lost)}"] if lost else []
    if "comparisons" not in data:
        told = f"{len(data['processes'])} processes were measured and nothing was decided."
        return [told, *failed]
    found, spread = data["comparisons"], data["spreads"]
    statuses = Counter(c["status"] for c in found)
    accepted = statuses.get("accepted", 0)
    words = "**None was accepted.**" if not accepted else f"**{accepted} were accepted.**"
    gains = [abs(math.log(c["gain"]["value"])) for c in found if c["gain"]]
    away = [c for c in found if c["gain"] and not c["gain"]["low"] <= 1 <= c["gain"]["high"]]
    processes = len(data["processes"])
    workloads = len(data["processes"][0]["samples"])
    largest = f"{max(gains):.3%}" if gains else "unknown"
    best = max((c["gain"]["value"] - 1 for c in found if c["gain"]), default=math.nan)
    margins = [c["margin"] for c in found if c.get("margin")]
    least, most = (f"{edge(margins):.3%}" if margins else "unknown" for edge in (min, max))
    return [
        f"{len(found)} null comparisons from {processes} fresh processes of {workloads} workloads, "
        f"each decided by the rule that decides about candidates: {words} They ended as "
        + ", ".join(f"{n} {status}" for status, n in statuses.most_common())
        + f". The largest difference, either way, is {largest}, the largest gain {best:.3%}, "
        f"against margins of {least} to {most}; {len(away)} intervals of 99 % do not contain 0.",
        *failed,
        "",
        *_kinds(found),
        "In every process the seed is timed in three arms: twice the same library, and a copy of "
        "it that is loaded a second time (two objects of the same source are the same bytes, so "
        "this is all that can differ; an inert edit gives other machine code, which may be faster "
        "or slower: `inert-store` under Red team). A comparison takes three processes and, in "
        "each, two of the arms, drawn at random; its margin comes from the other processes. **The "
        f"comparisons share data**: behind them are {processes} processes with two independent "
        f"contrasts each, that is {2 * (processes // 3)} comparisons that share nothing.",
        "",
        *grid(
            ("spread of equal kernels", "log-ratio"),
            (
                ("a round of one workload (robust standard deviation)", f"{spread['within']:.3%}"),
                ("a workload's median in one process (root mean square)",
                 f"{spread['median_sd']:.3%}"),
                ("the same, the largest", f"{spread['largest_median']:.3%}"),
                ("a process's mean over workloads (root mean square)", f"{spread['between']:.4%}"),
                ("the same, the largest", f"{spread['largest_process']:.4%}"),
                ("margin that follows from all of them", f"{spread['margin']:.3%}"),
            ),
        ),
        "",
        f"{voided(spread['void'], spread['rounds'])}",
    ]  # fmt: skip


def _kinds(found: Sequence[Data]) -> list[str]:
    """By what was compared; not for comparisons that do not say it."""
    kinds = list(dict.fromkeys(c["kind"] for c in found if "kind" in c))
    rows = []
    for kind in kinds:
        of = [c for c in found if c["kind"] == kind]
        gains = [abs(math.log(c["gain"]["value"])) for c in of if c["gain"]]
        largest = f"{max(gains):.3%}" if gains else "–"
        rows.append((kind, len(of), sum(c["status"] == "accepted" for c in of), largest))
    head = ("compared with itself", "comparisons", "accepted", "largest difference")
    return [*grid(head, rows), ""] if rows else []


def voided(void: Data, rounds: int) -> str:
    if not void:
        return f"None of {rounds} rounds was void."
    said = ", ".join(f"{n} × {why}" for why, n in sorted(void.items(), key=lambda v: -v[1]))
    return f"{sum(void.values())} of {rounds} rounds were void and replaced: {said}."


# Known delays.


def detect(data: Data) -> list[str]:
    rows, missed, unknown = [], [], []
    for d in data["delays"]:
        if d["seen"] is None:
            missed.append(f"{d['delay']:.2%} (nothing valid)")
            continue
        seen = d["low"] > 0
        true = d.get("waited") or math.nan
        off = abs(d["seen"] - true)
        near = d["low"] <= true <= d["high"] or off <= max(0.0005, 0.05 * true)
        if seen and math.isnan(true):
            unknown.append(f"{d['delay']:.2%}")
        elif not (seen and near):
            missed.append(f"{d['delay']:.2%}")
        bounds = f"{d['seen']:.3%} [{d['low']:.3%}, {d['high']:.3%}]"
        by_name = d["workloads_seen"]
        parts = ", ".join(f"{by_name[w]['seen']:.2%}" for w in data["workloads"] if w in by_name)
        asked, waits = f"{d['delay']:.2%}", number(true, ".3%")
        rows.append((asked, waits, bounds, parts, "yes" if seen else "NO"))
    names = ", ".join(data["workloads"])
    done = [d["delay"] for d in data["delays"]]
    not_run = [f"{delay:.2%}" for delay in data.get("planned", DELAYS) if delay not in done]
    if missed:
        verdict = f"**Not seen as what they are: {', '.join(missed)}.**"
    elif unknown:
        verdict = ""
    else:
        every = "Every delay that was run" if not_run else "Every delay"
        verdict = f"{every} was seen as what it is."
    if unknown:
        verdict += (
            f" **Told from 0, but what they really took was not kept: {', '.join(unknown)}.**"
        )
    verdict += f" **Not run: {', '.join(not_run)}.**" if not_run else ""
    return [
        "A kernel that waits runs behind every launch of the candidate, an empty one behind the "
        "other arm's. It counts cycles, so how long it takes depends on the clock: what it really "
        "took is known by its own events, and that is what must be seen, within the interval, "
        "0.05 % or a twentieth of it. One process per delay, "
        f"the workloads {names}. {verdict}",
        "",
        *grid(("asked for", "waited", "seen, 99 % interval", "by workload", "told from 0"), rows),
    ]


# The table.


def table(data: Data) -> list[str]:
    rows, arms = [_with_pairs(row, data.get("raw", {})) for row in data["rows"]], []
    planned = data.get("planned", [])
    not_run = [name for name in planned if name not in {row["workload"] for row in rows}]
    why = "; ".join(f"{group}: {told}" for group, told in (data.get("failed") or {}).items())
    if not rows:
        return [f"Not run{f': {why}' if why else ''}."]
    for row in rows:
        arms += [a for a in row.get("sustained", {}).get("seconds", {}) if a not in arms]
    others = [a for a in arms if a != "candidate"]
    head = ["workload", "seed", *others, *(f"seed / {a}" for a in others), "of the limit", "MHz"]
    cold = any("cold" in row for row in rows)
    lines = grid(head, (_rates(row, others, "sustained") for row in rows))
    said = [
        "BF16 TFLOPS, medians; all arms of a row in the same rounds. Sustained: under load, at the "
        "clock that has settled. The limit is the larger of FLOPs over tensor peak, bytes over "
        "bandwidth and exponentials over their rate, all at the highest clock the driver names; "
        "under its power cap the card does not run at that clock. `seed / x` is how many times as "
        "fast the seed is, the median over rounds, the least and the most of them in brackets. MHz "
        "is the seed's.",
        "",
        *lines,
    ]
    if cold:
        of = [row for row in rows if "cold" in row]
        where = "" if len(of) == len(rows) else f", on {len(of)} of the {len(rows)} workloads"
        said += ["", f"Isolated launches (cold caches, the GPU at rest before){where}:", ""]
        said += grid(head, (_rates(row, others, "cold") for row in of))
    missing = [f"{r['workload']}: {a}" for r in rows for a in others
               if a not in r.get("sustained", {}).get("tflops", {})]  # fmt: skip
    said += ["", f"Not available: {', '.join(missing)}."] if missing else []
    told = (
        f"**Not timed: {len(not_run)} of {len(planned)} workloads** ({', '.join(not_run)}). {why}"
    )
    return said + (["", told.strip()] if not_run else [])


def _rates(row: Data, others: Sequence[str], mode: str) -> list[str]:
    told = row.get(mode, {"tflops": {}, "mhz": {}, "seconds": {}})
    rates, seconds = told["tflops"], told["seconds"]
    own = seconds.get("candidate") or math.nan
    cells = [row["workload"], *(number(rates.get(a), ".0f") for a in ("candidate", *others))]
    cells += [_paired(told.get("times", {}), a) for a in others]
    share, mhz = row["floor_s"] / own, told["mhz"].get("candidate")
    return [*cells, number(share, ".0%"), number(mhz, ".0f")]


def _with_pairs(row: Data, raw: Data) -> Data:
    """A row with the times of its rounds, from the samples of its group."""
    samples = (_plain(s) for s in _plain(raw.get(row.get("group"), {})).get("samples", []))
    times = {s["mode"]: s["times"] for s in samples if s["workload"] == row["workload"]}
    modes = [mode for mode in ("sustained", "cold") if mode in row]
    return {**row, **{mode: {**row[mode], "times": times.get(mode, {})} for mode in modes}}


def _plain(value: Any) -> Data:
    """As JSON has it, also while the part still runs."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _paired(times: Data, arm: str) -> str:
    """How many times as fast the seed is in one round: the median, the least and the most."""
    pairs = zip(times.get(arm, ()), times.get("candidate", ()), strict=False)
    ratios = sorted(theirs / own for theirs, own in pairs if own and theirs)
    if not ratios:
        return "–"
    return f"{median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})"


def number(value: float | None, form: str) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:{form}}"
