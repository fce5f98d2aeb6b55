"""The measured parts of the proof in words and tables that follow from their JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Data = Mapping[str, Any]


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
    if "comparisons" not in data:
        return [f"Only {len(data['processes'])} processes were measured; nothing was decided."]
    found, spread = data["comparisons"], data["spreads"]
    statuses = Counter(c["status"] for c in found)
    accepted = statuses.get("accepted", 0)
    words = "**None was accepted.**" if not accepted else f"**{accepted} were accepted.**"
    gains = [abs(math.log(c["gain"]["value"])) for c in found if c["gain"]]
    away = [c for c in found if c["gain"] and not c["gain"]["low"] <= 1 <= c["gain"]["high"]]
    processes = len(data["processes"])
    workloads = len(data["processes"][0]["samples"])
    largest = f"{max(gains):.3%}" if gains else "unknown"
    return [
        f"{len(found)} null comparisons from {processes} fresh processes of {workloads} workloads, "
        f"each decided by the rule that decides about candidates: {words} They ended as "
        + ", ".join(f"{n} {status}" for status, n in statuses.most_common())
        + f". The largest gain that any of them showed is {largest}; {len(away)} intervals of 99 % "
        "do not contain 0.",
        "",
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
                ("margin that a gain must exceed", f"{spread['margin']:.3%}"),
            ),
        ),
        "",
        f"{voided(spread['void'], spread['rounds'])}",
    ]  # fmt: skip


def voided(void: Data, rounds: int) -> str:
    if not void:
        return f"None of {rounds} rounds was void."
    said = ", ".join(f"{n} × {why}" for why, n in sorted(void.items(), key=lambda v: -v[1]))
    return f"{sum(void.values())} of {rounds} rounds were void and replaced: {said}."


# Known delays.


def detect(data: Data) -> list[str]:
    rows, missed = [], []
    for d in data["delays"]:
        if d["seen"] is None:
            missed.append(f"{d['delay']:.2%} (nothing valid)")
            continue
        seen = d["low"] > 0
        off = abs(d["seen"] - d["delay"])
        near = d["low"] <= d["delay"] <= d["high"] or off <= max(0.0005, 0.1 * d["delay"])
        if not (seen and near):
            missed.append(f"{d['delay']:.2%}")
        bounds = f"{d['seen']:.3%} [{d['low']:.3%}, {d['high']:.3%}]"
        parts = ", ".join(f"{v['seen']:.2%}" for v in d["workloads_seen"].values())
        rows.append((f"{d['delay']:.2%}", bounds, parts, "yes" if seen else "NO"))
    names = ", ".join(data["workloads"])
    verdict = "Every delay was seen as what it is." if not missed else (
        f"**Not seen as what they are: {', '.join(missed)}.**"
    )  # fmt: skip
    return [
        f"A kernel that waits a known time runs behind every launch of the candidate, an empty one "
        f"behind the other arm's. One process per delay, the workloads {names}. {verdict}",
        "",
        *grid(("delay", "seen, 99 % interval", "by workload", "told from 0"), rows),
    ]


# The table.


def table(data: Data) -> list[str]:
    rows, arms = data["rows"], []
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
        "under its power cap the card does not run at that clock.",
        "",
        *lines,
    ]
    if cold:
        of = [row for row in rows if "cold" in row]
        said += ["", "Isolated launches (cold caches, the GPU at rest before):", ""]
        said += grid(head, (_rates(row, others, "cold") for row in of))
    missing = [f"{r['workload']}: {a}" for r in rows for a in others
               if a not in r.get("sustained", {}).get("tflops", {})]  # fmt: skip
    return said + (["", f"Not available: {', '.join(missing)}."] if missing else [])


def _rates(row: Data, others: Sequence[str], mode: str) -> list[str]:
    told = row.get(mode, {"tflops": {}, "mhz": {}, "seconds": {}})
    rates, seconds = told["tflops"], told["seconds"]
    own = seconds.get("candidate") or math.nan
    cells = [row["workload"], *(_number(rates.get(a), ".0f") for a in ("candidate", *others))]
    cells += [_number((seconds.get(a) or math.nan) / own, ".2f") for a in others]
    share, mhz = row["floor_s"] / own, told["mhz"].get("candidate")
    return [*cells, _number(share, ".0%"), _number(mhz, ".0f")]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:{form}}"


# The red team.


def redteam(data: Data) -> list[str]:
    if not data["cases"]:
        return [f"Not run: {data.get('why', 'nothing was judged')}."]
    wrong = [c for c in data["cases"] if not c["honest"]]
    honest = [c for c in data["cases"] if c["honest"]]
    accepted = [c["case"] for c in wrong if c.get("then", c["status"]) == "accepted"]
    passed = [c for c in wrong if c["status"] == "passes"]
    other = [c for c in wrong if not c["as_expected"] and c not in passed]
    as_expected = sum(c["as_expected"] for c in wrong)
    verdict = "none was accepted" if not accepted else f"**accepted: {', '.join(accepted)}**"
    lines = [
        f"{len(wrong)} wrong candidates, edits of FlashAttention-4's own source that build: "
        f"{verdict}; {as_expected} ended as they should at the first check of the commit level.",
    ]
    if passed:
        lines.append("")
        lines.append("**Correctness did not see** " + "; ".join(map(_through, passed)) + ".")
    if other:
        ends = (f"{c['case']} ({c['status']}, not {c['expected']})" for c in other)
        lines += ["", f"Ended otherwise than expected: {'; '.join(ends)}."]
    if again := [c["case"] for c in data["cases"] if c.get("earlier")]:
        lines += ["", f"**Judged more than once**, after ending otherwise: {', '.join(again)}."]
    rows = ((c["case"], c["does"], c["expected"], _end(c), c["reason"][:120],
             f"{c['seconds']:.0f}") for c in wrong)  # fmt: skip
    lines += ["", *grid(("case", "what it does", "expected", "seen", "by", "s"), rows), ""]
    bad = [c["case"] for c in honest if not c["as_expected"]]
    lines.append(
        "Honest variants must pass the same comparisons; speed alone decides about them. "
        + ("All of them did." if not bad else f"**Refused: {', '.join(bad)}.**")
    )
    rows = ((c["case"], c["does"], _end(c), c["comparisons"], interval(c.get("gain")),
             c.get("screening", "–")) for c in honest)  # fmt: skip
    head = ("variant", "what it does", "correctness", "comparisons", "gain over the seed",
            "screening would say")  # fmt: skip
    return [*lines, "", *grid(head, rows), "", _lanes(data)]


def _end(case: Data) -> str:
    then = f", then {case['then']}" if "then" in case else ""
    mark = "" if case["as_expected"] else " (!)"
    before = ", ".join(case.get("earlier", []))
    return f"{case['status']}{then}{mark}{f' (in an earlier run {before})' if before else ''}"


def _through(case: Data) -> str:
    luck = "" if case["sure"] else " (a race: it need not show)"
    then = case.get("then", "not followed up")
    return f"{case['case']}{luck}, in the end {then}"


def _lanes(data: Data) -> str:
    return (
        f"Seconds are those of judging, with up to {data['lanes']} cases side by side on the GPU. "
        f"Cases that hang were given {data['hang_limit_s']:.0f} s instead of the engine's 60 s a "
        "step; the gains of the honest variants are of one process and two workloads."
    )


# What a candidate costs.


def limits(data: Data) -> list[str]:
    if "levels" not in data:
        return [f"Not run: {data.get('why', 'nothing was timed')}."]
    allowed, rows, over = {"screening": 20, "commit": 120}, [], []
    for name, level in data["levels"].items():
        if level["wall_s"] > allowed[name]:
            over.append(name)
        if level["processes"]:
            rows.append((name, level["processes"], f"{level['wall_s']:.1f}", allowed[name],
                         f"{level['timed_s']:.1f}", f"{level['after_s']:.1f}",
                         f"{level['busy']:.0%}"))  # fmt: skip
    idle = [n for n, v in data["levels"].items() if v["processes"] and v["busy"] < 0.7]
    verdict = "Both levels are within their limits." if not over else (
        f"**Over the limit: {', '.join(over)}.**"
    )  # fmt: skip
    idle_said = f" **The GPU was busy for less than 70 %: {', '.join(idle)}.**" if idle else ""
    return [
        f"One evaluation of an honest variant ({data['variant']}): {data['status']}, gain "
        f"{interval(data['gain'])}, hidden workloads {interval(data['hidden'])}. Wall seconds from "
        "its build on, process starts and the builds for hidden workloads included. "
        f"{verdict}{idle_said}",
        "",
        *grid(
            (
                "level",
                "processes",
                "seconds",
                "allowed",
                "of it timing",
                "after the last process",
                "GPU busy while timing",
            ),
            rows,
        ),
    ]
