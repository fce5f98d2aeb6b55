"""The `command` operator: any coding agent, or any script, varies.

It is started in the workspace with a prompt, edits files, and ends; what it left is one attempt.
Then it is started again with what came of it, until the session is over. The command is the user's
own and runs with the user's own rights: only what it leaves behind is judged as untrusted.

    {workspace}   the folder to edit
    {prompt}      a file that says what to do, what was tried and how the last attempt ended
    {message}     a file to write: a subject line, a blank line, and the reasons
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import sandbox
from ..errors import BadInput
from ..prompts import prompt
from ..tools.judge import attempt_text
from . import Desk, Proposal

HOURS = 4  # of one call of the command
IDLE = 3  # calls in a row that changed nothing, or failed, end the session
MESSAGE_BYTES = 16 << 10
_LIMITS = sandbox.Limits(
    wall_s=HOURS * 3600.0,
    cpu_s=1 << 30,
    memory_bytes=1 << 50,
    file_bytes=1 << 50,
    output_bytes=256 << 10,
)


@dataclass(frozen=True, slots=True)
class CommandOperator:
    """The operator; `command` is split into words as a shell would, then filled in. Without
    `remember` the prompt says nothing of earlier attempts."""

    command: str
    remember: bool = True

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise BadInput(f"--command {self.command!r}: {error}") from None
        if not words:
            raise BadInput("--command is empty: say what to run, with {workspace} and {prompt}")

    @property
    def name(self) -> str:
        return f"command {Path(shlex.split(self.command)[0]).name}"

    def vary(self, session: Desk) -> bool:
        idle, called, last = 0, 0, ""
        tree = session.parent.tree
        while idle < IDLE and not session.over():
            called += 1
            subject, body, last = self._call(session, called, last)
            try:
                now = session.tree()
            except BadInput as error:
                last, idle = f"What you left is not a candidate: {error}", idle + 1
                continue
            if last or now == tree:
                last = last or "You changed nothing."
                idle += 1
                continue
            tree, idle = now, 0
            last = attempt_text(session.evaluate(Proposal(subject, body, {})))
        return True

    def _call(self, session: Desk, number: int, last: str) -> tuple[str, str, str]:
        """Subject, body, and what went wrong, of one call; its output goes to the transcript."""
        with tempfile.TemporaryDirectory(prefix="avo-cute-command-") as folder:
            places = {
                "workspace": str(session.folder),
                "prompt": str(Path(folder, "prompt.md")),
                "message": str(Path(folder, "message.txt")),
            }
            Path(places["prompt"]).write_text(_prompt(session, places, last, self.remember))
            done = self._run(session, places)
            said = sandbox.read_regular(Path(places["message"]), MESSAGE_BYTES) or b""
        kept = f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
        session.keep(f"calls/{number:04d}.txt", kept.encode("utf-8", "replace"))
        subject, _, body = said.decode("utf-8", "replace").strip().partition("\n")
        wrong = f"{self.name} ended with status {done.returncode}" if done.returncode else ""
        wrong = f"{self.name} ran longer than {HOURS} hours" if done.timed_out else wrong
        return subject or f"Change by {self.name}", body.strip(), wrong

    def _run(self, session: Desk, places: Mapping[str, str]) -> sandbox.Completed:
        words = [_filled(word, places) for word in shlex.split(self.command)]
        told = {f"AVO_CUTE_{key.upper()}": value for key, value in places.items()}
        told |= {"AVO_CUTE_LINEAGE": str(session.lineage.path), "AVO_CUTE_RUN": session.run_name}
        env = dict(os.environ) | told
        return sandbox.run(words, layer="none", env=env, cwd=session.folder, limits=_LIMITS)


def _filled(word: str, places: Mapping[str, str]) -> str:
    for name, value in places.items():
        word = word.replace("{" + name + "}", value)
    return word


def _prompt(session: Desk, places: Mapping[str, str], last: str, remember: bool) -> str:
    named = {key: places[key] for key in ("workspace", "message")}
    task = prompt("command", **session.about(), **named)
    ended = f"# How the last attempt ended\n\n{last}" if last else ""
    return (
        "\n\n".join(part for part in (task, session.brief() if remember else "", ended) if part)
        + "\n"
    )
