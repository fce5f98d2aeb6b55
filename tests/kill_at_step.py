"""Run one attempt of the run in LINEAGE and kill -9 ourselves at the N-th step; or count steps.

A step is a call of any function of the modules that write a run's state.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path

from avo_cute.budget import Budget
from avo_cute.choice import Choice, make_operator
from avo_cute.evolve import Limits, evolve
from avo_cute.plan import Wanted, open_run

STATE = (
    "avo_cute/run.py",
    "avo_cute/lineage",
    "avo_cute/workspace.py",
    "avo_cute/repo",
    "avo_cute/recording.py",
)


class Quiet:
    def phase(self, text): ...

    def attempt(self, attempt): ...


def main() -> None:
    lineage, stop = Path(sys.argv[1]), sys.argv[2]
    steps = 0

    def step(frame, event, _):
        nonlocal steps
        if event == "call" and any(part in frame.f_code.co_filename for part in STATE):
            steps += 1
            if str(steps) == stop:
                os.kill(os.getpid(), signal.SIGKILL)

    run = open_run(Wanted(lineage), map, Quiet())
    with contextlib.ExitStack() as stack:
        stack.enter_context(run.lineage.lock())
        limits = Limits(Budget(attempts=1))
        operator, _ = make_operator(Choice("search", strategy="random"), run, limits)
        sys.setprofile(step)
        evolve(run, operator, limits)
        sys.setprofile(None)
    sys.stdout.write(str(steps))


if __name__ == "__main__":
    main()
