"""The workspace as an agent sees it: view, search, edit, a confined shell.

Nothing in the workspace is trusted, not even between two calls: the shell may have left links or
pipes there. A path is looked at as it is, never followed through a link.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field

from .. import sandbox
from ..errors import BadInput
from ..globs import matches
from ..operators import Desk
from .quoting import quoted

VIEW_LINES = 400  # at once
FOUND_LINES = 100
SHELL_SECONDS = 60
_GREP = sandbox.Limits(wall_s=20, cpu_s=20, memory_bytes=2 << 30, output_bytes=32 << 10)
_SHELL = sandbox.Limits(
    wall_s=SHELL_SECONDS, cpu_s=SHELL_SECONDS, memory_bytes=4 << 30, output_bytes=16 << 10, nice=5
)

PathOf = Annotated[str, Field(description="Path below the workspace, with /.")]
Pattern = Annotated[str, Field(description="Pattern of paths: * stays inside a folder, ** not.")]


class Files:
    """Tools on the files of one session's workspace."""

    def __init__(self, session: Desk) -> None:
        self._session, self._root = session, session.folder

    def list_files(self, pattern: Pattern = "**") -> str:
        """List the workspace's files with their sizes; those you may edit are marked with *."""
        lines = [
            f"{'*' if self._editable(path) else ' '} {size:>8}  {path}"
            for path, size in _walk(self._root)
            if matches(path, [pattern])
        ]
        return "\n".join(lines) or f"no file matches {pattern!r}"

    def view(
        self,
        path: PathOf,
        first: Annotated[int, Field(ge=1, description="First line, from 1.")] = 1,
        last: Annotated[int, Field(ge=0, description="Last line; 0: as far as it goes.")] = 0,
    ) -> str:
        """Show lines of a file with their numbers, 400 at most."""
        lines = self._read(path).splitlines()
        if first > max(1, len(lines)):
            raise BadInput(f"{path} has {len(lines)} lines")
        end = min(last or len(lines), first + VIEW_LINES - 1, len(lines))
        shown = "\n".join(f"{n:>5}  {lines[n - 1][:400]}" for n in range(first, end + 1))
        return f"{path}, lines {first} to {end} of {len(lines)}\n{quoted('workspace', shown)}"

    def search_files(
        self,
        expression: Annotated[str, Field(description="POSIX extended regular expression.")],
        pattern: Pattern = "**",
    ) -> str:
        """Find the lines of the workspace's files that match; gives path:line: text."""
        paths = [path for path, _ in _walk(self._root) if matches(path, [pattern])]
        if not paths:
            raise BadInput(f"no file matches {pattern!r}")
        command = ["grep", "-nIHE", "-m", str(FOUND_LINES), "-e", expression, "--", *paths]
        done = sandbox.run(command, read=[self._root], cwd=self._root, limits=_GREP)
        if done.returncode not in (0, 1):
            said = done.stderr.strip() or "it took too long"
            raise BadInput(f"cannot search for {expression!r}: {said[:300]}")
        lines = [line[:300] for line in done.stdout.splitlines()]
        more = f"\n… and {len(lines) - FOUND_LINES} more" if len(lines) > FOUND_LINES else ""
        found = quoted("workspace", "\n".join(lines[:FOUND_LINES]) + more)
        return found if lines else f"nothing matches {expression!r}"

    def str_replace(
        self,
        path: PathOf,
        old: Annotated[str, Field(description="Text to replace; must occur exactly once.")],
        new: Annotated[str, Field(description="Text to put there; empty: delete.")],
    ) -> str:
        """Replace a text in a file. Give enough lines around it to make it unique."""
        text = self._read(path)
        count = text.count(old) if old else 0
        if not old:
            raise BadInput("old is empty: say which text to replace")
        if count == 0:
            raise BadInput(
                f"old does not occur in {path}: copy it from a view, with its exact indentation"
                + _nearest(text, old)
            )
        if count > 1:
            at = ", ".join(map(str, _lines_of(text, old)[:8]))
            raise BadInput(f"old occurs {count} times in {path} (lines {at}): give more around it")
        if old == new:
            raise BadInput("old and new are the same: nothing would change")
        line = _lines_of(text, old)[0]
        self._write(path, text.replace(old, new, 1))
        return f"{path}: {_span(line, new)}\n{self._around(path, line, new)}"

    def insert(
        self,
        path: PathOf,
        after: Annotated[int, Field(ge=0, description="Line to insert after; 0: at the start.")],
        text: Annotated[str, Field(min_length=1, description="Whole lines.")],
    ) -> str:
        """Insert lines into a file."""
        lines = self._read(path).splitlines(keepends=True)
        if after > len(lines):
            raise BadInput(f"{path} has {len(lines)} lines")
        text = text if text.endswith("\n") else text + "\n"
        if after and not lines[after - 1].endswith("\n"):
            lines[after - 1] += "\n"
        self._write(path, "".join([*lines[:after], text, *lines[after:]]))
        return f"{path}: {_span(after + 1, text)}\n{self._around(path, after + 1, text)}"

    def create(self, path: PathOf, text: str) -> str:
        """Create a file. One that exists is changed with str_replace, not replaced."""
        if os.path.lexists(self._place(path)):
            raise BadInput(f"{path} exists: use str_replace or insert")
        self._write(path, text)
        return f"{path}: created, {len(text.splitlines())} lines"

    def restore(
        self,
        path: Annotated[str, Field(description="Path of a file; empty: every editable file.")] = "",
        rev: Annotated[
            str, Field(description="An attempt's number, a commit or best; empty: the parent.")
        ] = "",
    ) -> str:
        """Put files back to how the parent, or any earlier version, has them."""
        files = self._session.version(rev)
        chosen = [p for p in files if self._editable(p) and path in ("", p)]
        gone = [p for p, _ in _walk(self._root) if self._editable(p) and p not in files]
        gone = [p for p in gone if path in ("", p)]
        if not chosen and not gone:
            raise BadInput(f"{path} is no editable file of {rev or 'the parent'}")
        for name in gone:
            self._place(name).unlink()
        changed = 0
        for name in chosen:
            changed += self._restore(name, files[name])
        return (
            f"restored {changed} and removed {len(gone)} files, as {rev or 'the parent'} has them"
        )

    def shell(self, command: Annotated[str, Field(min_length=1, max_length=8000)]) -> str:
        """Run a shell command in the workspace: no network, no GPU, 60 seconds. Python is there as
        python3, without the DSL's compiler; nothing outside the workspace can be changed."""
        argv = ["/bin/sh", "-c", command]
        done = sandbox.run(
            argv, read=[self._root], write=[self._root], cwd=self._root, limits=_SHELL
        )
        ended = f"exit status {done.returncode}"
        if done.timed_out or done.returncode is None:
            ended = f"stopped after {SHELL_SECONDS} seconds"
        said = "\n".join(part for part in (done.stdout.rstrip(), done.stderr.rstrip()) if part)
        return f"{ended}\n{quoted('shell', said)}"

    def _editable(self, path: str) -> bool:
        return matches(path, self._session.editable)

    def _place(self, path: str) -> Path:
        """Where a path is on disk; refuses what leaves the workspace or goes through a link."""
        parts = path.split("/")
        if not path or "\0" in path or len(path) > 400 or {"", ".", "..", ".git"} & set(parts):
            raise BadInput(f"{path[:100]!a} is not a path below the workspace")
        place = self._root
        for part in parts[:-1]:
            place = place / part
            if place.is_symlink() or (os.path.lexists(place) and not place.is_dir()):
                raise BadInput(f"{part!a} in {path!a} is not a folder")
        return place / parts[-1]

    def _read(self, path: str) -> str:
        data = sandbox.read_regular(self._place(path), self._session.max_file_bytes)
        if data is None:
            raise BadInput(f"{path[:100]!a} is not a file of the workspace (list_files shows them)")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise BadInput(f"{path} is not text") from None

    def _write(self, path: str, text: str) -> None:
        if not self._editable(path):
            raise BadInput(f"{path} may not be changed: only {', '.join(self._session.editable)}")
        data = text.encode("utf-8", "replace")
        if len(data) > self._session.max_file_bytes:
            raise BadInput(f"{path} would have {len(data)} bytes, more than a file may have")
        place = self._place(path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _overwrite(place, data)
        except OSError as error:
            raise BadInput(f"cannot write {path}: {error.strerror}") from None

    def _restore(self, path: str, data: bytes) -> int:
        if sandbox.read_regular(self._place(path), len(data)) == data:
            return 0
        place = self._place(path)
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        _overwrite(place, data)
        return 1

    def _around(self, path: str, line: int, text: str) -> str:
        last = line + max(1, len(text.splitlines())) + 2
        return self.view(path, max(1, line - 3), last)


def _overwrite(place: Path, data: bytes) -> None:
    """A new file in the place of whatever was there: nothing is written through a link."""
    fresh = place.with_name(f".{place.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.write_bytes(data)
    fresh.replace(place)


def _walk(root: Path) -> Iterator[tuple[str, int]]:
    """Path and size of every plain file, in order."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(names):
            about = (Path(folder) / name).lstat()
            if stat.S_ISREG(about.st_mode):
                yield (Path(folder) / name).relative_to(root).as_posix(), about.st_size


def _lines_of(text: str, part: str) -> list[int]:
    """The lines at which each occurrence of `part` begins."""
    lines, at = [], text.find(part)
    while at >= 0:
        lines.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + len(part))
    return lines


def _nearest(text: str, old: str) -> str:
    """Where the first line of what was looked for stands, give or take its indentation."""
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.strip() == first]
    return f"; its first line stands in line {lines[0]}" if first and lines else ""


def _span(line: int, text: str) -> str:
    count = len(text.splitlines())
    return f"{count} lines from line {line}" if count != 1 else f"line {line}"
