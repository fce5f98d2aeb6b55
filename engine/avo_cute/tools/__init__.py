"""Tools: what an agent can do in a session, as plain functions that take and return text.

    files.py   list, view, search, str_replace, insert, create, restore, shell: the workspace
    folder.py  the workspace on disk, where nothing is trusted
    judge.py   build, evaluate, profile: the engine's judgement of it
    past.py    lineage_log, lineage_show, lineage_diff, lineage_search: every earlier attempt
    study.py   knowledge_search, knowledge_read, note: the knowledge base, and what was learnt

A function's signature is its schema and its docstring its description, for the model's API and for
MCP alike. `Toolbox.use` checks what a model sent, calls, and bounds the answer; a mistake of the
model is an answer that says what to do instead. `MachineFailed` passes through.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ..errors import Refused
from ..operators import Desk
from .files import Files
from .judge import Judge
from .past import Past
from .quoting import defused
from .study import Knowledge, Passage, Study

ANSWER_BYTES = 16_000  # of one tool call: about 4,000 tokens

__all__ = ["Answer", "Knowledge", "Passage", "Toolbox", "bounded", "toolbox"]

Function = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool call gave; `error` where the model has to do something else."""

    text: str
    error: bool = False


class Toolbox:
    """The tools of one session, by name."""

    def __init__(self, functions: Iterable[Function], most: int = ANSWER_BYTES) -> None:
        self._most = most  # bytes of an answer
        self._functions = {f.__name__: f for f in functions}
        self._inputs = {name: _input_of(f) for name, f in self._functions.items()}

    @property
    def names(self) -> list[str]:
        return list(self._functions)

    def description(self, name: str) -> str:
        """What a model is told about a tool."""
        return inspect.getdoc(self._functions[name]) or ""

    def schema(self, name: str) -> dict[str, Any]:
        """The JSON schema of a tool's input; the same bytes in every process."""
        schema = self._inputs[name].model_json_schema()
        for described in (schema, *schema["properties"].values()):
            described.pop("title", None)
        return schema

    def use(self, name: str, given: Mapping[str, object]) -> Answer:
        """Call a tool with what a model sent."""
        if name not in self._functions:
            return Answer(f"there is no tool {name[:80]!a}: use {', '.join(self.names)}", True)
        try:
            asked = self._inputs[name].model_validate(dict(given))
        except ValidationError as error:
            return Answer(_wrong_input(name, error), True)
        arguments = {field: getattr(asked, field) for field in type(asked).model_fields}
        if odd := [field for field, value in arguments.items() if _NO_TEXT.search(str(value))]:
            return Answer(f"{name} cannot take this input: {odd[0]}: it is not plain text", True)
        try:
            text = self._functions[name](**arguments)
        except Refused as error:
            return Answer(bounded(defused(str(error)), 4000), True)
        return Answer(bounded(text, self._most) or "(nothing)")


def toolbox(session: Desk, knowledge: Knowledge | None, remember: bool = True) -> Toolbox:
    """Every tool of a session; without a knowledge base, or without the lineage's memory, theirs
    are left out."""
    files, judge, past = Files(session), Judge(session), Past(session)
    study = Study(session, knowledge)
    about = (study.knowledge_search, study.knowledge_read) if knowledge else ()
    before = (past.lineage_log, past.lineage_show, past.lineage_diff, past.lineage_search)
    return Toolbox(
        (
            files.list_files,
            files.view,
            files.search_files,
            files.str_replace,
            files.insert,
            files.create,
            files.restore,
            files.shell,
            judge.build,
            judge.evaluate,
            judge.profile,
            *(before if remember else ()),
            *about,
            study.note,
        )
    )


def bounded(text: str, limit: int = ANSWER_BYTES) -> str:
    """At most about `limit` bytes: the beginning and the end, and how much was left out."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text
    half = limit // 2
    left = len(data) - 2 * half
    first, last = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{first}\n[… {left} bytes left out …]\n{last}"


_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # neither git, nor a shell, nor a file may be given it


def _input_of(function: Function) -> type[BaseModel]:
    # Strict: a model that sends "3" for a number, or a name we do not know, is told so.
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if p.default is p.empty else p.default)
        for name, p in inspect.signature(function).parameters.items()
    }
    settings = ConfigDict(extra="forbid", strict=True)
    return create_model(function.__name__, __config__=settings, **fields)


def _wrong_input(name: str, error: ValidationError) -> str:
    wrong = [
        f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}"
        for e in error.errors(include_url=False, include_input=False)
    ]
    return bounded(defused(f"{name} cannot take this input: {'; '.join(wrong)}"), 2000)
