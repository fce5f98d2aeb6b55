"""The measuring process: one evaluation on one GPU, with no candidate Python in it.

`python -I -W ignore worker.py FOLDER`. It imports what takes long, says "ready" in FOLDER/phase,
waits for FOLDER/request.json, measures and leaves FOLDER/result.json. What it is doing, and how
many seconds that may take, is in FOLDER/phase all the time, and whose launches it waits for in
FOLDER/turn: the engine kills it where it hangs, and then knows whose fault that is.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # run by path, isolated: find our own package first
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

POLL_S = 0.005
WAIT_S = 24 * 3600.0  # for a request, when started ahead


def main(folder: Path) -> None:
    say(folder, "starting", 180)
    from avo_cute.measure.evaluation import evaluate
    from avo_cute.measure.request import REQUEST, RESULT, read_request, write

    say(folder, "ready", WAIT_S)
    while not (folder / REQUEST).exists():
        time.sleep(POLL_S)
    request = read_request(folder / REQUEST)
    result = evaluate(request, lambda what, seconds: say(folder, what, seconds), turns(folder))
    write(result, folder / RESULT)


def say(folder: Path, what: str, seconds: float) -> None:
    """Announce a phase, and the seconds after which it counts as hanging."""
    scratch = folder / "phase.part"
    scratch.write_text(f"{seconds:.0f} {what}\n")
    scratch.rename(folder / "phase")


def turns(folder: Path) -> Callable[[str], None]:
    """What says in place, in microseconds, whose launches are waited for. Until it is called for
    the first time the file is empty: the candidate's turn, as it is while objects are loaded."""
    from avo_cute.measure.request import TURN, TURN_BYTES

    file = os.open(folder / TURN, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def turn(arm: str) -> None:
        os.pwrite(file, arm.encode()[:TURN_BYTES].ljust(TURN_BYTES), 0)

    return turn


if __name__ == "__main__":
    main(Path(sys.argv[1]))
