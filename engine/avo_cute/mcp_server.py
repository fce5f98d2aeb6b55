"""The same tools over the Model Context Protocol, for agents that speak it.

`serve` answers on stdin and stdout until the client closes them. The server is one run's operator:
it opens a session at the incumbent, and the next one when a candidate was accepted or the session
is spent, so that a client can go on for as long as it likes. Whoever calls `serve` holds the
lineage's lock and has begun the run.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .errors import AvoError
from .operators import Desk
from .prompts import prompt
from .run import Run
from .tools import Answer, Knowledge, Toolbox, toolbox

if TYPE_CHECKING:
    from anyio import AsyncFile
    from mcp.server import Server

OPERATOR = "mcp"
BRIEF_BYTES = 60_000
POLL_S = 0.5  # between two questions whether to leave
_STOPPED = "the run has reached its limit: nothing is judged any more, end here"


def serve(
    run: Run,
    knowledge: Knowledge | None,
    stop: Callable[[], bool],
    leave: Callable[[], bool] = lambda: False,
) -> None:
    """Serve the run's tools on stdio until the client is gone or `leave` says so.

    Once `stop` says so every call is answered with an error, and nothing is judged any more. Raises
    what made it impossible to go on.
    """
    import anyio

    with Sessions(run, knowledge, stop) as sessions, _private_stdin() as stdin:
        anyio.run(_serve, sessions, stdin, leave)
    if sessions.failure is not None:
        raise sessions.failure


class Sessions:
    """The session that the tools work on now. One call at a time: they share a workspace."""

    def __init__(self, run: Run, knowledge: Knowledge | None, stop: Callable[[], bool]) -> None:
        self._run, self._knowledge, self._stop = run, knowledge, stop
        self._open = ExitStack()
        self._memory = Toolbox((self.briefing,), BRIEF_BYTES)
        self.failure: AvoError | None = None  # after which nothing is done any more
        self._start()

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def use(self, name: str, given: dict[str, object]) -> Answer:
        """Call a tool. Where that ends the session the next one opens, and the answer says so."""
        try:
            if self.failure is not None:
                raise self.failure
            if self._stop():
                return Answer(_STOPPED, True)
            tools = self._memory if name in self._memory.names else self.tools
            answer = tools.use(name, given)
            if not self.session.over():
                return answer
            self._open.close()
            if self._stop():
                return Answer(f"{answer.text}\n\n{_STOPPED}", answer.error)
            self._start()
        except AvoError as error:
            self.failure = error
            return Answer(f"the server cannot go on: {error}", True)
        new = f"A new session is open: the workspace is at {self.session.start}."
        return Answer(f"{answer.text}\n\n{new}", answer.error)

    def briefing(self) -> str:
        """What the lineage remembers: the best version and its story, what failed and why, notes
        of earlier sessions, ideas not tried yet. Call this first."""
        return self.session.brief()

    def about(self) -> str:
        """What a client is told of the task; the same in every session."""
        return prompt("agent", **self.session.about())

    def _start(self) -> None:
        opened = self._run.session(OPERATOR, self._stop)
        self.session: Desk = self._open.enter_context(opened)
        self.tools = toolbox(self.session, self._knowledge)

    def offered(self) -> Sequence[tuple[str, str, dict[str, Any]]]:
        """Name, description and input schema of each tool."""
        both = (self.tools, self._memory)
        return [(name, t.description(name), t.schema(name)) for t in both for name in t.names]


def server(sessions: Sessions) -> Server[dict[str, Any]]:
    """The protocol's server over the tools of `sessions`: names, descriptions and schemas are the
    toolbox's own, and so is the check of what a client sends."""
    import anyio
    from anyio.to_thread import run_sync
    from mcp import types
    from mcp.server import Server, ServerRequestContext

    one = anyio.CapacityLimiter(1)  # calls wait in the order in which they came

    async def list_tools(
        _: ServerRequestContext[dict[str, Any]], asked: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        offered = sessions.offered()
        tools = [types.Tool(name=n, description=d, input_schema=s) for n, d, s in offered]
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        _: ServerRequestContext[dict[str, Any]], asked: types.CallToolRequestParams
    ) -> types.CallToolResult:
        call = partial(sessions.use, asked.name, asked.arguments or {})
        answer = await run_sync(call, limiter=one)
        text = types.TextContent(type="text", text=answer.text)
        return types.CallToolResult(content=[text], is_error=answer.error)

    return Server(
        "avo-cute",
        version=__version__,
        instructions=sessions.about(),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _serve(sessions: Sessions, stdin: int, leave: Callable[[], bool]) -> None:
    import anyio
    from mcp.server.stdio import stdio_server

    made = server(sessions)

    async def watch(serving: anyio.CancelScope) -> None:
        while not leave():
            await anyio.sleep(POLL_S)
        serving.cancel()  # a call in hand ends first: its thread is waited for

    async with anyio.create_task_group() as group, stdio_server(_lines_of(stdin)) as (read, write):
        group.start_soon(watch, group.cancel_scope)
        await made.run(read, write, made.create_initialization_options())
        group.cancel_scope.cancel()


@contextmanager
def _private_stdin() -> Iterator[int]:
    """stdin for the protocol alone: whatever else reads 0 meanwhile reads nothing."""
    mine, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        yield mine
    finally:
        os.dup2(mine, 0)
        os.close(nothing)
        os.close(mine)


def _lines_of(stdin: int) -> AsyncFile[str]:
    """Lines as they come. The library's reader blocks a thread until the next one, so that nobody
    could end the server but the client."""
    import anyio

    class Lines(anyio.AsyncFile[str]):
        rest = b""

        async def readline(self) -> str:
            while b"\n" not in self.rest:
                if not _is_plain(stdin):
                    await anyio.wait_readable(stdin)
                data = os.read(stdin, 1 << 16)
                if not data:
                    break
                self.rest += data
            line, end, self.rest = self.rest.partition(b"\n")
            return (line + end).decode("utf-8", "replace")

    return Lines(sys.stdin)


def _is_plain(handle: int) -> bool:
    """Whether reading never waits: a file, or the null device, which cannot be waited for."""
    mode = os.fstat(handle).st_mode
    return stat.S_ISREG(mode) or os.path.samestat(os.fstat(handle), Path(os.devnull).stat())
