"""What the red team and one honest candidate came to, in words that follow from their JSON."""

from __future__ import annotations

from collections.abc import Sequence

from proof_parts import Data, grid, interval, number

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
    known = {c["case"] for c in data["cases"]}
    not_run = [name for name in data.get("planned", ()) if name not in known]
    undecided = [c["case"] for c in wrong if c.get("then", c["status"]) == "infra-error"]
    others = len(wrong) > as_expected
    verdict = "none was accepted" if not accepted else f"**accepted: {', '.join(accepted)}**"
    lines = [
        f"{len(wrong)} wrong candidates, edits of FlashAttention-4's own source that build: "
        f"{verdict}; {as_expected} ended as they should, in the audit or at the first check of the "
        f"commit level{', and ' + str(len(wrong) - as_expected) + ' did not' if others else ''}.",
    ]
    if not_run:
        lines += ["", f"**Not judged: {len(not_run)} of {len(data['planned'])}** "
                  f"({', '.join(not_run)})."]  # fmt: skip
    if undecided:
        lines += ["", f"**Nobody can say** (the machine failed): {', '.join(undecided)}."]
    if passed:
        lines.append("")
        lines.append("**Correctness did not see** " + "; ".join(map(_through, passed)) + ".")
        lines += ["", *_ends(passed)]
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
        + (f"All {len(honest)} did." if not bad else f"**Refused: {', '.join(bad)}.**")
        if honest
        else "No honest variant was judged."
    )
    return [*lines, "", *_honest(honest), "", _lanes(data)]


def _honest(cases: Sequence[Data]) -> list[str]:
    """With their speeds, if any was timed."""
    head: tuple[str, ...] = ("variant", "what it does", "correctness", "comparisons")
    rows = [(c["case"], c["does"], _end(c), c["comparisons"]) for c in cases]
    if not any("gain" in c for c in cases):
        return [*grid(head, rows), "", "Their speeds were not measured in this run."]
    speeds = [(interval(c.get("gain")), c.get("screening", "–")) for c in cases]
    head += ("gain over the seed, one process, two workloads", "screening would say")
    return grid(head, [(*row, *speed) for row, speed in zip(rows, speeds, strict=True)])


def _end(case: Data) -> str:
    then = f", then {case['then']}" if "then" in case else ""
    mark = "" if case["as_expected"] else " (!)"
    before = ", ".join(case.get("earlier", []))
    return f"{case['status']}{then}{mark}{f' (in an earlier run {before})' if before else ''}"


def _through(case: Data) -> str:
    luck = "" if case["sure"] else " (not sure to show)"
    then = case.get("then", "not followed up")
    return f"{case['case']}{luck}, in the end {then}"


def _ends(cases: Sequence[Data]) -> list[str]:
    """What the whole evaluation said of those: screening is no more than that."""
    told = [f"{c['case']}: {c['then_reason']}" for c in cases if c.get("then_reason")]
    screened = sum("screened" in text for text in told)
    early = f" {screened} of them ended at screening, so the rule that accepts did not see them."
    return [f"They are no faster, which is all that stopped them.{early if screened else ''} "
            f"In its words: {'; '.join(told)}."] if told else []  # fmt: skip


def _lanes(data: Data) -> str:
    return (
        f"Seconds are those of judging, with up to {data['lanes']} cases side by side on the GPU. "
        f"Cases that hang were given {data['hang_limit_s']:.0f} s instead of the engine's 60 s a "
        "step."
    )


# What a candidate costs.


def limits(data: Data) -> list[str]:
    if "levels" not in data:
        return [f"Not run: {data.get('why', 'nothing was timed')}."]
    allowed, rows, over = {"screening": 20, "commit": 120}, [], []
    missing = [n for n in allowed if not data["levels"].get(n, {}).get("processes")]
    for name, level in data["levels"].items():
        if level["wall_s"] > allowed[name]:
            over.append(name)
        if level["processes"]:
            rows.append((name, level["processes"], f"{level['wall_s']:.1f}", allowed[name],
                         f"{level['timed_s']:.1f}", f"{level['after_s']:.1f}",
                         number(level["busy"], ".0%")))  # fmt: skip
    idle = [n for n, v in data["levels"].items() if v["processes"] and not (v["busy"] or 0) >= 0.7]
    if over or missing:
        verdict = f"**Over the limit: {', '.join(over)}.** " if over else ""
        verdict += f"**Not reached: {', '.join(missing)}.**" if missing else ""
    else:
        verdict = "Both levels are within their limits."
    idle_said = f" **The GPU was busy for less than 70 %: {', '.join(idle)}.**" if idle else ""
    return [
        f"One evaluation of an honest variant ({data['variant']}): {data['status']}, gain "
        f"{interval(data['gain'])}, hidden workloads {interval(data['hidden'])}. Wall seconds once "
        "its public objects are built, process starts and builds for hidden workloads included; "
        "the incumbent is the seed, so two arms are timed (three after an acceptance). "
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
