"""A private repository that borrows the objects of others: where a change is carried elsewhere.

Whatever happens in it, the repositories that lend are only read: their refs, index, working tree,
hooks and configuration play no part.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, MachineFailed
from . import Repo


@dataclass(frozen=True, slots=True)
class Conflict:
    """A file that needs a hand. `places` are first and last lines in the version that the change
    was to be put on; empty where no part of the file says more than `why`."""

    path: str
    places: tuple[tuple[int, int], ...]
    why: str


@dataclass(frozen=True, slots=True)
class Carried:
    """What became of a change: the tree that came out, or "" and the conflicts."""

    tree: str
    conflicts: tuple[Conflict, ...] = ()
    changed: tuple[str, ...] = ()  # paths in which the tree differs from where it was put


@dataclass(frozen=True, slots=True)
class Patch:
    """A mail for `git am`, the options that it needs there, and the files that it changes."""

    data: bytes
    options: tuple[str, ...]
    files: tuple[str, ...]


class Scratch(Repo):
    """Made by `scratch`. Its working tree holds only files that git must write to say something."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._work = path.parent / "work"
        self._env = {"GIT_WORK_TREE": str(self._work)}

    def borrow(self, objects: tuple[Path, ...]) -> None:
        """See every object in these folders."""
        self._work.mkdir()
        info = self.path / "info"
        info.mkdir(exist_ok=True)
        self._check_out_only(())
        (info / "attributes").write_text(f"* conflict-marker-size={_MARK}\n")
        self._run("config", "core.sparseCheckout", "true")
        lines = "".join(f"{folder}\n" for folder in objects)
        (self.path / "objects" / "info" / "alternates").write_text(lines)

    def patch(self, commit: str) -> bytes:
        """The change of a commit over its parent, as a mail for `git am`."""
        plain = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-signature")
        exact = ("--full-index", "--binary", "--no-attach", "--encode-email-headers")
        return self._run("format-patch", "--stdout", "-1", *plain, *exact, commit)

    def cherry_pick(self, commit: str, onto: str) -> Carried:
        """What `git cherry-pick` makes of a commit on top of another."""
        self._start(onto)
        words = ("cherry-pick", "--allow-empty", "--keep-redundant-commits", commit)
        return self._carried(onto, *self._call(*words, env=self._env))

    def am(self, patch: Patch, onto: str) -> Carried:
        """What `git am` makes of a patch on top of a commit."""
        self._check_out_only(patch.files)  # it compares them with the index
        self._start(onto)
        mail = self.path / "mail.patch"
        mail.write_bytes(patch.data)
        status, out, said = self._call("am", *patch.options, str(mail), env=self._env)
        if status != 0:  # without a common version -3 does not say where
            said += "\n" + self._call("apply", "--cached", "--check", str(mail), env=self._env)[2]
        return self._carried(onto, status, out, said)

    def bundle(self, head: str, refs: dict[str, str], path: Path) -> None:
        """Write these refs (name -> object), with HEAD at the ref `head`, as a bundle."""
        lines = "".join(f"create {ref} {what}\n" for ref, what in refs.items())
        self._run("update-ref", "--stdin", text=lines)
        self.set_head(head)
        self._run("bundle", "create", "--quiet", str(path), "--all")

    def changed(self, old: str, new: str) -> tuple[str, ...]:
        """Paths that differ between two trees."""
        out = self._run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)
        return tuple(out.decode("utf-8", "surrogateescape").split("\0")[:-1])

    def _check_out_only(self, paths: tuple[str, ...]) -> None:
        lines = (f"/{_SPECIAL.sub(_ESCAPED, path)}\n" for path in paths)
        text = "".join(lines).encode("utf-8", "surrogateescape")
        (self.path / "info" / "sparse-checkout").write_bytes(text)

    def _start(self, onto: str) -> None:
        self._run("update-ref", "--no-deref", "HEAD", onto)
        self._run("read-tree", "-m", "-u", onto, env=self._env)

    def _carried(self, onto: str, status: int, out: bytes, said: str) -> Carried:
        if status == 0:
            tree = self.rev_parse("HEAD", "tree") or ""
            return Carried(tree, changed=self.changed(onto, tree))
        found = tuple(self._unmerged()) or tuple(_rejected(said))
        if not found:
            told = [line for line in said.splitlines() if line.strip()]
            raise MachineFailed(
                f"git in {self.path}: {(told or [out.decode('utf-8', 'replace')])[0]}"
            )
        return Carried("", found)

    def _unmerged(self) -> Iterator[Conflict]:
        """Files that the index holds several versions of."""
        out = self._run("ls-files", "--unmerged", "-z", "--full-name", env=self._env)
        stages: dict[str, set[str]] = {}
        for line in out.decode("utf-8", "surrogateescape").split("\0")[:-1]:
            facts, _, path = line.partition("\t")
            stages.setdefault(path, set()).add(facts.rpartition(" ")[2])
        for path, there in stages.items():
            file = self._work / path
            text = file.read_bytes() if file.is_file() and not file.is_symlink() else b""
            yield Conflict(path, tuple(_marked(text)), _WHY.get("".join(sorted(there)), _BOTH))


