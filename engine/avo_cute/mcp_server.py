"""The same tools over the Model Context Protocol, for agents that speak it.

`serve` answers on stdin and stdout until the client closes them. The server is one run's operator:
it holds the lineage's lock, opens a session at the incumbent, and opens the next one when a
candidate was accepted, so that a client can go on for as long as it likes.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from . import __version__
from .operators import Desk
from .prompts import prompt
from .run import Run
from .tools import Knowledge, Toolbox, name_of, toolbox

if TYPE_CHECKING:
    from mcp.server import MCPServer

OPERATOR = "mcp"


def serve(run: Run, knowledge: Knowledge | None, stop: Callable[[], bool]) -> None:
    """Serve the run's tools on stdio; returns when the client is gone."""
    with Sessions(run, knowledge, stop) as sessions:
        server(sessions).run("stdio")


class Sessions:
    """The session that the tools work on now. One call at a time: they share a workspace."""

    def __init__(self, run: Run, knowledge: Knowledge | None, stop: Callable[[], bool]) -> None:
        self._run, self._knowledge, self._stop = run, knowledge, stop
        self._open = ExitStack()
        self._one = threading.Lock()
        self._start()

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def use(self, name: str, given: dict[str, object]) -> tuple[str, bool]:
        """Call a tool; text and whether it is an error. After an acceptance a new session opens."""
        with self._one:
            answer = self.tools.use(name, given)
            text = answer.text
            if self.session.over():
                self._open.close()
                self._start()
                text += "\n\nA new session is open: the workspace is at the new incumbent."
            return text, answer.error

    def brief(self) -> str:
        """What the session is told: the story of the run so far."""
        with self._one:
            return self.session.brief()

    def _start(self) -> None:
        self._open = ExitStack()
        opened = self._run.session(OPERATOR, self._stop)
        self.session: Desk = self._open.enter_context(opened)
        self.tools: Toolbox = toolbox(self.session, self._knowledge)


def server(sessions: Sessions) -> MCPServer:
    """The protocol's server over the tools of `sessions`."""
    from mcp.server import MCPServer

    about = prompt("agent", **sessions.session.about())
    made = MCPServer("avo-cute", version=__version__, instructions=about)
    for function in sessions.tools:
        made.add_tool(_bound(function, sessions), structured_output=False)
    made.add_tool(_briefing(sessions), structured_output=False)
    return made


def _bound(function: Callable[..., str], sessions: Sessions) -> Callable[..., str]:
    """A tool with the signature of `function` that works on whatever session is open."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(function)
    def call(**given: object) -> str:
        text, error = sessions.use(name_of(function), given)
        if error:
            raise ToolError(text)
        return text

    return call


def _briefing(sessions: Sessions) -> Callable[[], str]:
    def briefing() -> str:
        """What the lineage remembers: the best version and its story, what failed and why, notes
        of earlier sessions, ideas not tried yet. Call this first."""
        return sessions.brief()

    return briefing
