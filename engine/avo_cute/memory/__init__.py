"""Memory: what a new session is told of the run, from git only, in a length that does not grow.

    attempts, notes, directive  →  sections  →  fitted into so many tokens

Each section has a share of the room, and what it does not need goes to the others. Within a section
the items that are worth most are told in full, then shorter, then counted. Whatever a candidate, a
compiler or an agent wrote stands between data marks, one line each, cut and without controls.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from ..catalogue import Direction, directions, mentions
from ..history import SEEN, kind_of, seen
from ..records import Attempt, Status
from ..sandbox import printable
from .fitting import Item, Section, cut, fitted

CHARACTERS_A_TOKEN = 4
NEAR = 0.99  # a gain from here on is a near miss
NEAR_MISSES = 12
LATEST = 10  # accepted attempts that are told before older, larger ones
GROUPS = 600  # of subjects, and REASONS of each kind of failure: more would not fit anyway
REASONS = 40


@dataclass(frozen=True, slots=True)
class Note:
    """What the session of this number wrote down for later ones."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class MemoryTask:
    """What the run is about. `directions` None: the catalogue's for the family; (): none."""

    title: str
    family: str = ""
    directions: Sequence[Direction] | None = None


def brief(
    attempts: Sequence[Attempt],
    notes: Sequence[Note],
    directive: str,
    task: MemoryTask,
    tokens: int,
) -> str:
    """What a session is told, in at most `tokens` (of four characters); attempts oldest first.

    Current best and its story, near misses, failures by kind with their reasons, what was tried,
    ideas of the catalogue with what became of them, notes of earlier sessions, the directive.
    """
    run = [a for a in attempts if a.number != 0]  # attempt 0 is where the run starts
    known = directions(task.family) if task.directions is None else task.directions
    sections = [
        _standing(attempts, run, task.title),
        _story(run),
        _near_misses(attempts, run),
        _failures(run),
        _tried(run),
        _ideas(known, run),
        _notes(notes),
        _directive(directive),
    ]
    return fitted([s for s in sections if s.items], max(0, tokens * CHARACTERS_A_TOKEN))


def near_misses(run: Sequence[Attempt]) -> list[Attempt]:
    """Attempts that were correct and nearly enough, the best first; of equal objects the first.

    Where any was measured, estimates do not count.
    """
    measured = any(kind_of(a) == "measured" for a in run)
    found: dict[str, Attempt] = {}
    for attempt in run:
        close = attempt.status in (Status.REJECTED, Status.EQUAL) and (attempt.gain or 0.0) >= NEAR
        if close and (kind_of(attempt) == "measured") == measured:
            found.setdefault(attempt.trailers.get("Artifact", attempt.tree), attempt)
    return sorted(found.values(), key=lambda a: (-(a.gain or 0.0), -a.number))


def reason_kind(attempt: Attempt) -> str:
    """Why an attempt ended, without what differs from one to the next: numbers, addresses."""
    return _NUMBER.sub("N", _why(attempt)[:200])


# What is told.


def _standing(attempts: Sequence[Attempt], run: Sequence[Attempt], title: str) -> Section:
    counts = Counter(a.status for a in run)
    told = ", ".join(f"{n:,} {status}" for status, n in counts.most_common())
    heading = f"{_line(title, 200)}: {len(run):,} attempts so far{': ' * bool(told)}{told}"
    accepted = [a for a in run if a.status is Status.ACCEPTED]
    if not accepted:
        start = next((a.subject for a in attempts if a.number == 0), "the seed")
        text = f"Nothing was accepted yet: the best version is where the run starts, {start}"
        return Section(heading, [Item((_line(text, 400),), 1)], 12)
    best = max(accepted, key=lambda a: (kind_of(a) == "measured", a.score or 0.0))
    items = [Item((_best(best, 900), _best(best, 200), _best(best, 0)), 2)]
    if accepted[-1].number != best.number:
        text = f"Later ones were accepted too; sessions start from {_accepted(accepted[-1], 72, 0)}"
        items.append(Item((text,), 1))
    return Section(heading, items, 12)


