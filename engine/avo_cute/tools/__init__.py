"""Tools: what an agent can do in a session, as plain functions that take and return text.

    files.py   list, view, search, str_replace, insert, create, restore, shell: the workspace
    judge.py   build, evaluate, profile: the engine's judgement of it
    past.py    lineage_log, lineage_show, lineage_diff, lineage_search: every earlier attempt
    study.py   knowledge_search, knowledge_read, note: the knowledge base, and what was learnt

A function's signature is its schema and its docstring its description, for the model's API and for
MCP alike. `Toolbox.use` checks what a model sent, calls, and bounds the answer; a mistake of the
model is an answer that says what to do instead. `MachineFailed` passes through.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from ..errors import Refused
from ..operators import Desk
from .files import Files
from .judge import Judge
from .past import Past
from .study import Knowledge, Passage, Study

ANSWER_CHARACTERS = 16_000  # of one tool call: about 4,000 tokens

__all__ = ["Answer", "Knowledge", "Passage", "Toolbox", "bounded", "name_of", "toolbox"]

Function = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool call gave; `error` where the model has to do something else."""

    text: str
    error: bool = False


class Toolbox:
    """The tools of one session, by name."""

    def __init__(self, functions: Iterable[Function]) -> None:
        self._functions = {name_of(f): f for f in functions}
        self._checks = {name: _check(f) for name, f in self._functions.items()}

    def __iter__(self) -> Iterator[Function]:
        return iter(self._functions.values())

    @property
    def names(self) -> list[str]:
        return list(self._functions)

    def description(self, name: str) -> str:
        """What a model is told about a tool."""
        return inspect.getdoc(self._functions[name]) or ""

    def schema(self, name: str) -> Mapping[str, object]:
        """The JSON schema of a tool's input; the same bytes in every process."""
        schema = self._checks[name].json_schema()
        for described in schema.get("properties", {}).values():
            described.pop("title", None)
        return schema

    def use(self, name: str, given: Mapping[str, object]) -> Answer:
        """Call a tool with what a model sent."""
        if name not in self._functions:
            return Answer(f"there is no tool {name[:80]!a}: use {', '.join(self.names)}", True)
        try:
            text = self._checks[name].validate_python(ArgsKwargs((), dict(given)))
        except ValidationError as error:
            return Answer(_wrong_input(name, error), True)
        except Refused as error:
            return Answer(bounded(str(error)), True)
        return Answer(bounded(text) or "(nothing)")


def toolbox(session: Desk, knowledge: Knowledge | None) -> Toolbox:
    """Every tool of a session; without a knowledge base those two are left out."""
    files, judge, past = Files(session), Judge(session), Past(session)
    study = Study(session, knowledge)
    about = (study.knowledge_search, study.knowledge_read) if knowledge else ()
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
            past.lineage_log,
            past.lineage_show,
            past.lineage_diff,
            past.lineage_search,
            *about,
            study.note,
        )
    )


def name_of(function: Function) -> str:
    return function.__name__


def bounded(text: str, limit: int = ANSWER_CHARACTERS) -> str:
    """At most about `limit` characters: the beginning and the end, and what was left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    left = len(text) - 2 * half
    return f"{text[:half]}\n[… {left} characters left out …]\n{text[-half:]}"


def _check(function: Function) -> TypeAdapter[Any]:
    # Strict: a model that sends "3" for a number, or a name we do not know, is told so.
    about = ConfigDict(extra="forbid", title=name_of(function))
    return TypeAdapter(cast(Any, function), config=about)


def _wrong_input(name: str, error: ValidationError) -> str:
    wrong = [
        f"{'.'.join(map(str, e['loc'])) or 'input'}: {e['msg']}"
        for e in error.errors(include_url=False, include_input=False)
    ]
    return bounded(f"{name} cannot take this input: {'; '.join(wrong)}", 2000)
