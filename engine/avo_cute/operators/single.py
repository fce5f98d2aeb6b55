"""The `single-turn` operator: one prompt with sampled parents, one answer, one change.

This is how FunSearch and AlphaEvolve vary a program: the model sees the incumbent's source, a few
earlier changes with their scores, and answers with a change as SEARCH/REPLACE blocks. It has no
tools, no second look and no repair: what the agent is compared with.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..errors import BadInput
from ..globs import matches
from ..model import Ask, Model, Reply, user_text
from ..prompts import prompt
from ..records import Attempt
from ..tools.quoting import quoted
from . import Desk, Proposal
from .asking import paid

MAX_TOKENS = 16_000
PARENTS = 3  # earlier changes in a prompt
IDLE = 3  # answers in a row without a usable change that end the session
SOURCE_CHARACTERS = 240_000
CHANGE_CHARACTERS = 6_000


@dataclass(frozen=True, slots=True)
class SingleTurn:
    """The operator; `seed` fixes which parents are drawn."""

    model: Model
    seed: int = 0

    @property
    def name(self) -> str:
        return f"single-turn {self.model.name}"

    def vary(self, session: Desk) -> bool:
        idle = asked = 0
        while idle < IDLE and not session.over():
            asked += 1
            shown = sampled(session.history(), self._chance(session))
            reply = paid(session, self.model, self._ask(session, shown))
            numbers = [attempt.number for attempt in shown]
            kept = json.dumps({"shown": numbers, "stop": reply.stop, "said": reply.text})
            session.keep(f"turns/{asked:04d}.json", kept.encode())
            try:
                session.evaluate(proposal(reply, session.parent.files, session.editable))
                idle = 0
            except BadInput as error:
                session.keep(f"turns/{asked:04d}-unusable.txt", str(error).encode())
                idle += 1
        return True

    def _chance(self, session: Desk) -> random.Random:
        return random.Random(f"{self.seed} {session.number} {len(session.tried)}")

    def _ask(self, session: Desk, shown: Sequence[Attempt]) -> Ask:
        parts = ["The source of the best version so far:", *_sources(session)]
        parts += [_told(session, attempt) for attempt in shown]
        parts.append("Answer with one change in the form described.")
        system = prompt("single-turn", **session.about())
        return Ask(system, (user_text("\n\n".join(parts)),), (), MAX_TOKENS)


def sampled(attempts: Sequence[Attempt], chance: random.Random) -> list[Attempt]:
    """Earlier changes to show: drawn without replacement, better scores more likely."""
    pool = [a for a in attempts if a.number > 0 and a.score is not None]
    chosen: list[Attempt] = []
    while pool and len(chosen) < PARENTS:
        best = max(a.score or 0.0 for a in pool)
        weights = [2.0 ** (100 * ((a.score or 0.0) - best)) for a in pool]  # 1 % halves
        (drawn,) = chance.choices(pool, weights)
        pool.remove(drawn)
        chosen.append(drawn)
    return chosen


def proposal(reply: Reply, files: Mapping[str, bytes], editable: Sequence[str]) -> Proposal:
    """The change that an answer describes; `BadInput` says what is wrong with it."""
    if reply.stop not in ("end_turn", "stop_sequence"):
        raise BadInput(f"the answer ended with {reply.stop}")
    blocks = _BLOCK.findall(reply.text)
    if not blocks:
        raise BadInput("no SEARCH/REPLACE block in the answer")
    if len(blocks) != len(_BEGIN.findall(reply.text)):
        raise BadInput("a SEARCH/REPLACE block in the answer is not complete")
    changed: dict[str, str] = {}
    path = ""
    for named, old, new in blocks:
        path = named.strip("`") or path  # a second block of a file may go without its name
        if path not in files or not matches(path, editable):
            raise BadInput(f"{path[:100]!a} is no file of the candidate that may change")
        text = changed[path] if path in changed else files[path].decode("utf-8", "replace")
        if text.count(old) != 1 or not old.strip():
            raise BadInput(f"a SEARCH text occurs {text.count(old)} times in {path}, not once")
        changed[path] = text.replace(old, new)
    said = {key.lower(): value.strip() for key, value in _SAID.findall(reply.text)}
    subject = said.get("subject", "Change " + ", ".join(p.rpartition("/")[2] for p in changed))
    body = "\n\n".join(f"{k.capitalize()}: {said[k]}" for k in _WHY if k in said)
    return Proposal(subject, body, {path: text.encode() for path, text in changed.items()})


def _sources(session: Desk) -> Iterator[str]:
    """The files that matter most, as far as there is room; where none are named, all that may
    change."""
    files, room = session.parent.files, SOURCE_CHARACTERS
    named = [path for path in session.focus if path in files]
    for path in named or sorted(path for path in files if matches(path, session.editable)):
        text = files[path].decode("utf-8", "replace")
        cut = f" (its first {room} characters)" if len(text) > room else ""
        if room > 0:
            yield f"FILE {path}{cut}\n{quoted('source', text[:room])}"
        room -= len(text)


def _told(session: Desk, attempt: Attempt) -> str:
    score = "" if attempt.score is None else f", score {attempt.score:.4f}"
    change = session.lineage.diff(attempt.parent, attempt.commit)[:CHANGE_CHARACTERS]
    return f"An earlier change ({attempt.status}{score}):\n{quoted('lineage', change)}"


_WHY = ("hypothesis", "prediction")
_SAID = re.compile(r"^(Subject|Hypothesis|Prediction):[ \t]*(.+)$", re.MULTILINE | re.IGNORECASE)
_BEGIN = re.compile(r"^<{5,9} SEARCH", re.MULTILINE)
_BLOCK = re.compile(
    r"^(?:FILE[ \t]+(\S+)[ \t]*\n)?<{5,9} SEARCH[ \t]*\n(.*?)^={5,9}[ \t]*\n(.*?)^>{5,9} REPLACE",
    re.MULTILINE | re.DOTALL,
)
