"""R34: what was evaluated is what is committed, however the workspace changes in between."""

import subprocess
import sys

import pytest

from avo_cute.errors import BadInput
from avo_cute.lineage import AttemptDraft, Lineage
from avo_cute.records import Status
from avo_cute.seed import Seed
from avo_cute.workspace import _read_file, export, read_back

RUN, EDITABLE = "r", ["pkg/*.py"]
GOOD, EVIL = b"honest = 1\n", b"cheat = 1\n"


@pytest.fixture
def lineage(tmp_path):
    made = Lineage.create(tmp_path / "lineage.git")
    seed = made.init_seed("t", Seed({"pkg/k.py": b"", "pkg/h.py": b""}, "tiny 1.0", "Import"))
    made.start_run(RUN, seed, {"Task": "t", "Target": "b200", "Workloads": "all"})
    return made


def work_of(lineage, tmp_path):
    export(lineage.repo, lineage.tree(lineage.head(RUN)), tmp_path / "work")
    return tmp_path / "work"


def draft(lineage, tree):
    parent = lineage.head(RUN)
    return AttemptDraft(RUN, tree, parent, Status.ACCEPTED, "s", "", {"Score": "1.1"})


def test_a_workspace_changed_after_it_was_read_is_not_what_is_committed(lineage, tmp_path):
    work = work_of(lineage, tmp_path)
    (work / "pkg/k.py").write_bytes(GOOD)
    tree = read_back(lineage.repo, lineage.tree(lineage.head(RUN)), work, EDITABLE, 1000).tree
    (work / "pkg/k.py").write_bytes(EVIL)  # while the evaluation runs
    export(lineage.repo, tree, tmp_path / "evaluated")
    attempt = lineage.record(draft(lineage, tree))
    assert attempt.tree == tree == lineage.tree(lineage.head(RUN))
    assert (tmp_path / "evaluated/pkg/k.py").read_bytes() == GOOD
    assert lineage.read(attempt.tree, "pkg/k.py") == GOOD


def test_changes_made_to_what_is_evaluated_reach_no_commit(lineage, tmp_path):
    """The build works on a copy: a candidate that rewrites itself there changes nothing."""
    work = work_of(lineage, tmp_path)
    (work / "pkg/k.py").write_bytes(GOOD)
    tree = read_back(lineage.repo, lineage.tree(lineage.head(RUN)), work, EDITABLE, 1000).tree
    export(lineage.repo, tree, tmp_path / "evaluated")
    (tmp_path / "evaluated/pkg/k.py").write_bytes(EVIL)
    (tmp_path / "evaluated/pkg/h.py").unlink()
    lineage.record(draft(lineage, tree))
    assert lineage.read(lineage.head(RUN), "pkg/k.py") == GOOD
    assert lineage.read(lineage.head(RUN), "pkg/h.py") == b""


FLICKER = """
import os, sys
k = sys.argv[1] + "/pkg/k.py"
other = sys.argv[1] + "/../other"
print("go", flush=True)
while True:
    for data in (b"honest = 1\\n", b"cheat = 1\\n"):
        with open(other, "wb") as file:
            file.write(data)
        os.replace(other, k)
    os.symlink("/etc/hostname", other)
    os.replace(other, k)
"""


def test_a_link_that_comes_between_look_and_open_is_not_followed(tmp_path):
    (tmp_path / "k.py").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic links"):
        _read_file(tmp_path / "k.py", "k.py", 1000)


def test_a_file_that_flickers_is_read_once(lineage, tmp_path):
    """Each tree read back is wholly one of the contents, never a link's target, and is kept."""
    work = work_of(lineage, tmp_path)
    base = lineage.tree(lineage.head(RUN))
    child = subprocess.Popen([sys.executable, "-c", FLICKER, work], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"go\n"
        seen = set()
        for _ in range(60):
            try:
                tree = read_back(lineage.repo, base, work, EDITABLE, 1000).tree
            except BadInput:
                continue  # the link was there, or came between look and open
            seen.add(lineage.read(tree, "pkg/k.py"))
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert seen and seen <= {GOOD, EVIL}


def test_what_changes_while_it_is_judged_is_not_what_is_committed(softmax_bench, tmp_path):
    """The tree is read once, before judging; an operator's later edits are the next candidate's."""
    from dataclasses import replace

    from tests.conftest import KERNEL

    from avo_cute.operators import Proposal
    from avo_cute.plan import init, seed_of
    from avo_cute.run import Run
    from avo_cute.task import find_task

    class Silent:
        def phase(self, text): ...

        def attempt(self, attempt): ...

    lineage = init(tmp_path / "l.git", find_task("softmax"), seed_of(find_task("softmax")))
    folders = []

    def spread(work, requests):
        results = [work(r) for r in requests]
        for folder in folders:
            (folder / KERNEL).write_text("swapped = True\n")
        return results

    bench = replace(softmax_bench, spread=spread)
    run = Run(lineage, bench, "r", "softmax-2k", Silent(), lineage.seed("softmax"))
    run.begin()
    with run.session("test", lambda: False) as session:
        folders.append(session.folder)
        source = session.parent.files[KERNEL]
        changed = source + b"\n# judged\n"
        attempt = session.evaluate(Proposal("Add a comment", "", {KERNEL: changed}))
    assert lineage.read(attempt.tree, KERNEL) == changed
