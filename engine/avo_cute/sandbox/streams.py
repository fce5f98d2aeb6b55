"""What is taken from a confined process: a bounded part of its output, as text that is safe to
print, and files that it left, believing nothing."""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from pathlib import Path


class Kept:
    """The first and the last part of a stream, and how much was dropped between them."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()  # a little more than half, cut at the end
        self._held = self._seen = 0

    def add(self, data: bytes) -> None:
        self._seen += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        rest = data[room:]
        if rest:
            self._tail.append(rest)
            self._held += len(rest)
        while self._tail and self._held - len(self._tail[0]) >= self._half:
            self._held -= len(self._tail.popleft())

    def text(self) -> str:
        tail = b"".join(self._tail)
        tail = tail[max(0, len(tail) - self._half) :]
        dropped = self._seen - len(self._head) - len(tail)
        mark = f"\n[… {dropped} bytes dropped …]\n".encode() if dropped else b""
        return (bytes(self._head) + mark + tail).decode("utf-8", "replace")


def read_regular(path: Path, limit: int) -> bytes | None:
    """The bytes of a regular file of at most `limit` bytes, or None; follows no link, never blocks.

    Folders on the way to it are ours: only the last name is the confined process's.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_size > limit:  # fdopen raises for a folder
        os.close(handle)
        return None
    with os.fdopen(handle, "rb") as file:
        return file.read(limit)


def printable(text: str) -> str:
    """Text without escape sequences and control characters; newline and tab stay."""
    return "".join(c for c in _ESCAPES.sub("", text) if c.isprintable() or c in "\n\t")


_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]*[0-~]"
)
