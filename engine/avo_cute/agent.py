"""The agent: Vary(P) = Agent(P, K, f), the variation step of AVO (arXiv 2603.24517).

    while the session is not over:  act(reply())

One session is one conversation, append-only. It begins with what the lineage remembers (P), has
tools on the workspace, on the lineage and on the knowledge base (K), and one door to the score (f).
It ends with an accepted candidate, with the session's or the run's budget, or when the model has
nothing left to do; the next session starts from the lineage again, because git is the memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from .model import Answered, Ask, Model, Reply, Tool, Turn, tool_results, user_text
from .operators import Desk
from .operators.asking import paid
from .prompts import prompt
from .tools import Knowledge, Toolbox, toolbox

MAX_TOKENS = 32_000  # of one answer, thinking included
STEPS = 250  # answers of one session
CONTEXT_TOKENS = 160_000  # a conversation longer than this costs more than a new session learns
ROOM_TOKENS = 130_000  # from here on the agent is told to write down what it learnt
REMIND = 20  # answers after which the agent is told again what is left to spend
IDLE = 3  # answers in a row without a tool call that end the session


@dataclass(frozen=True, slots=True)
class Agent:
    """The `agent` operator. Without `knowledge`, or without `remember`, it is AVO's ablation."""

    model: Model
    knowledge: Knowledge | None
    remember: bool = True

    @property
    def name(self) -> str:
        """As `Operator:` says it, with what an ablation does without."""
        without = [] if self.knowledge else ["knowledge"]
        without += [] if self.remember else ["memory"]
        return f"agent {self.model.name}" + (f" without {' and '.join(without)}" if without else "")

    def vary(self, session: Desk) -> bool:
        """One session. True: another one may find more."""
        tools = toolbox(session, self.knowledge, self.remember)
        talk = Talk(self.model, session, system_prompt(session), tools)
        talk.say(opening(session, self.remember))
        while not (session.over() or talk.ended):
            talk.act(talk.reply())
        if talk.ended:
            session.keep("ended.txt", f"{talk.ended}\n".encode("utf-8", "replace"))
        return True


class Talk:
    """One append-only conversation of a session; every turn is kept in the lineage as it comes."""

    def __init__(self, model: Model, session: Desk, system: str, tools: Toolbox) -> None:
        self._model, self._session, self._system, self._tools = model, session, system, tools
        self._offered = [Tool(n, tools.description(n), tools.schema(n)) for n in tools.names]
        self._turns: list[Turn] = []
        self._replies = self._idle = self._length = self._kept = 0
        self.ended = ""  # why, once it has

    def say(self, text: str) -> None:
        """Append a turn of ours."""
        self._append(user_text(text))

    def reply(self) -> Reply:
        """The model's next turn, paid for and kept, whatever it is."""
        ask = Ask(self._system, tuple(self._turns), tuple(self._offered), MAX_TOKENS)
        reply = paid(self._session, self._model, ask)
        if reply.turn.content:  # an empty turn cannot be sent back
            self._turns.append(reply.turn)
        self._keep(reply.turn, stop=reply.stop, tokens=reply.usage.tokens)
        self._replies += 1
        self._length = reply.length
        if self._replies >= STEPS:
            self.ended = f"{STEPS} answers without an accepted candidate"
        elif self._length > CONTEXT_TOKENS:
            self.ended = "the conversation is full"
        return reply

    def act(self, reply: Reply) -> None:
        """Do what a reply asks for; what to do is a table of its stop reason."""
        _ACTIONS.get(reply.stop, Talk._nudge)(self, reply)

    def _use_tools(self, reply: Reply) -> None:
        if not reply.uses:
            return self._nudge(reply)
        results = []
        for use in reply.uses:  # in order: two edits may rest on each other
            if use.input is None:
                results.append(Answered(use.id, use.error, True))
            elif self._session.over() and use.name != "note":
                results.append(Answered(use.id, "not done: the session is over", True))
            else:
                answer = self._tools.use(use.name, use.input)
                results.append(Answered(use.id, answer.text, answer.error))
        judged = any(use.name == "evaluate" for use in reply.uses)
        self._append(tool_results(results, self._room(judged)))
        if all(use.input is None for use in reply.uses):
            self._count_idle()
        else:
            self._idle = 0

    def _cut(self, reply: Reply) -> None:
        """The answer reached its limit: a tool call in it is half of one and is not run."""
        if not reply.uses:
            return self._nudge(reply)
        text = "not done: the answer was cut at its limit; make several smaller edits instead"
        self._append(tool_results([Answered(use.id, text, True) for use in reply.uses]))
        self._count_idle()

    def _nudge(self, reply: Reply) -> None:
        if self._count_idle():
            return
        tried = self._session.tried
        what = "Nothing counts before `evaluate` has judged it" if not tried else "Not accepted yet"
        unanswered = [Answered(use.id, "not done", True) for use in reply.uses]
        text = f"{what}, and the session goes on: use a tool, or note what you learnt."
        self._append(tool_results(unanswered, text) if unanswered else user_text(text))

    def _count_idle(self) -> bool:
        self._idle += 1
        if self._idle >= IDLE:
            self.ended = f"{IDLE} answers in a row without a complete tool call"
        return bool(self.ended)

    def _refused(self, reply: Reply) -> None:
        self.ended = f"the model refused to go on {reply.text[:500]}"

    def _full(self, reply: Reply) -> None:
        self.ended = "the conversation is full"

    def _room(self, judged: bool) -> str:
        """What the agent should know about its means before it goes on."""
        told = []
        if (judged or self._replies % REMIND == 0) and (left := self._session.left()):
            told.append(f"Left to spend: {left}.")
        if self._length >= ROOM_TOKENS:
            told.append("This conversation is nearly full: note what you learnt, then evaluate.")
        return " ".join(told)

    def _append(self, turn: Turn) -> None:
        self._turns.append(turn)
        self._keep(turn)

    def _keep(self, turn: Turn, **facts: object) -> None:
        self._kept += 1
        text = json.dumps({"role": turn.role, "content": turn.content, **facts}, ensure_ascii=False)
        self._session.keep(f"turns/{self._kept:04d}.json", text.encode("utf-8", "replace"))


_ACTIONS: dict[str, Callable[[Talk, Reply], None]] = {
    "tool_use": Talk._use_tools,
    "max_tokens": Talk._cut,
    "end_turn": Talk._nudge,
    "stop_sequence": Talk._nudge,
    "pause_turn": Talk._nudge,  # only tools that the API runs itself pause, and it has none of ours
    "refusal": Talk._refused,
    "model_context_window_exceeded": Talk._full,
}


def opening(session: Desk, remember: bool) -> str:
    """The first turn: what the lineage remembers, or only where the session starts."""
    told = f"You start from {session.start}."
    if left := session.left():
        told += f" Left to spend: {left}."
    if not remember:
        return f"{told} No record of earlier attempts is given to you."
    return f"{told}\n\n{session.brief()}"


def system_prompt(session: Desk) -> str:
    """The stable part, the same bytes in every session of a run: it is what the API caches."""
    return prompt("agent", **session.about())
