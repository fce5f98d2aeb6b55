"""One git process: its environment, and what its failure means."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import AvoError, BadInput, MachineFailed, Refused

# Objects reach the disk before the ref that names them; see the lineage's crash tests.
SETTINGS = {
    "core.fsync": "committed,loose-object,reference",
    "core.logAllRefUpdates": "always",
    "core.hooksPath": "/dev/null",
    "core.filesRefLockTimeout": "5000",
    "gc.auto": "0",
}

_NAME, _EMAIL = "avo-cute", "avo-cute@localhost"
IDENTITY = f"{_NAME} <{_EMAIL}>"


class Process:
    """Runs git on one repository; keeps nothing between calls."""

    def __init__(self, path: Path) -> None:
        _forget_surroundings()
        try:
            from git.cmd import Git
        except ImportError:
            raise MachineFailed(_NO_GIT) from None
        self.path = path
        self._git = Git(str(path if path.is_dir() else path.parent))
        self._environment = _environment(path)

    def run(self, *arguments: str, text: str = "", env: Mapping[str, str] | None = None) -> bytes:
        """stdout of `git arguments…` given `text` on stdin; raises what a failure means."""
        status, out, said = self.call(*arguments, text=text, env=env)
        if status != 0:
            raise _error(self.path, arguments[0], status, said)
        return out

    def call(
        self, *arguments: str, text: str = "", env: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, str]:
        """Exit status, stdout and stderr, for commands whose status is an answer."""
        from git.exc import GitCommandNotFound

        try:
            with tempfile.TemporaryFile() as stdin:
                stdin.write(text.encode("utf-8", "surrogateescape"))
                stdin.seek(0)
                status, out, said = self._git.execute(
                    ["git", *arguments],
                    istream=stdin,
                    env={**self._environment, **(env or {})},
                    with_exceptions=False,
                    with_extended_output=True,
                    stdout_as_string=False,
                    strip_newline_in_stdout=False,
                    start_new_session=True,  # Ctrl-C is for us: git finishes its step
                )
        except GitCommandNotFound:
            raise MachineFailed(_NO_GIT) from None
        except OSError as error:
            raise MachineFailed(f"git {arguments[0]}: {error}") from None
        return status, bytes(out), str(said)


def git_version() -> str:
    """git's version, "" where there is no git. From 2.36 on git honours our `core.fsync`."""
    try:
        said = Process(Path("/")).run("version").decode()
    except MachineFailed:
        return ""
    return said.removeprefix("git version").strip()


def dates(when: int) -> dict[str, str]:
    """The environment that dates a commit."""
    return {f"GIT_{who}_DATE": f"{when} +0000" for who in ("AUTHOR", "COMMITTER")}


def _forget_surroundings() -> None:
    """Drop git's own variables from this process.

    Called from a hook or from `git rebase --exec`, they would redirect our index, objects or
    refs, and GitPython cannot unset an inherited variable for a single child.
    """
    for name in list(os.environ):
        if name.startswith("GIT_") and not name.startswith(("GIT_PYTHON_", "GIT_EXEC_PATH")):
            del os.environ[name]


def _environment(path: Path) -> dict[str, str]:
    settings = {
        f"GIT_CONFIG_{part}_{n}": text
        for n, item in enumerate(SETTINGS.items())
        for part, text in zip(("KEY", "VALUE"), item, strict=True)
    }
    return settings | {
        "GIT_CONFIG_COUNT": str(len(SETTINGS)),
        "GIT_DIR": str(path),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_PAGER": "cat",
        "GIT_EDITOR": "false",
        **{f"GIT_{who}_NAME": _NAME for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": _EMAIL for who in ("AUTHOR", "COMMITTER")},
    }


_NO_GIT = "git was not found: install git 2.34 or newer"
_DAMAGED = re.compile(
    r"not a git repository|bad object|bad config|corrupt|malformed|unable to read|could not read"
    r"|invalid object|is empty|missing (blob|tree|commit|object)|not a valid object|unable to find"
    r"|(could not|failed to) parse|does not point to a valid|inflate|hash mismatch|packfile",
    re.IGNORECASE,
)
_MOVED = re.compile(r"but expected|reference already exists|unable to resolve reference|is missing")
_READ_ONLY = re.compile(r"Permission denied|Read-only file system|insufficient permission")


def _error(path: Path, command: str, status: int, said: str) -> AvoError:
    """What a failed git call means, in git's own words."""
    lines = [line for line in said.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:"))]
    last = (told or lines or [f"exit status {status}"])[-1]
    if "No space left" in said or "quota" in said:
        return MachineFailed(f"{path}: the disk is full: {last}")
    if _MOVED.search(said):
        return Refused(f"{path}: changed by someone else meanwhile, nothing was recorded: {last}")
    if _READ_ONLY.search(said):
        return BadInput(f"{path} cannot be written: {last}")
    if _DAMAGED.search(said):
        remedy = f"look with `git --git-dir {path} fsck`"
        return BadInput(f"{path} is damaged or no git repository: {last}; {remedy}")
    return MachineFailed(f"git {command} failed in {path}: {last}")
