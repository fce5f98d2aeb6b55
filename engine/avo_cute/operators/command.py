"""The `command` operator: any coding agent, or any script, varies.

It is started in the workspace with a prompt, edits files, and ends; what it left is one attempt.
Then it is started again with what came of it, until the session is over. The command is the user's
own and runs with the user's own rights: only what it leaves behind is judged as untrusted.

    {workspace}   the folder to edit
    {prompt}      a file that says what to do, what was tried and how the last attempt ended
    {message}     a file to write: a subject line, a blank line, and the reasons

The environment has the same as AVO_CUTE_WORKSPACE and so on, and AVO_CUTE_LINEAGE and AVO_CUTE_RUN,
with which `avo-cute log`, `show` and `diff` find the past.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
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
_PLACES = re.compile(r"\{(workspace|prompt|message)\}")


@dataclass(frozen=True, slots=True)
class CommandOperator:
    """The operator; `command` is split into words as a shell would, then filled in. Without
    `remember` the prompt says nothing of earlier attempts."""

    command: str
    remember: bool = True
    hours: float = HOURS

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            raise BadInput(f"--command {self.command!r}: {error}") from None
        if not words:
            raise BadInput("--command is empty: say what to run, with {workspace} and {prompt}")
        if shutil.which(words[0]) is None:
            raise BadInput(f"--command: no program {words[0]!r} that can be run")

    @property
    def name(self) -> str:
        return f"command {Path(shlex.split(self.command)[0]).name}"

    def vary(self, session: Desk) -> bool:
        idle, called, last = 0, 0, ""
        judged = {session.parent.tree}
        while idle < IDLE and not session.over():
            called, idle = called + 1, idle + 1
            subject, body, last = self._call(session, called, last)
            try:
                tree = session.tree()
            except BadInput as error:
                last = f"What you left is not a candidate: {error}"
                continue
            if tree in judged:
                last = last or "You left nothing new: this has a verdict already."
            if not last:
                idle = 0
                judged.add(tree)
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
            asked = _prompt(session, places, last, self.remember)
            Path(places["prompt"]).write_bytes(asked.encode("utf-8", "replace"))
            done = self._run(session, places)
            said = sandbox.read_regular(Path(places["message"]), MESSAGE_BYTES) or b""
        stopped = f"stopped after {done.wall_s:.0f} s"
        ended = stopped if done.timed_out else f"exit status {done.returncode}"
        kept = f"{ended}\n{done.stdout}\n{done.stderr}"
        session.keep(f"calls/{number:04d}.txt", kept.encode("utf-8", "replace"))
        subject, _, body = said.decode("utf-8", "replace").strip().partition("\n")
        wrong = f"{self.name} ended with status {done.returncode}" if done.returncode else ""
        wrong = f"{self.name} ran longer than {self.hours:g} hours" if done.timed_out else wrong
        return subject or f"Change by {self.name}", body.strip(), wrong

    def _run(self, session: Desk, places: Mapping[str, str]) -> sandbox.Completed:
        program, *rest = shlex.split(self.command)
        filled = [_PLACES.sub(lambda found: places[found[1]], word) for word in rest]
        limits = sandbox.Limits(
            wall_s=self.hours * 3600.0,
            cpu_s=1 << 30,
            memory_bytes=1 << 50,
            file_bytes=1 << 50,
            output_bytes=256 << 10,
        )
        # where we were started: a path in the command means what it meant to the user's shell
        words = [str(Path(shutil.which(program) or program).absolute()), *filled]
        if not session.folder.is_dir():  # the last call removed it
            sandbox.remove(session.folder)
            session.folder.mkdir()
        env = _environment(session, places)
        return sandbox.run(words, layer="none", env=env, cwd=session.folder, limits=limits)


def _environment(session: Desk, places: Mapping[str, str]) -> dict[str, str]:
    """The user's own, with where things are; `avo-cute` is found wherever it is installed."""
    home = Path.home()
    usual = {"CONFIG": ".config", "CACHE": ".cache", "DATA": ".local/share"}
    path = f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
    return {
        "HOME": str(home),
        # named, because they would be the sandbox's own
        **{f"XDG_{name}_HOME": str(home / folder) for name, folder in usual.items()},
        **os.environ,
        "AVO_CUTE_WORKSPACE": places["workspace"],
        "AVO_CUTE_PROMPT": places["prompt"],
        "AVO_CUTE_MESSAGE_FILE": places["message"],  # AVO_CUTE_MESSAGE is `record --message`
        "AVO_CUTE_LINEAGE": str(session.lineage.path.absolute()),
        "AVO_CUTE_RUN": session.run_name,
        "PATH": path,
    }


def _prompt(session: Desk, places: Mapping[str, str], last: str, remember: bool) -> str:
    named = {key: places[key] for key in ("workspace", "message")}
    parts = [prompt("command", **session.about(), **named)]
    if left := session.left():
        parts.append(f"Left to spend: {left}.")
    if remember:
        parts.append(session.brief())
    if last:
        parts.append(f"# How the last attempt ended\n\n{last}")
    return "\n\n".join(parts) + "\n"
