"""The page that `proof.py page` writes: what the raw JSON says, in words that follow from it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from proof_ground import load, plain
from proof_run import rank_correlation

from avo_cute.stats import median

Data = Mapping[str, Any]
ROOT = Path(__file__).resolve().parent.parent
SIZE_LIMIT = 1_500_000


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
        "this is all that can differ). A comparison takes three processes and in each of them two "
        "of the arms, drawn at random; its margin comes from the other processes. **The "
        f"comparisons share data**: behind them are {processes} processes with two independent "
        f"contrasts each, that is {2 * (processes // 3)} comparisons that share nothing.",
        "",
        *grid(
            ("spread of equal kernels", "log-ratio"),
            (
                ("one round of one workload (robust standard deviation)", f"{spread['within']:.3%}"),
                ("a workload's median in one process (root mean square)",
                 f"{spread['median_sd']:.3%}"),
                ("the same, the largest", f"{spread['largest_median']:.3%}"),
                ("a process's mean over workloads (root mean square)", f"{spread['between']:.4%}"),
                ("the same, the largest", f"{spread['largest_process']:.4%}"),
                ("margin that a gain must exceed", f"{spread['margin']:.3%}"),
            ),
        ),
        "",
        f"{_voided(spread['void'], spread['rounds'])}",
    ]  # fmt: skip


def _voided(void: Data, rounds: int) -> str:
    if not void:
        return f"None of {rounds} rounds was void."
    said = ", ".join(f"{n} × {why}" for why, n in sorted(void.items(), key=lambda v: -v[1]))
    return f"{sum(void.values())} of {rounds} rounds were void and replaced: {said}."


# Known delays.


def detect(data: Data) -> list[str]:
    rows, missed = [], []
    for d in data["delays"]:
        seen = d["low"] > 0
        near = abs(d["seen"] - d["delay"]) <= max(0.0005, 0.1 * d["delay"])
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
    own = seconds.get("candidate", math.nan)
    cells = [row["workload"], *(f"{rates.get(a, math.nan):.0f}" for a in ("candidate", *others))]
    cells += [f"{seconds.get(a, math.nan) / own:.2f}" for a in others]
    return [*cells, f"{row['floor_s'] / own:.0%}", f"{told['mhz'].get('candidate', math.nan):.0f}"]


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
    return f"{case['status']}{then}{mark}"


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
                         f"{level['timed_s']:.1f}", f"{level['busy']:.0%}"))  # fmt: skip
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
        *grid(("level", "processes", "seconds", "allowed", "timing", "GPU busy"), rows),
    ]


# Runs.


def evolve(data: Data) -> list[str]:
    attempts = [a for a in data["attempts"] if a["number"]]
    lines = [_run_said(data, attempts), "", *_accepted(data, attempts)]
    lines += ["", *_verified(data.get("verify"))]
    lines += ["", "### Outcomes and time", "", *_outcomes(attempts)]
    lines += ["", "### Static estimate against measured times", "", *_correlation(data)]
    return lines


def _run_said(data: Data, attempts: Sequence[Data]) -> str:
    seconds = data["command"]["seconds"]
    per_hour = len(attempts) / seconds * 3600 if seconds else 0.0
    first = min((a["when"] for a in attempts), default=None)
    told = f"{len(attempts)} attempts in {seconds:.0f} s, {per_hour:.0f} an hour"
    if first is not None:
        ready = first - data["command"]["began"]
        told += f"; the first was recorded after {ready:.0f} s (start, self-test, calibration)"
        rest = seconds - ready
        if len(attempts) > 1 and rest > 0:
            told += f", after that {(len(attempts) - 1) / rest * 3600:.0f} an hour"
    code = data["command"]["code"]
    return told + ("." if code == 0 else f". **It ended with exit code {code}.**")


def _accepted(data: Data, attempts: Sequence[Data]) -> list[str]:
    accepted = [a for a in attempts if a["status"] == "accepted"]
    if not accepted:
        return ["**Nothing was accepted.**"]
    rows = []
    for a in accepted:
        low, _, high = a.get("score_interval", "").partition(" ")
        score = percent(a["score"] - 1) if a["score"] else "–"
        bounds = f" [{percent(float(low) - 1)}, {percent(float(high) - 1)}]" if high else ""
        hidden, _, count = a.get("hidden", "").partition(" ")
        told = f"{percent(float(hidden) - 1)} on {count}" if count else "–"
        rows.append((a["number"], a["subject"], f"{score}{bounds}", told))
    best = max(accepted, key=lambda a: a["score"] or 0.0)
    low = best.get("score_interval", "").partition(" ")[0]
    certified = f", at least {percent(float(low) - 1)} with 99.5 % confidence" if low else ""
    return [
        f"Best: attempt {best['number']}, {percent((best['score'] or 1) - 1)} over the seed head "
        f"to head{certified}.",
        "",
        *grid(("attempt", "change", "over the seed", "hidden workloads"), rows),
    ]


def _verified(found: Data | None) -> list[str]:
    if found is None:
        return ["`verify` was not run."]
    said = found.get("said") or {}
    now = said.get("gain_interval")
    told = f"`verify best` rebuilt and measured it again in {found['seconds']:.0f} s: "
    if found["code"] == 0:
        return [told + f"it holds, gain now {interval(now)}."]
    return [told + f"**it does not hold** (exit {found['code']}): {said.get('why') or 'see log'}"]


def _outcomes(attempts: Sequence[Data]) -> list[str]:
    groups: dict[tuple[str, str], list[Data]] = {}
    last = None
    timed = []
    for a in sorted(attempts, key=lambda a: a["when"]):
        timed.append((a, a["when"] - last if last is not None else None))
        last = a["when"]
    spans: dict[tuple[str, str], list[float]] = {}
    for a, span in timed:
        key = (a["status"], a.get("level", "not measured"))
        groups.setdefault(key, []).append(a)
        if span is not None:
            spans.setdefault(key, []).append(span)
    rows = [
        (status, level, len(of), _typical(spans.get((status, level), [])),
         _typical([a["measuring"]["wall_s"] for a in of if a["measuring"]["processes"]]))
        for (status, level), of in sorted(groups.items(), key=lambda g: -len(g[1]))
    ]  # fmt: skip
    sums = {k: math.fsum(a["measuring"][k] for a in attempts) for k in ("timed_s", "busy_s")}
    busy = f"{sums['busy_s'] / sums['timed_s']:.0%}" if sums["timed_s"] else "unknown"
    void: Counter[str] = Counter()
    for a in attempts:
        void.update(a["measuring"]["void"])
    rounds = sum(a["measuring"]["rounds"] for a in attempts)
    head = ("outcome", "level", "attempts", "s since the one before", "s of measuring")
    return [*grid(head, rows), "", f"GPU busy in {busy} of the timing. {_voided(void, rounds)}"]


def _typical(values: Sequence[float]) -> str:
    return f"{median(values):.0f}" if values else "–"


def _correlation(data: Data) -> list[str]:
    found = rank_correlation(data)
    if not found:
        return ["No attempt has both a static estimate and measured times."]
    rows = [
        (group, of["n"], "–" if of["spearman"] is None else f"{of['spearman']:.2f}")
        for group, of in found.items()
    ]
    return [
        "Spearman's rank correlation of the estimated with the measured gain over the seed, over "
        "every attempt of this run that was timed. The attempts are a search's: many share knobs, "
        "and many are equal on some workloads, so this is no sample of all possible changes.",
        "",
        *grid(("workloads", "attempts", "Spearman"), rows),
    ]


def gqa(data: Data) -> list[str]:
    attempts = [a for a in data["attempts"] if a["number"]]
    start = next((a for a in data["attempts"] if a["number"] == 0), None)
    lines = [f"A run on `--workloads {data['group']}` from the best of the run before. "
             + _run_said(data, attempts), ""]  # fmt: skip
    if start is None:
        return [*lines, "**It did not get as far as its start.**"]
    score = start["score"]
    if score is not None:
        lines.append(
            f"What carried over: the start, unchanged, is {percent(score - 1)} against the seed "
            f"on these workloads. It was recorded as: {start['seen'] or start['status']}."
        )
    if not attempts:
        return [*lines, "", "No attempt was made in the time given."]
    return [*lines, "", *_accepted(data, attempts), "", *_outcomes(attempts)]


PARTS: dict[str, tuple[str, Callable[[Data], list[str]]]] = {
    "aa": ("Equal kernels", aa),
    "detect": ("Known delays", detect),
    "table": ("The seed and the libraries", table),
    "redteam": ("Red team", redteam),
    "limits": ("What a candidate costs", limits),
    "evolve": ("A run of evolve", evolve),
    "gqa": ("From MHA to GQA", gqa),
}


def short(part: str, data: Data) -> list[str]:
    """A part as it is shown on the terminal."""
    return [line for line in PARTS[part][1](data) if line]


def write(out: Path, to: Path | None = None) -> Path:
    """The page of what is in OUT, and its JSON beside it; returns the page's path."""
    found = {part: data for part in PARTS if (data := load(out, part)) is not None}
    if not found:
        raise SystemExit(f"{out} holds no part of a proof")
    target = next(str(d["target"]) for d in found.values())
    folder = to or ROOT / "docs" / "results"
    (folder / target).mkdir(parents=True, exist_ok=True)
    page = folder / f"{target}.md"
    page.write_text("\n".join(_page(target, found)) + "\n")
    for part, data in found.items():
        (folder / target / f"{part}.json").write_text(json.dumps(plain(data)) + "\n")
    size = sum(p.stat().st_size for p in (folder / target).glob("*.json"))
    print(f"{page}: {len(found)} parts, {size / 1e6:.2f} MB of JSON beside it")
    if size > SIZE_LIMIT:
        print(f"more than {SIZE_LIMIT / 1e6:.1f} MB: leave parts out before it is committed")
    return page


