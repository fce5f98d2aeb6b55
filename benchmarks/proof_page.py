"""The page that `proof.py page` writes: what the raw JSON says, in words that follow from it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from proof_about import facts_of, setting
from proof_cases import limits, redteam
from proof_ground import load, plain
from proof_lineage import rank_correlation
from proof_parts import Data, aa, detect, grid, interval, percent, table, voided

from avo_cute.stats import median

ROOT = Path(__file__).resolve().parent.parent
SIZE_LIMIT = 1_500_000


# Runs.


def evolve(data: Data) -> list[str]:
    """Attempts, what was accepted, outcomes, and the static estimate beside it."""
    attempts = [a for a in data["attempts"] if a["number"]]
    lines = [_run_said(data, attempts), "", *_accepted(data, attempts)]
    lines += ["", "### Outcomes and time", "", *_outcomes(attempts)]
    return [*lines, "", "### Static estimate against measured times", "", *_correlation(data)]


def _run_said(data: Data, attempts: Sequence[Data]) -> str:
    """How many attempts this invocation made, and how fast."""
    began, seconds = data["command"]["began"], data["command"]["seconds"]
    made = [a for a in attempts if a["when"] >= began]
    told = f"{len(made)} attempts in {seconds:.0f} s, {len(made) / seconds * 3600:.0f} an hour"
    if made:
        ready = min(a["when"] for a in made) - began
        told += f"; the first was recorded after {ready:.0f} s (start, self-test, calibration)"
        if len(made) > 1 and seconds > ready:
            told += f", after that {(len(made) - 1) / (seconds - ready) * 3600:.0f} an hour"
    if data["command"].get("stopped"):
        return told + ". It was stopped for lack of time; the attempts in hand are not counted."
    code = data["command"]["code"]
    if code is None:
        return told + ". **It was still running when this was kept; how it ended is not known.**"
    return told + ("." if code == 0 else f". **It ended with exit code {code}.**")


def _accepted(data: Data, attempts: Sequence[Data]) -> list[str]:
    accepted = [a for a in attempts if a["status"] == "accepted"]
    if not accepted:
        return ["**Nothing was accepted.**"]
    began = data["command"]["began"]
    rows = []
    for a in accepted:
        hidden, _, count = a.get("hidden", "").partition(" ")
        told = f"{percent(float(hidden) - 1)} on {count}" if count else "–"
        minute = f"{(a['when'] - began) / 60:.1f}"
        rows.append((a["number"], minute, a["subject"], _gain(a), _score(a), told))
    head = ("attempt", "minute", "change", "gain over the one before", "over the seed",
            "hidden workloads")  # fmt: skip
    return [_best(accepted), "", *grid(head, rows)]


def _best(accepted: Sequence[Data]) -> str:
    best = max(accepted, key=lambda a: a["score"] or 0.0)
    low = best.get("score_interval", "").partition(" ")[0]
    kind = "head to head" if best.get("score_kind") == "measured" else "**estimated, not measured**"
    certified = f", lower bound within its processes {percent(float(low) - 1)} (99.5 %)"
    certified = certified if low else ""
    score = percent((best["score"] or 1) - 1)
    return f"Best: attempt {best['number']}, {score} over the seed, {kind}{certified}."


def _gain(attempt: Data) -> str:
    return percent(attempt["gain"] - 1) if attempt["gain"] else "–"


def _score(attempt: Data) -> str:
    if not attempt["score"]:
        return "–"
    low, _, high = attempt.get("score_interval", "").partition(" ")
    bounds = f" [{percent(float(low) - 1)}, {percent(float(high) - 1)}]" if high else ""
    return percent(attempt["score"] - 1) + bounds


def verified(data: Data) -> list[str]:
    if "said" not in data:
        return [f"Not run: {data.get('why', 'nothing was kept')}."]
    said, command = data["said"], data["command"]
    if "holds" not in said:
        why = "stopped for lack of time" if command.get("stopped") else said.get("text", "")
        how = f"exit {command['code']} after {command['seconds']:.0f} s"
        return [f"**`verify best` gave no answer** ({how}): {' '.join(why.split()) or 'no word'}"]
    how = "measured it again in fresh processes, on hidden workloads of their own"
    told = (
        f"`verify best` rebuilt attempt {said.get('attempt', '?')} with an empty cache and "
        f"{how if said.get('measured_now') else '**measured nothing**'} "
        f"({command['seconds']:.0f} s): "
    )
    if not said["holds"]:
        why = " ".join(str(said.get("why")).split())
        return [told + f"**it does not hold** (exit {command['code']}): {why}"]
    found = said.get("measured") or {}
    same = "the same objects byte for byte" if said.get("artifact_equal") else "other objects"
    return [
        told + f"the record holds. {same.capitalize()}; gain over its parent now "
        f"{interval(said.get('gain_interval'))}, recorded {interval(said.get('recorded_gain'))}; "
        f"over the seed now {interval(found.get('score'))}; hidden workloads "
        f"{interval(found.get('hidden'))}."
    ]


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
    wall = math.fsum(a["measuring"].get("wall_s", 0.0) for a in attempts)
    whole = f"{sums['busy_s'] / wall:.0%}" if wall else "unknown"
    used = f"GPU busy in {busy} of the timing, which is {whole} of the time of measuring processes."
    return [*grid(head, rows), "", f"{used} {voided(void, rounds)}"]


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
    """What the best of one group of workloads is worth on another, and what became of it."""
    attempts = [a for a in data["attempts"] if a["number"]]
    start = next((a for a in data["attempts"] if a["number"] == 0), None)
    lines = [
        f"A run on `--workloads {data['group']}` from the best of the run before. "
        + _run_said(data, attempts),
        "",
    ]
    if start is None:
        return [*lines, f"**It did not get as far as its start**: {data.get('why', '')}"]
    lines += [*_carried(data, start), ""]
    if not attempts:
        return [*lines, "No attempt was made in the time given: what had to change is not known."]
    changed = any(a["status"] == "accepted" for a in attempts)
    lines.append(
        "What had to change: the accepted attempts below; their diffs are in the JSON."
        if changed
        else "Nothing that was tried in the time given is better than what was carried over."
    )
    return [*lines, "", *_accepted(data, attempts), "", *_outcomes(attempts)]


def _carried(data: Data, start: Data) -> list[str]:
    if not start["score"]:
        return ["The start was not compared with the seed."]
    gains = dict(zip(data["workloads"], start["gains"], strict=False))
    took = start["when"] - data["command"]["began"]
    said = (
        f"What carried over: unchanged, it is {_score(start)} over the seed on these workloads "
        f"({start.get('score_kind', 'static')}), known after {took:.0f} s."
    )
    hidden, _, count = start.get("hidden", "").partition(" ")
    if count:
        told = f"On {count} hidden workloads it is {percent(float(hidden) - 1)}."
        said += (
            f" {told}" if float(hidden) > 0.995 else f" **{told} As a candidate it would fail.**"
        )
    if not gains:
        return [said]
    rows = [(name, percent(gain - 1)) for name, gain in gains.items()]
    return [said, "", *grid(("workload", "over the seed, unchanged"), rows)]


PARTS: dict[str, tuple[str, Callable[[Data], list[str]]]] = {
    "aa": ("Equal kernels", aa),
    "detect": ("Known delays", detect),
    "table": ("The seed and the libraries", table),
    "redteam": ("Red team", redteam),
    "limits": ("What a candidate costs", limits),
    "evolve": ("A run of evolve", evolve),
    "verify": ("Verification of its best version", verified),
    "gqa": ("From MHA to GQA", gqa),
    "gqa8": ("From MHA to GQA with 8 query heads for each key head", gqa),
}


OPTIONAL = ("gqa8",)


def short(part: str, data: Data) -> list[str]:
    """A part as it is shown on the terminal."""
    return [line for line in PARTS[part][1](data) if line]


def write(out: Path, to: Path | None = None) -> Path:
    """The page of what is in OUT, and its JSON beside it; returns the page's path."""
    found = {part: data for part in PARTS if (data := load(out, part)) is not None}
    if not found:
        raise SystemExit(f"{out} holds no part of a proof")
    targets = sorted({str(data["target"]) for data in found.values()})
    if len(targets) > 1:
        raise SystemExit(f"{out} holds parts for {' and '.join(targets)}: one page is for one")
    folder, target = to or ROOT / "docs" / "results", targets[0]
    (folder / target).mkdir(parents=True, exist_ok=True)
    page = folder / f"{target}.md"
    _replace(page, "\n".join(_page(target, found)) + "\n")
    for part, data in found.items():
        _replace(folder / target / f"{part}.json", json.dumps(plain(data)) + "\n")
    size = sum(p.stat().st_size for p in (folder / target).glob("*.json"))
    print(f"{page}: {len(found)} of {len(PARTS)} parts, {size / 1e6:.2f} MB of JSON beside it")
    if size > SIZE_LIMIT:
        print(f"more than {SIZE_LIMIT / 1e6:.1f} MB: leave parts out before it is committed")
    return page


