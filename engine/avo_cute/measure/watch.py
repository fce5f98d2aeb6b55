"""What a measuring process says it is doing, and whether that takes longer than it may."""

from __future__ import annotations

import math
import time
from pathlib import Path

from ..sandbox import printable, read_regular
from .request import PHASE

# Before any machine code of a candidate is loaded: "starting", "ready", "starting CUDA", …
STARTING, READY = "starting", "ready"
PICK_UP_S = 30.0  # for a process that is ready to notice its request
MAX_PHASE_S = 900.0  # what a phase may ask for
_MAX_BYTES = 4096


class Watch:
    """Reads the file `phase` of one process ("SECONDS WORDS", replaced by rename).

    The process is not believed: no phase lasts longer than `MAX_PHASE_S`, all of them together
    no longer than `limit_s` from the request on, and what is not a phase changes nothing.
    """

    def __init__(self, folder: Path, start_s: float, limit_s: float) -> None:
        self.phase = STARTING
        self.begun = False  # with objects: from here on a failure is the candidate's
        self.overrun = ""  # one line, once a phase took too long
        self._file, self._limit_s = folder / PHASE, limit_s
        self._allowed, self._since = start_s, time.monotonic()
        self._seen: tuple[int, int] | None = None
        self._asked: float | None = None
        self._stopped = False

    def ask(self) -> None:
        """The request is there."""
        self._asked = time.monotonic()

    def stop(self) -> None:
        """Nobody waits for an answer."""
        self._stopped = True

    def over(self) -> bool:
        """Whether the process is to be killed now."""
        self.look()
        now = time.monotonic()
        if self.phase != READY:
            self._check(now - self._since, self._allowed)
        elif self._asked is not None:
            self._check(now - max(self._asked, self._since), PICK_UP_S)
        if self._asked is not None and now - self._asked > self._limit_s:
            self.overrun = f"no answer after {self._limit_s:g} s, {self.phase!r} at last"
        return self._stopped or bool(self.overrun)

    def look(self) -> None:
        """Read the phase if the file is another one than before."""
        try:
            about = self._file.lstat()
        except OSError:
            return
        if (about.st_ino, about.st_mtime_ns) == self._seen:
            return
        self._seen = about.st_ino, about.st_mtime_ns
        seconds, what = _parse(read_regular(self._file, _MAX_BYTES))
        if what:
            self.phase, self._allowed = what, min(seconds, MAX_PHASE_S)
            self._since = time.monotonic()
            self.begun = self.begun or what.split()[0] not in (STARTING, READY)

    def _check(self, spent: float, allowed: float) -> None:
        if spent > allowed:
            self.overrun = f"{self.phase!r} took longer than {allowed:g} s"


def _parse(data: bytes | None) -> tuple[float, str]:
    """Seconds and words; no words where the bytes are no phase."""
    number, _, words = printable((data or b"").decode("utf-8", "replace")).partition(" ")
    try:
        seconds = float(number)
    except ValueError:
        return 0.0, ""
    return (seconds, " ".join(words.split())[:100]) if math.isfinite(seconds) else (0.0, "")
