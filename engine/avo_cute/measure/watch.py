"""What a measuring process says it is doing, and whether that takes longer than it may."""

from __future__ import annotations

import math
import time
from pathlib import Path

from ..sandbox import printable, read_regular
from .request import PHASE, TURN, TURN_BYTES

# Before any machine code of a candidate is loaded: "starting", "ready", "starting CUDA", …
STARTING, READY = "starting", "ready"
PICK_UP_S = 30.0  # for a process that is ready to notice its request
MAX_PHASE_S = 900.0  # what a phase may ask for
HANG_S = 10.0  # a turn of that length is what hangs
CANDIDATE, OURS = "candidate", "our own code"
_MAX_BYTES = 4096


class Watch:
    """Reads the files of one process: `phase` ("SECONDS WORDS", replaced by rename), and `turn`.

    The process is not believed: no phase lasts longer than `MAX_PHASE_S`, all of them together
    no longer than `limit_s` from the request on, and what is not a phase changes nothing.
    """

    def __init__(self, folder: Path, start_s: float, limit_s: float) -> None:
        self.phase = STARTING
        self.begun = False  # with objects: from here on a failure is the candidate's
        self.overrun = ""  # one line, once a phase took too long
        self.hung = ""  # who hangs then, if it is not the candidate
        self._file, self._turn, self._limit_s = folder / PHASE, folder / TURN, limit_s
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
            self._end(f"no answer after {self._limit_s:g} s, {self.phase!r} at last")
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

    def other(self, least_s: float = 0.0) -> str:
        """Whose turn it has been for so long: an arm that is not on trial, or our own code.
        "" for the candidate, and where the file does not say."""
        data = read_regular(self._turn, TURN_BYTES)
        if data is None or len(data) < TURN_BYTES:
            return ""
        try:
            lasts = time.time() - self._turn.lstat().st_mtime
        except OSError:
            return ""
        name = " ".join(printable(data.decode("utf-8", "replace")).split()) or OURS
        return name if name != CANDIDATE and lasts >= least_s else ""

    def _check(self, spent: float, allowed: float) -> None:
        if spent > allowed:
            self._end(f"{self.phase!r} took longer than {allowed:g} s")

    def _end(self, why: str) -> None:
        if not self.overrun:
            self.overrun, self.hung = why, self.other(HANG_S)


def _parse(data: bytes | None) -> tuple[float, str]:
    """Seconds and words; no words where the bytes are no phase."""
    number, _, words = printable((data or b"").decode("utf-8", "replace")).partition(" ")
    try:
        seconds = float(number)
    except ValueError:
        return 0.0, ""
    return (seconds, " ".join(words.split())[:100]) if math.isfinite(seconds) else (0.0, "")