def _page(target: str, found: Mapping[str, Data]) -> list[str]:
    lines = [f"# Measured on {_device(found) or target}", "", *_setting(target, found)]
    for part, (title, tell) in PARTS.items():
        lines += ["", f"## {title}", ""]
        lines += tell(found[part]) if part in found else ["Not run."]
    return [*lines, "", *_not_shown(found)]


def _device(found: Mapping[str, Data]) -> str:
    facts = _facts(found)
    return str(facts.get("device", ""))


def _facts(found: Mapping[str, Data]) -> Data:
    processes = found.get("aa", {}).get("processes") or []
    raws = [*processes, *found.get("table", {}).get("raw", {}).values()]
    return next((r["facts"] for r in raws), {})


def _setting(target: str, found: Mapping[str, Data]) -> list[str]:
    facts = _facts(found)
    dates = sorted({str(d.get("when", ""))[:10] for d in found.values()} - {""})
    known = [f"driver {facts['driver']}"] if "driver" in facts else []
    known += [f"torch {facts['torch']} (CUDA {facts['cuda']})"] if "torch" in facts else []
    where = f" and its JSON lies in [{target}/]({target}/)"
    return [
        f"One machine, {', '.join(dates) or 'undated'}{', ' if known else ''}{', '.join(known)}. "
        "This page is written by `benchmarks/proof.py page` from the raw JSON: every figure and "
        f"every verdict below is computed from it,{where}. To repeat it on this or another GPU:",
        "",
        "    python3 benchmarks/pack.py unpack FOLDER      # only without a package index",
        "    python3 benchmarks/proof.py aa detect table redteam limits --out DIR",
        "    python3 benchmarks/proof.py evolve --out DIR --minutes 7",
        "    python3 benchmarks/proof.py gqa --out DIR --minutes 4",
        "    python3 benchmarks/proof.py page --out DIR",
    ]


def _not_shown(found: Mapping[str, Data]) -> list[str]:
    return [
        "## What this does not show",
        "",
        "* **One machine, one day.** Another card of the same model has another clock and another "
        "power limit; the spread between machines is not in any interval here.",
        "* Other architectures: what was measured here says nothing about how their kernels do, "
        "and where the target is not listed above, nothing has run.",
        "* Null comparisons that share processes are not independent; their number says how many "
        "ways of choosing were tried, not how many experiments were made. The false-accept rate of "
        "the rule is simulated in `benchmarks/decision.py`.",
        "* A race that did not show in these launches is not absent.",
        "* Rank correlations hold for this search on this GPU and are no property of the estimate.",
    ]