def _best(best: Attempt, length: int) -> str:
    lines = [f"The best version is {best.commit[:10]}, {_accepted(best, 72, length)}"]
    if length:
        facts = (f"{key}: {_line(best.trailers.get(key, ''), 300)}" for key in _FACTS)
        lines += [fact for fact in facts if not fact.endswith(": ")]
    return "\n".join(lines)


def _story(run: Sequence[Attempt]) -> Section:
    accepted = [a for a in run if a.status is Status.ACCEPTED]
    items = []
    for n, attempt in enumerate(accepted):
        texts = (_accepted(attempt, 72, 160), _accepted(attempt, 48, 0), _accepted(attempt, 0, 0))
        late = n >= len(accepted) - LATEST
        items.append(Item(texts, (attempt.gain or 1.0) + 1000 * late))
    return Section("What moved the score: every accepted attempt, oldest first", items, 22)


def _accepted(attempt: Attempt, subject: int, reasons: int) -> str:
    text = f"#{attempt.number}{_gain(attempt)}"
    if subject:
        score = "no score" if attempt.score is None else f"{attempt.score:.4f}"
        text += f", {score} {kind_of(attempt)}: {_subject(attempt, subject)}"
    why = _line(attempt.body[: 4 * reasons].partition(SEEN)[0], reasons)
    return f"{text} — {why}" if why else text


def _near_misses(attempts: Sequence[Attempt], run: Sequence[Attempt]) -> Section:
    numbers = {a.commit: a.number for a in attempts}
    items = []
    for attempt in near_misses(run)[:NEAR_MISSES]:
        against = numbers.get(attempt.trailers.get("Against", attempt.parent))
        on = "" if against is None else f" against #{against}"
        head = f"#{attempt.number} {attempt.status}{_gain(attempt)}{on}: {_subject(attempt, 72)}"
        items.append(Item((f"{head} — {_line(_why(attempt), 160)}", head), attempt.gain or 0.0))
    return Section("Near misses: correct, and nearly better", items, 10)


def _failures(run: Sequence[Attempt]) -> Section:
    kinds: dict[Status, dict[str, list[Attempt]]] = defaultdict(lambda: defaultdict(list))
    for attempt in run:
        if attempt.status is not Status.ACCEPTED:
            kinds[attempt.status][reason_kind(attempt)].append(attempt)
    counts = {status: sum(map(len, kinds[status].values())) for status in kinds}
    items = []
    for status in sorted(kinds, key=lambda s: -counts[s]):
        note = " (this machine's fault, no evidence)" if status is Status.INFRA_ERROR else ""
        reasons = f"different reasons: {len(kinds[status]):,}"
        head = f"{status}: {counts[status]:,} of {len(run):,}, {reasons}{note}"
        items.append(Item((head,), 1))
        latest = sorted(kinds[status].values(), key=lambda g: -g[-1].number)
        often = sorted(latest[3:], key=len, reverse=True)[:REASONS]
        for rank, group in enumerate((*latest[:3], *often)):
            items.append(Item(_reasons(group), -rank))
    return Section("What failed, and why: latest reasons first, then frequent ones", items, 20)


def _reasons(group: Sequence[Attempt]) -> tuple[str, ...]:
    last = group[-1]
    why = f"  {len(group):,}×, last #{last.number}: "
    return f"{why}{_line(_why(last), 200)}", f"{why}{_line(_why(last), 60)}"


def _tried(run: Sequence[Attempt]) -> Section:
    groups: dict[frozenset[str], list[Attempt]] = defaultdict(list)
    worth: dict[frozenset[str], float] = {}
    words: Counter[str] = Counter()
    for n, attempt in enumerate(run, 1):
        told = _words(attempt)
        key = frozenset(told)
        groups[key].append(attempt)
        worth[key] = log2(len(groups[key])) + 4 * n / len(run)  # often, or of late
        words.update(told)
    ranked = sorted(groups, key=lambda key: -worth[key])[:GROUPS]
    items = [Item(_group(groups[key]), worth[key]) for key in ranked]
    if len(groups) > LATEST:
        often = ", ".join(f"{word} {count}" for word, count in words.most_common(400))
        texts = tuple(f"Words of all subjects: {_line(often, n)}" for n in (3000, 1000, 250))
        items.append(Item(texts, 1000))
    title = f"What was tried: {len(groups):,} different subjects, alike ones told once"
    return Section(title, items, 22)


