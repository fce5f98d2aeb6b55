"""Workspaces: a candidate's files as a plain folder, out of the lineage and back into it.

A workspace belongs to whoever varies, so nothing in it is trusted: it is no git worktree, git is
never run in it, and what comes back is read by us, once, as bytes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import BadInput, MachineFailed
from .globs import matches
from .repo import FILE, Entry, Repo

_CACHES = "__pycache__"  # left by whoever imports from a workspace; never read, never exported
_DEEPEST = 32  # folders inside folders


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What a workspace holds now: its tree, and the paths that differ from the base."""

    tree: str
    changed: tuple[str, ...]


def export(repo: Repo, tree: str, folder: Path) -> None:
    """Write the files of a tree into an empty or new folder, byte for byte.

    Contents come straight from the objects: no attribute, filter or line-ending rule applies.
    `BadInput` for a folder that is not empty and for a tree that holds anything but plain files.
    """
    entries = repo.read_tree(tree)
    for path, entry in entries.items():
        _check_entry(path, entry)
    contents = repo.read_blobs([entry.blob for entry in entries.values()])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"{folder} is not empty: choose another folder")
        for (path, entry), data in zip(entries.items(), contents, strict=True):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod(0o755 if entry.mode == "100755" else 0o644)
    except OSError as error:
        raise MachineFailed(f"cannot write {folder}: {error}") from None


def read_back(
    repo: Repo, base: str, folder: Path, editable: Sequence[str], max_file_bytes: int
) -> ReadBack:
    """The tree that `base` becomes with the workspace's editable files.

    `BadInput` names the path of whatever a candidate must not contain: a change outside the
    editable paths, a link, a device, a folder with `.git`, a file above `max_file_bytes`.
    """
    before = repo.read_tree(base)
    found = dict(_files(folder, folder, max_file_bytes))
    ids = {path: _blob_id(data) for path, data in found.items()}
    changed = sorted(
        path
        for path in before.keys() | found.keys()
        if path not in before or ids.get(path) != before[path].blob
    )
    for path in changed:
        if not matches(path, editable):
            what = "was added" if path not in before else "was changed"
            what = what if path in found else "was deleted"
            raise BadInput(f"{path!a} {what}, but only {', '.join(editable)} may change")
    if not changed:
        return ReadBack(_tree_of(repo, base), ())
    written = [path for path in changed if path in found]
    blobs = dict(zip(written, repo.write_blobs([found[p] for p in written]), strict=True))
    changes = {
        path: Entry(before[path].mode if path in before else FILE, blobs[path])
        if path in blobs
        else None
        for path in changed
    }
    return ReadBack(repo.write_tree(changes, base), tuple(changed))


def _files(folder: Path, root: Path, max_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Path and content of every file below `folder`; anything but files and folders is refused."""
    try:
        with os.scandir(folder) as scan:
            items = sorted(scan, key=lambda item: item.name)
        for item in items:
            path = Path(item.path)
            name = path.relative_to(root).as_posix()
            if item.name.lower() == ".git":
                raise BadInput(f"{name!a} is git's: a workspace is plain files")
            mode = item.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                if name.count("/") > _DEEPEST:
                    raise BadInput(f"{name[:80]!a}… is nested too deep")
                if item.name != _CACHES:
                    yield from _files(path, root, max_bytes)
            elif stat.S_ISREG(mode):
                yield name, _read_file(path, name, max_bytes)
            else:
                raise BadInput(f"{name!a} is a {_kind(mode)}: a workspace is plain files")
    except OSError as error:
        raise BadInput(f"cannot read the workspace {folder}: {error}") from None


def _read_file(path: Path, name: str, max_bytes: int) -> bytes:
    """A file's bytes; what is opened is checked again, so a swapped-in link does not count."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise BadInput(f"{name!a} is not a regular file: a workspace is plain files")
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BadInput(f"{name!a} is larger than the {max_bytes} bytes a file may have")
    return data


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def _blob_id(data: bytes) -> str:
    """The id git gives these bytes (SHA-1 is git's object format here, not a safeguard)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _tree_of(repo: Repo, rev: str) -> str:
    tree = repo.rev_parse(rev, "tree")
    if tree is None:
        raise BadInput(f"{repo.path} has no tree {rev}")
    return tree


def _check_entry(path: str, entry: Entry) -> None:
    """A tree fetched from elsewhere may hold paths that git itself would never have added."""
    odd = {"", ".", ".."}.intersection(path.split("/"))
    if odd or any(part.lower() == ".git" for part in path.split("/")):
        raise BadInput(f"the tree holds {path!a}, which is not a path of a plain file")
    if entry.mode not in ("100644", "100755"):
        raise BadInput(f"the tree holds {path!a}, which is a link or a submodule, not a file")
