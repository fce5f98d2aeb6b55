"""A bare git repository; this package is the only place where git is called.

    Repo.create / Repo.open      write_blobs → write_tree → commit → update_refs
                                 read_tree, read_blobs, log, rev_parse, refs, diff

Every call is one git process with an explicit GIT_DIR and an environment of ours: no system or
user configuration, no hooks, no signing, no prompts, whatever is set around us. Nothing is kept
between calls, so one Repo may be used by several threads and needs no closing.

Errors: `BadInput` where the repository is missing, damaged or read-only, `Refused` where a ref
is not what the caller last saw, `MachineFailed` with git's own line for everything else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, MachineFailed
from .process import IDENTITY, SETTINGS, Process, dates, git_version

__all__ = ["ABSENT", "EMPTY_TREE", "FILE", "Commit", "Entry", "RefUpdate", "Repo", "git_version"]

ABSENT = "0" * 40  # as a ref's old value: must not exist yet
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
FILE = "100644"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a tree: git's mode ("100644", "100755", "120000" …) and its blob."""

    mode: str
    blob: str


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit object. `when` is the committer's time in seconds since the epoch."""

    tree: str
    parents: tuple[str, ...]
    when: int
    message: str


@dataclass(frozen=True, slots=True)
class RefUpdate:
    """Move `ref` from `old` (ABSENT: create it) to `new`."""

    ref: str
    new: str
    old: str