def _replace(path: Path, text: str) -> None:
    """Also where the file there may only be read, as what came from elsewhere may be."""
    scratch = path.with_name(f"{path.name}.part")
    scratch.write_text(text)
    scratch.replace(path)


def _page(target: str, found: Mapping[str, Data]) -> list[str]:
    devices = dict.fromkeys(d for data in found.values() if (d := facts_of(data)["device"]))
    missing = [f"`{part}`" for part in PARTS if part not in (*found, *OPTIONAL)]
    lines = [f"# Measured on {' and '.join(devices) or target}", "", *_written(target)]
    lines += ["", *setting(found)]
    lines += ["", f"**Not run: {', '.join(missing)}.**"] if missing else []
    for part, (title, tell) in PARTS.items():
        if part in OPTIONAL and part not in found:
            continue
        lines += ["", f"## {title}", ""]
        lines += _shown(tell, found[part]) if part in found else ["Not run."]
    return [*lines, "", *_not_shown(found)]


def _shown(tell: Callable[[Data], list[str]], data: Data) -> list[str]:
    """A part that was cut short may lack anything; the others are shown all the same."""
    try:
        return tell(data)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        return [f"**Its JSON is not whole and cannot be shown** ({type(error).__name__}: {error})."]


def _written(target: str) -> list[str]:
    return [
        "This page is written by `benchmarks/proof.py page` from the raw JSON in "
        f"[{target}/]({target}/): every figure and every verdict below is computed from it. "
        "To repeat it on this or another GPU, in a checkout of the commit below (where it names "
        "files instead, they were not committed as they were, or it could not be told there):",
        "",
        "    python3 benchmarks/pack.py pack FOLDER        # elsewhere; only without an index",
        "    python3 benchmarks/pack.py unpack FOLDER      # there",
        "    python3 benchmarks/proof.py --out DIR         # aa detect table limits",
        "    python3 benchmarks/proof.py redteam evolve verify gqa --out DIR --within 3600",
        "    python3 benchmarks/proof.py gqa --group gqa8 --out DIR --within 600",
        "    python3 benchmarks/proof.py page --out DIR",
    ]


def _not_shown(found: Mapping[str, Data]) -> list[str]:
    return [
        "## What this does not show",
        "",
        "* **Another machine, another day.** Another card of the same model has another clock and "
        "another power limit; the spread between machines is not in any interval here.",
        "* Other architectures: what was measured here says nothing about how their kernels do, "
        "and where the target is not listed above, nothing has run.",
        "* Null comparisons that share processes are not independent; their number says how many "
        "ways of choosing were tried, not how many experiments were made. The false-accept rate of "
        "the rule is simulated in `benchmarks/decision.py`.",
        "* A race that did not show in these launches is not absent.",
        "* Rank correlations hold for this search on this GPU and are no property of the estimate.",
    ]