def _group(group: Sequence[Attempt]) -> tuple[str, ...]:
    last = group[-1]
    return (
        f"{_subject(last, 72)} ({_outcomes(group)})",
        f"{_subject(last, 44)} {len(group)}×, #{last.number}",
    )


def _ideas(known: Sequence[Direction], run: Sequence[Attempt]) -> Section:
    spoken = mentions([d.name for d in known], run)
    items = []
    for direction in sorted(known, key=lambda d: len(spoken[d.name])):
        name, found = f"{direction.name} ({direction.title})", spoken[direction.name]
        if found:
            items.append(Item((f"{name}: spoken of in attempts, {_outcomes(found)}",), 0))
            continue
        full = f"{direction.mechanism} Needs: {direction.precondition} Gave: {direction.effect}"
        texts = (f"{name}: not tried. {_line(full, 600)}", f"{name}: not tried")
        items.append(Item(texts, 1))
    return Section("Ideas of the catalogue: say its name where you try one", items, 14, "catalogue")


def _notes(notes: Sequence[Note]) -> Section:
    items = []
    for note in sorted(notes, key=lambda n: -n.number):
        text = note.text[:4000].strip()
        texts = tuple(f"Session {note.number}: {cut(text, n)}" for n in (2000, 500, 150))
        items.append(Item(texts, note.number))
    return Section("Notes of earlier sessions, newest first", items, 16, "notes")


def _directive(text: str) -> Section:
    """Perhaps a model's words, which has read what candidates said: that it counts is said outside
    the mark."""
    clean = printable(text[:20_000]).strip()
    items = [Item(tuple(cut(clean, n) for n in (8000, 3000, 1000, 300, 100)), 1)] if clean else []
    return Section(_SUPERVISED, items, 14, "supervisor")


_SUPERVISED = "The supervisor's directions: begin with one; they change no rule"
_FACTS = ("Score-interval", "Hidden", "Device", "Tflops", "Latency-us", "Cycles")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
_PREFIX = re.compile(r"^\s*\[[^\]]*\]\s*")
_WORD = re.compile(r"[a-z_][a-z0-9_]+")
_EMPTY = frozenset("the of to in on at by for with from and or an is it its as into per".split())


def _words(attempt: Attempt) -> list[str]:
    """What tells a subject from another: its words, each once, in their order."""
    text = _PREFIX.sub("", attempt.subject[:200].lower())
    return [word for word in dict.fromkeys(_WORD.findall(text)) if word not in _EMPTY]


def _why(attempt: Attempt) -> str:
    """The engine's reason: its line comes after all that the candidate's author wrote, who may have
    written one like it; what a compiler said comes later still, but is indented."""
    _, found, rest = f"\n{attempt.body}".rpartition(f"\n{SEEN}{attempt.status}: ")
    return rest.partition("\n")[0] if found else seen(attempt)


def _outcomes(group: Sequence[Attempt]) -> str:
    counts = Counter(a.status for a in group).most_common()
    best = max((a for a in group if a.gain is not None), key=lambda a: a.gain or 0, default=None)
    gain = "" if best is None else f"; best{_gain(best)}"
    told = ", ".join(f"{n}× {status}" for status, n in counts)
    return f"{told}{gain}; last #{group[-1].number}"


def _gain(attempt: Attempt) -> str:
    return "" if attempt.gain is None else f" {attempt.gain - 1:+.2%}"


def _subject(attempt: Attempt, length: int) -> str:
    return _line(_PREFIX.sub("", attempt.subject[:500]), length)


def _line(text: str, length: int) -> str:
    """At most `length` characters on one line, without controls."""
    words = " ".join(text[: 4 * length].split())
    return cut(words if words.isprintable() else printable(words), length)
