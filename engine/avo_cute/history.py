"""Attempts as commits tell them: read with one `git log`, tolerant of whatever was done to them.

A trailer may be missing, doubled, edited or of another version: such an attempt is still listed.
What cannot be known is -1 (number), "" (run), None (score); a status that cannot be read is
`accepted` on a run's branch, where nothing else can be, and `infra-error` elsewhere, which is
never evidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from . import trailers
from .errors import BadInput
from .records import Attempt, Status
from .repo import Repo

UNKNOWN = -1
SEEN = "What was seen: "  # begins the line of a body that says how an attempt ended


def attempts_of(repo: Repo, run: str, start: str) -> list[Attempt]:
    """Every attempt of a run that began at commit `start`, by number, newest last."""
    found = _read(repo, f"--glob=refs/attempts/{run}/*", branch(run), f"^{start}")
    found = [a for a in found if a.run in (run, "")]
    if any(a.number == UNKNOWN or not a.run or not _known(a) for a in found):
        found = _mend(repo, run, start, found)
    found.sort(key=lambda a: (a.number, a.when))
    return found


def attempt_at(repo: Repo, commit: str) -> Attempt:
    """The attempt that one commit records; a seed reads as `no-change`."""
    (attempt,) = _read(repo, "-1", commit)
    return attempt


def attempt_of(commit: str, tree: str, parent: str, when: int, message: str) -> Attempt:
    """A commit's facts read as an attempt."""
    subject, body, facts = trailers.parse(message)
    unreadable = Status.NO_CHANGE if "Upstream" in facts else Status.INFRA_ERROR
    return Attempt(
        commit=commit,
        tree=tree,
        parent=parent,
        run=facts.get("Run", ""),
        number=_number(facts.get("Attempt", "")),
        status=_STATUSES.get(facts.get("Status", ""), unreadable),
        subject=subject,
        body=body,
        when=when,
        trailers=facts,
        score=_ratio(facts.get("Score", "")),
        gain=_ratio(facts.get("Gain", "").partition(" ")[0]),
    )


def best_of(run: str, attempts: Sequence[Attempt]) -> Attempt:
    """The accepted attempt with the highest score, the first of equals.

    A static estimate is never compared with a measurement: where any was measured, only those
    count. Where none was accepted it is attempt 0, where the run starts.
    """
    scored = [a for a in attempts if a.status is Status.ACCEPTED and a.score is not None]
    start = next((a for a in attempts if a.number == 0), None)
    if not scored and start is not None:
        return start
    if not scored:
        raise BadInput(f"run {run} has no accepted attempt yet")
    return max(scored, key=lambda a: (a.trailers.get("Score-kind") == "measured", a.score))


def last_number(repo: Repo, run: str, attempts: Sequence[Attempt]) -> int:
    """The highest number that a trailer or a ref of the run has; 0 where there is none."""
    return max([0, *(a.number for a in attempts), *_numbers(repo, run).values()])


def seen(attempt: Attempt) -> str:
    """Why an attempt ended as it did, from its body."""
    lines = (line.strip() for line in attempt.body.splitlines())
    return next((t.removeprefix(SEEN) for t in lines if t.startswith(SEEN)), str(attempt.status))


def kind_of(attempt: Attempt) -> str:
    """ "measured" for an attempt that a GPU judged, else "static"."""
    told = attempt.trailers
    return "measured" if "Level" in told else told.get("Score-kind", "static")


def branch(run: str) -> str:
    """The ref of a run's accepted attempts."""
    return f"refs/heads/lineage/{run}"


def attempt_ref(run: str, number: int) -> str:
    """The ref of an attempt that was not accepted."""
    return f"refs/attempts/{run}/{number:04d}"


def search(repo: Repo, text: str, changes: bool, limit: int) -> list[Attempt]:
    """The newest attempts of all runs, at most `limit`, whose message holds `text`, or whose change
    adds or removes it (git's pickaxe). A text, not an expression; upper and lower case are alike
    in messages."""
    if changes:
        how = [f"-S{text}"]
    else:
        how = ["--fixed-strings", "--regexp-ignore-case", f"--grep={text}"]
    every = ("--glob=refs/attempts/*", "--glob=refs/heads/lineage/*")
    found = _read(repo, f"--max-count={limit}", "--date-order", *how, *every)
    return [a for a in found if "Attempt" in a.trailers]


_FORM = "%H%x00%T%x00%P%x00%ct%x00%B"
_STATUSES = {str(status): status for status in Status}


def _read(repo: Repo, *arguments: str) -> list[Attempt]:
    return [
        attempt_of(commit, tree, parents[:40], int(when), message)
        for commit, tree, parents, when, message in repo.log(_FORM, *arguments)
    ]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else UNKNOWN


def _ratio(text: str) -> float | None:
    """A speed-up: positive and finite, or nothing."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None


def _known(attempt: Attempt) -> bool:
    return attempt.trailers.get("Status", "") in _STATUSES


def _numbers(repo: Repo, run: str) -> dict[tuple[str, str], int]:
    """What the names of a run's refs say: (ref, commit) -> number."""
    refs = repo.refs(f"refs/attempts/{run}")
    return {(ref, commit): _number(ref.rpartition("/")[2]) for ref, commit in refs.items()}


def _mend(repo: Repo, run: str, start: str, found: list[Attempt]) -> list[Attempt]:
    """Fill in what the refs know: the run, the number in a ref's name, being on the branch."""
    numbers = {commit: number for (_, commit), number in _numbers(repo, run).items()}
    accepted = {fields[0] for fields in repo.log("%H", "--first-parent", branch(run), f"^{start}")}
    mended = []
    for attempt in found:
        number, status = attempt.number, attempt.status
        if number == UNKNOWN:
            number = numbers.get(attempt.commit, UNKNOWN)
        if attempt.commit in accepted and not _known(attempt):
            status = Status.ACCEPTED
        mended.append(replace(attempt, run=run, number=number, status=status))
    return mended