class Repo:
    """A repository given by its git directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._process = Process(self.path)
        self._run, self._call = self._process.run, self._process.call

    @classmethod
    def create(cls, path: Path) -> Repo:
        """Make a bare repository; harmless where a killed process left half of one."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"cannot create {path}: {error.strerror}") from None
        repo = cls(path)
        repo._run("init", "--quiet", "--bare", "--template=", "--object-format=sha1")
        for key, value in SETTINGS.items():
            repo._run("config", key, value)
        return repo

    @classmethod
    def open(cls, path: Path, bare: bool = False) -> Repo:
        """The repository whose git directory is `path`; `BadInput` where git cannot read it,
        or where a `bare` one is wanted and this one belongs to a working tree."""
        if not path.exists():
            raise BadInput(f"{path} does not exist")
        repo = cls(path)
        is_bare = repo._run("rev-parse", "--is-bare-repository").strip() == b"true"
        if bare and not is_bare:
            raise BadInput(f"{path} is the repository of a working tree, not a lineage")
        return repo

    # Writing objects: none of these changes a ref.

    def write_blobs(self, contents: Sequence[bytes]) -> list[str]:
        """Store byte strings as they are, without filters; their ids in the same order."""
        if not contents:
            return []
        with _scratch() as folder:
            paths = [folder / str(n) for n in range(len(contents))]
            for path, data in zip(paths, contents, strict=True):
                path.write_bytes(data)
            names = "".join(f"{path}\n" for path in paths)
            out = self._run("hash-object", "-w", "--no-filters", "--stdin-paths", text=names)
        return out.decode().split()

    def write_tree(self, changes: Mapping[str, Entry | None], base: str = EMPTY_TREE) -> str:
        """The tree `base` with some paths set, or taken away where the entry is None."""
        gone = Entry("0", ABSENT)
        lines = (f"{e.mode} {e.blob}\t{p}\0" for p, c in changes.items() for e in [c or gone])
        with _scratch() as folder:
            index = {"GIT_INDEX_FILE": str(folder / "index")}
            if base != EMPTY_TREE:
                self._run("read-tree", base, env=index)
            self._run("update-index", "-z", "--index-info", text="".join(lines), env=index)
            return self._line("write-tree", env=index)

    def commit(self, tree: str, parents: Sequence[str], message: str, when: int) -> str:
        """Store a commit; `when` in seconds since the epoch, UTC."""
        options = [option for parent in parents for option in ("-p", parent)]
        return self._line("commit-tree", tree, *options, text=message, env=dates(when))

    def tag(self, name: str, commit: str, message: str, when: int) -> str:
        """Store an annotated tag object; refs/tags/`name` is still to be made."""
        who = f"{IDENTITY} {when} +0000"
        text = f"object {commit}\ntype commit\ntag {name}\ntagger {who}\n\n{message}"
        return self._line("mktag", text=text)

    # Refs.

    def update_refs(self, updates: Sequence[RefUpdate], reason: str) -> None:
        """Move all the refs or none; `Refused` if one is not at its old value any more."""
        lines = "".join(f"update {u.ref} {u.new} {u.old}\n" for u in updates)
        self._run("update-ref", "-m", reason, "--stdin", text=lines)

    def refs(self, prefix: str, newest_first: bool = False) -> dict[str, str]:
        """Refs below `prefix` (no slash at its end) and the commits they lead to."""
        order = ["--sort=-creatordate"] if newest_first else []
        form = "--format=%(refname) %(objectname) %(*objectname)"
        lines = self._run("for-each-ref", *order, form, prefix).decode().splitlines()
        return {parts[0]: parts[-1] for line in lines if (parts := line.split())}

    def rev_parse(self, rev: str, kind: str = "commit") -> str | None:
        """The id of the commit (tree, tag) that a revision names, or None."""
        if "\0" in rev or not rev or rev.startswith("^"):
            return None
        arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{{kind}}}")
        status, out, _ = self._call(*arguments)
        return out.decode().strip() if status == 0 else None

    def head(self) -> str:
        """The ref that HEAD points at, born or not; "" when HEAD is detached."""
        status, out, _ = self._call("symbolic-ref", "--quiet", "HEAD")
        return out.decode().strip() if status == 0 else ""

    def set_head(self, ref: str) -> None:
        """Point HEAD at a branch."""
        self._run("symbolic-ref", "HEAD", ref)

    # Reading.

    def read_commit(self, commit: str) -> Commit:
        """Tree, parents, date and message of a commit."""
        (fields,) = self.log("%T%x00%P%x00%ct%x00%B", "-1", commit)
        tree, parents, when, message = fields
        return Commit(tree, tuple(parents.split()), int(when), message)

    def read_tag(self, name: str) -> str:
        """The message of an annotated tag."""
        text = self._run("cat-file", "tag", f"refs/tags/{name}").decode("utf-8", "replace")
        return text.partition("\n\n")[2]

    def read_tree(self, tree: str) -> dict[str, Entry]:
        """Every file below a tree (or commit), by its path."""
        out = self._run("ls-tree", "-r", "-z", "--full-tree", tree)
        entries = {}
        for line in out.decode("utf-8", "surrogateescape").split("\0")[:-1]:
            facts, _, path = line.partition("\t")
            mode, _, blob = facts.split(" ")
            entries[path] = Entry(mode, blob)
        return entries

    def read_blobs(self, blobs: Sequence[str]) -> list[bytes]:
        """Contents of blobs, as stored."""
        out = self._run("cat-file", "--batch", text="".join(f"{b}\n" for b in blobs))
        contents, at = [], 0
        for blob in blobs:
            line_end = out.find(b"\n", at)
            header = out[at:line_end].split(b" ")
            if len(header) != 3 or header[1] != b"blob":
                raise BadInput(f"{self.path} is damaged: it has no file {blob}")
            start, size = line_end + 1, int(header[2])
            contents.append(out[start : start + size])
            at = start + size + 1
        return contents

    def log(self, form: str, *arguments: str) -> list[list[str]]:
        """One `git log`: for each commit the fields of `form`, which joins them by %x00."""
        command = ("log", "-z", "--no-show-signature", "--no-color", f"--format=tformat:{form}")
        out = self._run(*command, *arguments, "--").decode("utf-8", "replace")
        fields, width = out.split("\0")[:-1], form.count("%x00") + 1
        return [fields[n : n + width] for n in range(0, len(fields), width)]

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Whether `older` is `newer` or in its history."""
        return self._call("merge-base", "--is-ancestor", older, newer)[0] == 0

    def diff(self, old: str, new: str) -> str:
        """The change from one commit or tree to another, as text for people."""
        plain = ("--no-ext-diff", "--no-textconv", "--no-color")
        return self._run("diff", *plain, old, new, "--").decode("utf-8", "replace")

    def write_note(self, ref: str, commit: str, text: str, when: int) -> None:
        """Attach a note to a commit, in place of an earlier one."""
        command = ("notes", f"--ref={ref}", "add", "--force", "--file=-", commit)
        self._run(*command, text=text, env=dates(when))

    def read_note(self, ref: str, commit: str) -> str | None:
        """The note of a commit, if it has one."""
        status, out, _ = self._call("notes", f"--ref={ref}", "show", commit)
        return out.decode("utf-8", "replace") if status == 0 else None

    def pack(self) -> None:
        """Pack refs and loose objects, so that reading stays fast; takes as long as there are new.

        `git repack` would first walk the whole history, and every reflog, each time.
        """
        self._run("pack-refs", "--all")
        objects = self.path / "objects"
        loose = [f"{p.parent.name}{p.name}\n" for p in objects.glob("[0-9a-f][0-9a-f]/?*[0-9a-f]")]
        if loose:
            packs = str(objects / "pack" / "pack")
            self._run("pack-objects", "--quiet", packs, text="".join(loose))
            self._run("prune-packed", "--quiet")

    def _line(self, *arguments: str, text: str = "", env: Mapping[str, str] | None = None) -> str:
        return self._run(*arguments, text=text, env=env).decode().strip()


@contextmanager
def _scratch() -> Iterator[Path]:
    """A private folder, outside repository and workspace."""
    try:
        with tempfile.TemporaryDirectory(prefix="avo-cute-git-") as folder:
            yield Path(folder)
    except OSError as error:
        raise MachineFailed(f"temporary files: {error}") from None
