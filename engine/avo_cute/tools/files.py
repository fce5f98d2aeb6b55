"""The workspace as an agent sees it: view, search, edit, a confined shell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from .. import sandbox
from ..errors import BadInput
from ..globs import matches
from ..operators import Desk
from .folder import Folder
from .quoting import defused, quoted

LISTED = 300  # files at once
VIEW_LINES = 400  # at once
VIEW_BYTES = 14_000
FOUND_LINES = 100
SHELL_SECONDS = 60
_GREP = sandbox.Limits(wall_s=20, cpu_s=20, memory_bytes=2 << 30, output_bytes=32 << 10)
_ARGUMENTS = 500_000  # bytes of paths that one grep is given

PathOf = Annotated[str, Field(description="Path below the workspace, with /.")]
Pattern = Annotated[
    str, Field(max_length=200, description="Pattern of paths: * stays inside a folder, ** not.")
]


class Files:
    """Tools on the files of one session's workspace."""

    def __init__(self, session: Desk, shell_seconds: int = SHELL_SECONDS) -> None:
        self._session, self._folder = session, Folder(session.folder)
        self._seconds = shell_seconds

    def list_files(self, pattern: Pattern = "**") -> str:
        """List the workspace's files with their sizes; those you may edit are marked with *."""
        found = [(p, size) for p, size in self._folder.files() if matches(p, [pattern])]
        lines = [f"{'*' if self._editable(p) else ' '} {size:>8}  {p}" for p, size in found]
        if len(lines) > LISTED:
            lines[LISTED:] = [f"… and {len(lines) - LISTED} more: give a narrower pattern"]
        return quoted("workspace", "\n".join(lines)) if lines else f"no file matches {pattern!r}"

    def view(
        self,
        path: PathOf,
        first: Annotated[int, Field(ge=1, description="First line, from 1.")] = 1,
        last: Annotated[int, Field(ge=0, description="Last line; 0: as far as it goes.")] = 0,
    ) -> str:
        """Show lines of a file with their numbers, 400 at most."""
        lines = _lines(self._read(path))
        if first > max(1, len(lines)):
            raise BadInput(f"{path} has {len(lines)} lines")
        end = min(last or len(lines), first + VIEW_LINES - 1, len(lines))
        shown, room = [], VIEW_BYTES
        for number in range(first, end + 1):
            shown.append(f"{number:>5}  {_cut(lines[number - 1].removesuffix(_RETURN))}")
            room -= len(shown[-1].encode()) + 1
            if room < 0:
                break
        end = first + len(shown) - 1
        text = quoted("workspace", "\n".join(shown))
        return f"{defused(path)}, lines {first} to {end} of {len(lines)}\n{text}"

    def search_files(
        self,
        expression: Annotated[
            str, Field(min_length=1, max_length=1000, description="POSIX extended expression.")
        ],
        pattern: Pattern = "**",
    ) -> str:
        """Find the lines of the workspace's files that match; gives path:line: text."""
        paths = [path for path, _ in self._folder.files() if matches(path, [pattern])]
        if not paths:
            raise BadInput(f"no file matches {pattern!r}")
        if sum(len(path) + 9 for path in paths) > _ARGUMENTS:
            raise BadInput(f"{len(paths)} files match {pattern!r}: give a narrower pattern")
        command = ["grep", "-nIHEs", "-m", str(FOUND_LINES), "-e", expression, "--", *paths]
        done = self._run(command, _GREP, change=False)
        if done.returncode not in (0, 1) and not done.stdout:
            wrong = done.returncode == 2
            said = "grep -E does not take it" if wrong else "it takes too much time or memory"
            raise BadInput(f"cannot search for {expression[:100]!r}: {said}")
        lines = [_cut(line) for line in _lines(done.stdout)]
        if len(lines) > FOUND_LINES:
            lines[FOUND_LINES:] = ["… and more: search for something narrower"]
        found = quoted("workspace", "\n".join(lines))
        return found if lines else f"nothing matches {expression[:100]!r}"

    def str_replace(
        self,
        path: PathOf,
        old: Annotated[str, Field(description="Text to replace; must occur exactly once.")],
        new: Annotated[str, Field(description="Text to put there; empty: delete.")],
    ) -> str:
        """Replace a text in a file. Give enough lines around it to make it unique."""
        text = self._read(path)
        returns = text.count("\r\n")  # which a view does not show
        if returns and (old not in text or returns == text.count("\n")):
            old, new = _with_returns(old), _with_returns(new)
        if not old:
            raise BadInput("old is empty: say which text to replace")
        if old == new:
            raise BadInput("old and new are the same: nothing would change")
        at = _lines_of(text, old, 9)
        if not at:
            raise BadInput(
                f"old does not occur in {path}: copy it from a view, with its exact indentation"
                + _nearest(text, old)
            )
        if len(at) > 1:
            count, lines = max(len(at), text.count(old)), ", ".join(map(str, at))
            raise BadInput(f"old occurs {count} times in {path} (lines {lines}): give more of it")
        self._write(path, text.replace(old, new, 1))
        return self._edited(path, at[0], new)

    def insert(
        self,
        path: PathOf,
        after: Annotated[int, Field(ge=0, description="Line to insert after; 0: at the start.")],
        text: Annotated[str, Field(min_length=1, description="Whole lines.")],
    ) -> str:
        """Insert lines into a file."""
        before = self._read(path)
        lines = before.split("\n")
        end = [] if lines[-1] else [lines.pop()]
        if after > len(lines):
            raise BadInput(f"{path} has {len(lines)} lines")
        if after == len(lines):
            end = [""]
        text = text.removesuffix("\n") + "\n"
        text = _with_returns(text) if "\r\n" in before else text
        fresh = text.removesuffix("\n").split("\n")
        self._write(path, "\n".join([*lines[:after], *fresh, *lines[after:], *end]))
        return self._edited(path, after + 1, text)

    def create(self, path: PathOf, text: str) -> str:
        """Create a file. One that exists is changed with str_replace, not replaced."""
        if self._folder.exists(path):
            raise BadInput(f"{path} exists: use str_replace or insert")
        self._write(path, text)
        return f"{defused(path)}: created, {len(_lines(text))} lines"

    def restore(
        self,
        path: Annotated[str, Field(description="Path of a file; empty: the whole workspace.")] = "",
        rev: Annotated[
            str,
            Field(
                max_length=200,
                description="An attempt's number, a commit or best; empty: the parent.",
            ),
        ] = "",
    ) -> str:
        """Put files back to how the parent, or any earlier version, has them. What you may not
        edit is always put back to the parent's."""
        chosen, parent = self._session.version(rev), self._session.version("")
        wanted = {p: chosen for p in chosen if self._editable(p)}
        wanted |= {p: parent for p in parent if not self._editable(p)}
        stray = self._folder.names() - wanted.keys()
        if path and path not in wanted.keys() | stray:
            raise BadInput(f"neither the workspace nor {rev or 'the parent'} has {path[:100]!r}")
        stray &= {path} if path else stray
        for name in sorted(stray):
            self._folder.remove(name)
        back = [path] if path in wanted else [] if path else list(wanted)
        changed = sum(self._folder.put_back(name, wanted[name][name]) for name in back)
        as_it_was = f"as {rev or 'the parent'} has them"
        return f"restored {changed} and removed {len(stray)} files, {as_it_was}"

    def shell(self, command: Annotated[str, Field(min_length=1, max_length=8000)]) -> str:
        """Run a shell command in the workspace: no network, no GPU, 60 seconds. Python is there as
        python3, without the DSL's compiler; nothing outside the workspace can be changed."""
        limits = sandbox.Limits(
            wall_s=self._seconds,
            cpu_s=self._seconds,
            memory_bytes=4 << 30,
            output_bytes=7 << 10,  # of each stream
            nice=5,
        )
        done = self._run(["/bin/sh", "-c", command], limits, change=True)
        ended = f"exit status {done.returncode}"
        if done.timed_out or done.returncode is None:
            ended = f"stopped after {self._seconds} seconds"
        said = "\n".join(part for part in (done.stdout.rstrip(), done.stderr.rstrip()) if part)
        return f"{ended}\n{quoted('shell', said)}"

    def _run(
        self, command: Sequence[str], limits: sandbox.Limits, change: bool
    ) -> sandbox.Completed:
        if not any(layer.works for layer in sandbox.layers()):
            raise BadInput("no sandbox works on this machine, so nothing is run here: use view")
        root = self._folder.root
        write = [root] if change else []
        return sandbox.run(command, read=[root], write=write, cwd=root, limits=limits)

    def _editable(self, path: str) -> bool:
        return matches(path, self._session.editable)

    def _read(self, path: str) -> str:
        data = self._folder.read(path, self._session.max_file_bytes)
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise BadInput(f"{path} is not UTF-8 text") from None

    def _write(self, path: str, text: str) -> None:
        if not self._editable(path):
            may = ", ".join(self._session.editable)
            raise BadInput(f"{path[:100]!a} may not be changed: only {may}")
        data, most = text.encode(), self._session.max_file_bytes
        if len(data) > most:
            raise BadInput(f"{path} would have {len(data)} bytes, more than the {most} it may have")
        self._folder.write(path, data)

    def _edited(self, path: str, line: int, text: str) -> str:
        count = len(_lines(text))
        what = f"{count} lines from line {line}" if count != 1 else f"line {line}"
        first = max(1, min(line - 3, len(_lines(self._read(path)))))
        return f"{defused(path)}: {what}\n{self.view(path, first, line + max(1, count) + 2)}"


_RETURN = "\r"


def _lines(text: str) -> list[str]:
    """Lines as compilers and grep count them: only a newline ends one."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _with_returns(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _cut(line: str) -> str:
    return line if len(line) <= 400 else f"{line[:400]} … {len(line) - 400} characters more"


def _lines_of(text: str, part: str, most: int) -> list[int]:
    """The lines at which the first occurrences of `part` begin, those that overlap too."""
    lines, at = list[int](), text.find(part)
    while at >= 0 and len(lines) < most:
        lines.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + 1)
    return lines


def _nearest(text: str, old: str) -> str:
    """Where the first line of what was looked for stands, give or take its indentation."""
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = [n for n, line in enumerate(_lines(text), 1) if line.strip() == first]
    return f"; its first line stands in line {lines[0]}" if first and lines else ""
