"""Lineages with something to take home, and forks to take it to; git as a user runs it."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from avo_cute.lineage import AttemptDraft, Lineage
from avo_cute.records import Status
from avo_cute.repo import FILE, Entry
from avo_cute.seed import Seed

CLEAN = {
    **{k: v for k, v in os.environ.items() if not k.startswith(("AVO_CUTE_", "GIT_"))},
    **{f"GIT_{who}_{what}": "me" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "NO_COLOR": "1",
}


def git(folder, *words, code=0, text=None) -> str:
    """stdout of git in a folder, with the user's own hands: no explicit GIT_DIR."""
    done = subprocess.run(
        ["git", "-C", str(folder), *map(str, words)],
        input=text, capture_output=True, env=CLEAN,
    )  # fmt: skip
    assert code is None or done.returncode == code, (words, done.stdout, done.stderr.decode())
    return done.stdout.decode().strip()


def avo(*words, code=0, **more):
    """The installed command, finished; an error is one line and no traceback."""
    command = [str(Path(sys.executable).with_name("avo-cute")), *map(str, words)]
    done = subprocess.run(command, env=CLEAN | more, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    if code == 1:
        errors = [line for line in done.stderr.splitlines() if not line.startswith("…")]
        assert len(errors) == 1 and errors[0].startswith("avo-cute: "), done.stderr
    return done


@dataclass
class Taken:
    """A lineage with one run, and a way to record what an agent would have."""

    lineage: Lineage
    run: str

    @property
    def path(self):
        return self.lineage.path

    def tree(self, changes, base=None):
        """The incumbent's tree with these files replaced, or (None) deleted."""
        given = {p: d for p, d in changes.items() if d is not None}
        blobs = self.lineage.repo.write_blobs(list(given.values()))
        entries = {p: Entry(FILE, b) for p, b in zip(given, blobs, strict=True)}
        entries |= {p: None for p, d in changes.items() if d is None}
        base = base or self.lineage.head(self.run)
        return self.lineage.repo.write_tree(entries, self.lineage.tree(base))

    def record(self, changes, status=Status.ACCEPTED, subject="Try it", body="Because.", **facts):
        """An attempt on top of the incumbent; `facts` are trailers, `_` for `-`."""
        told = {"Score": "1.5", "Score-kind": "static", "Gain": "1.01", "Target": "b200"}
        told |= {k.replace("_", "-"): v for k, v in facts.items()}
        parent = self.lineage.head(self.run)
        tree = self.tree(changes)
        return self.lineage.record(
            AttemptDraft(self.run, tree, parent, status, subject, body, told)
        )

    def file(self, rev, path):
        return self.lineage.read(self.lineage.tree(self.lineage.resolve(rev, self.run)), path)


def begin(path, files, task="softmax", run="r", workloads="all") -> Taken:
    """A lineage with these files as its seed, and a run whose attempt 0 is recorded."""
    lineage = Lineage.create(path)
    upstream = f"{task} 1.0 {'ab' * 32}"
    seed = lineage.init_seed(task, Seed(files, upstream, f"Import {task} 1.0"))
    lineage.start_run(run, seed, {"Task": task, "Target": "b200", "Workloads": workloads})
    tree = lineage.tree(seed)
    facts = {"Score": "1.000000", "Score-kind": "static"}
    lineage.record(AttemptDraft(run, tree, seed, Status.NO_CHANGE, "Baseline", "", facts, 0))
    return Taken(lineage, run)


def fork_of(folder, files) -> Path:
    """A user's repository with these files in one commit."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", "fork")
    return folder


def files_of(lineage, rev) -> dict[str, bytes]:
    """Every file of a version."""
    entries = lineage.repo.read_tree(lineage.tree(rev))
    contents = lineage.repo.read_blobs([e.blob for e in entries.values()])
    return dict(zip(entries, contents, strict=True))


def snapshot(folder) -> dict[str, tuple]:
    """Everything below a folder, `.git` too: content, mode and time of every file. Git dates an
    object anew where a repository that borrows it would write it again: those have no time."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat = path.lstat()
        what = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        when = 0 if "objects" in path.parts else stat.st_mtime_ns
        found[str(path.relative_to(folder))] = (what, stat.st_mode, when)
    return found
