"""Sessions for operators that ask a model or run a command: a real run of the row softmax, a real
model client, and what is left of a session in the lineage."""

import json
from contextlib import contextmanager
from itertools import pairwise

from avo_cute import transcripts
from avo_cute.model import Anthropic, Patience
from avo_cute.plan import init, seed_of
from avo_cute.run import Run
from avo_cute.task import find_task

from .messages_server import blocks_of, refused, serving
from .simulated_rig import Events

QUICK = Patience(tries=4, first_s=0.01, longest_s=0.02, asked_s=2.0, silence_s=5.0)


def begun_run(bench, folder) -> Run:
    """A new run of the softmax that has judged its seed."""
    task = find_task("softmax")
    lineage = init(folder / "lineage.git", task, seed_of(task))
    run = Run(lineage, bench, "r", "softmax-2k", Events(), lineage.seed("softmax"))
    run.begin()
    return run


@contextmanager
def asking(monkeypatch, agent, name="claude-opus-5-5"):
    """The real client, and the server that it talks to, which runs the script."""
    with serving(agent) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
        model = Anthropic(name, patience=QUICK)
        try:
            yield model, server
        finally:
            model.close()


def files_of(run, number) -> dict[str, str]:
    """The transcript of a session, as the lineage has it; empty where it has none."""
    for kept in transcripts.sessions(run.lineage.repo, run.name):
        if kept.number == number:
            paths = run.lineage.repo.read_tree(kept.commit)
            return {path: transcripts.read(run.lineage.repo, kept, path) for path in paths}
    return {}


def turns_of(run, number) -> list[dict]:
    """The turns of a session, in order, as the lineage has them."""
    files = files_of(run, number)
    paths = sorted(p for p in files if p.startswith("turns/") and p.endswith(".json"))
    return [json.loads(files[path]) for path in paths]


def tokens_kept(run, number) -> int:
    """What the lineage says that a session has used."""
    (kept,) = (k for k in transcripts.sessions(run.lineage.repo, run.name) if k.number == number)
    told = kept.trailers.get("Tokens", "").split()
    return sum(int(part.partition("=")[2]) for part in told)


def tokens_billed(server, answers=None) -> int:
    """What the server has billed for the answers that it began, or for the first of them."""
    return sum(v for u in server.usages[:answers] for k, v in u.items() if k.endswith("_tokens"))


def assert_appended(requests) -> None:
    """Every request begins with the one before it: the API's cache holds, nothing is rewritten."""
    for before, after in pairwise(requests):
        for part in ("system", "tools", "model", "max_tokens"):
            assert after.get(part) == before.get(part), part
        old, new = _plain(before["messages"]), _plain(after["messages"])
        assert new[: len(old)] == old


def _plain(messages):
    return [
        {
            "role": message["role"],
            "content": [
                {k: v for k, v in block.items() if k != "cache_control"}
                for block in blocks_of(message)
            ],
        }
        for message in messages
    ]


class Office:
    """A run, and sessions of it in which a script works; what was asked stays to be looked at."""

    def __init__(self, run, monkeypatch):
        self.run, self.monkeypatch = run, monkeypatch
        self.session = self.server = None

    def work(self, agent, operator, stop=lambda: False, left=str):
        """One session of `operator(model)`; what the script asserts, the test asserts."""
        wrong = []

        def script(request):
            try:
                return agent(request)
            except Exception as error:
                wrong.append(error)
                return refused(f"the script is surprised: {error!r}")

        try:
            with asking(self.monkeypatch, script) as (model, self.server):
                who = operator(model)
                with self.run.session(who.name, stop, left) as self.session:
                    who.vary(self.session)
        finally:
            if wrong:
                raise wrong[0]
        return self.session

    @property
    def requests(self):
        return self.server.requests

    @property
    def files(self):
        """The transcript of the last session."""
        return files_of(self.run, self.session.number)

    @property
    def turns(self):
        return turns_of(self.run, self.session.number)

    def assert_counted(self):
        """Every token that was billed is in the lineage and in what the run has spent."""
        billed = tokens_billed(self.server)
        assert tokens_kept(self.run, self.session.number) == billed > 0
        assert self.run.spent.tokens == billed