@contextmanager
def scratch(*objects: Path) -> Iterator[Scratch]:
    """A `Scratch` that borrows from these folders of objects; gone afterwards."""
    try:
        with tempfile.TemporaryDirectory(prefix="avo-cute-scratch-") as folder:
            repo = Scratch(Repo.create(Path(folder) / "scratch.git").path)
            repo.borrow(objects)
            yield repo
    except OSError as error:
        raise MachineFailed(f"temporary files: {error}") from None


class Fork(Repo):
    """A repository of someone else. Only read: not even its index is refreshed."""

    def __init__(self, path: Path, top: Path | None = None) -> None:
        super().__init__(path)
        self.top = (top or path).resolve()

    @classmethod
    def at(cls, path: Path) -> Fork:
        """The repository of a working tree, or a bare one; `BadInput` for anything else."""
        inside = path / ".git"
        bare = (path / "HEAD").is_file() and (path / "objects").is_dir()
        if not path.is_dir() or not (bare or inside.exists()):
            what = "is no git repository" if path.exists() else "does not exist"
            raise BadInput(f"{path} {what}: give the top folder of your fork")
        cls.open(path if bare else inside)  # a clear error for a damaged one
        fork = cls(path if bare else inside, path)
        if fork._setting("extensions.objectformat") not in ("", "sha1"):
            raise BadInput(
                f"{path} names its objects by SHA-256, a lineage by SHA-1: they cannot mix"
            )
        return fork

    @property
    def objects(self) -> Path:
        """The folder of its objects; of a linked working tree it is that of the main one."""
        told = self._line("rev-parse", "--path-format=absolute", "--git-common-dir")
        return Path(told) / "objects"

    @property
    def bare(self) -> bool:
        return self._line("rev-parse", "--is-bare-repository") == "true"

    def dirty(self) -> bool:
        """Whether tracked files differ from HEAD. Runs nothing that its configuration names."""
        if self.bare:
            return False
        quiet = ("-c", "core.fsmonitor=false", "--no-optional-locks")
        tree = {"GIT_WORK_TREE": str(self.top)}
        words = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all")
        return bool(self._run(*quiet, *words, env=tree).strip())

    def _setting(self, key: str) -> str:
        return self._call("config", "--get", key)[1].decode().strip()


_SPECIAL, _ESCAPED = re.compile(r"([\\*?\[ ])"), r"\\\1"  # in a pattern of paths
_MARK = 43  # signs of a conflict marker: as many as no source has in a row
_LINE = re.compile(rb"([<=>])\1{%d}(?:[ \r\n]|$)" % (_MARK - 1))
_BOTH = "both changed these lines"
_WHY = {
    "12": "the change deletes it, the fork changed it",
    "13": "the fork does not have it any more",
    "23": "both add it",
    "1": "renamed to two names, or gone on both sides",
    "2": "renamed to two names",
    "3": "renamed to two names",
}


def _marked(text: bytes) -> Iterator[tuple[int, int]]:
    """First and last line of each conflict, counted in the version above the `=` line."""
    at, begun, theirs = 0, 0, False
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None:
            at += not theirs
        elif found[1] == b"<":
            begun = at + 1
        elif found[1] == b"=":
            yield begun, max(at, begun)
            theirs = True
        else:
            theirs = False


_FAILED = re.compile(r"^error: patch failed: (.+):(\d+)$", re.MULTILINE)
_ABSENT = re.compile(r"^error: (.+): (does not exist in index|already exists in index)$", re.M)


def _rejected(said: str) -> Iterator[Conflict]:
    """What `git am` says of a patch for which it has no common version to merge with."""
    lines: dict[str, list[tuple[int, int]]] = {}
    for path, line in _FAILED.findall(said):
        lines.setdefault(path, []).append((int(line), int(line)))
    for path, places in lines.items():
        yield Conflict(path, tuple(places), "the lines around the change differ")
    for path, why in dict.fromkeys(_ABSENT.findall(said)):
        there = why.startswith("already")
        yield Conflict(
            path, (), "the fork has it already" if there else "the fork does not have it"
        )
