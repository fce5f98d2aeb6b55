"""One session of the agent in the run of LINEAGE; whom it asks says the environment."""

import sys
from pathlib import Path

from avo_cute.agent import Agent
from avo_cute.model import Anthropic
from avo_cute.plan import Wanted, open_run


class Quiet:
    def phase(self, text): ...

    def attempt(self, attempt): ...


def main() -> None:
    run = open_run(Wanted(Path(sys.argv[1]), devices="none"), map, Quiet())
    with run.lineage.lock():
        run.begin()
        operator = Agent(Anthropic("claude-opus-5-5"), None)
        with run.session(operator.name, lambda: False) as session:
            operator.vary(session)


if __name__ == "__main__":
    main()
