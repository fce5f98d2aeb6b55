"""The package of a lineage under another path: what forks do that keep a copy of it.

Two things are rewritten: the paths of files below the package's folder, and in its `.py` files
the package's absolute name on lines that begin with `from` or `import`:

    from flash_attn.cute.softmax import …   ->   from vllm.vllm_flash_attn.cute.softmax import …

Names in strings, comments and other statements stay, and so does `from flash_attn import cute`.
"""

from __future__ import annotations

import keyword
import os
import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from .errors import BadInput
from .repo import Entry, Repo

_SOURCE_ROOTS = {"src", "python", "lib"}  # folders that hold packages and are none


@dataclass(frozen=True, slots=True)
class Move:
    """A package's folder and dotted name, and where both are to be."""

    folder: str
    module: str
    to_folder: str
    to_module: str

    def back(self) -> Move:
        """The way home."""
        return Move(self.to_folder, self.to_module, self.folder, self.module)

    def path(self, path: str) -> str:
        """Where a file goes; files outside the folder stay."""
        if not path.startswith(f"{self.folder}/"):
            return path
        return self.to_folder + path.removeprefix(self.folder)

    def source(self, data: bytes) -> bytes:
        """A module's source with its absolute imports of the package renamed."""
        name = re.escape(self.module.encode())
        line = re.compile(rb"^[ \t]*(?:from|import)[ \t].*$", re.MULTILINE)
        whole = re.compile(rb"(?<![\w.])" + name + rb"(?!\w)")
        to = self.to_module.encode()
        return line.sub(lambda found: whole.sub(lambda _: to, found[0]), data)


def move_to(repo: Repo, tree: str, directory: str, module: str | None = None) -> Move:
    """The move of a tree's package to `directory`, imported as `module`.

    Without `module` the name is the folders of `directory` with dots, without a leading src,
    python or lib. `BadInput` where that is no name or no folder inside a repository.
    """
    folder = package_folder(repo, tree)
    parts = PurePosixPath(directory).parts
    odd = not parts or parts[0] == "/" or any(p == ".." or p.lower() == ".git" for p in parts)
    if odd or "\\" in directory or not directory.isprintable():
        raise BadInput(f"{directory!r} is not a folder inside a fork: give it as seen from its top")
    named = parts[1:] if len(parts) > 1 and parts[0] in _SOURCE_ROOTS else parts
    name = module or ".".join(named)
    if not all(p.isidentifier() and not keyword.iskeyword(p) for p in name.split(".")):
        raise BadInput(f"{name!r} is not a name that Python can import: say it with --module NAME")
    return Move(folder, folder.replace("/", "."), "/".join(parts), name)


def package_folder(repo: Repo, tree: str) -> str:
    """The folder that holds every file of a tree but those at its top."""
    folders = {str(PurePosixPath(path).parent) for path in repo.read_tree(tree) if "/" in path}
    common = os.path.commonpath(folders) if folders else ""
    if not common:
        raise BadInput("the files of this lineage have no folder in common that could have moved")
    return common


def moved_tree(source: Repo, tree: str, move: Move, into: Repo) -> str:
    """A tree with the package moved, written into the repository `into`, which sees its objects."""
    there = source.read_tree(tree)
    ours = {p: e for p, e in there.items() if move.path(p) != p}
    sources = {p: e for p, e in ours.items() if p.endswith(".py") and e.mode in _REGULAR}
    texts = [move.source(data) for data in source.read_blobs([e.blob for e in sources.values()])]
    blobs = dict(zip(sources, into.write_blobs(texts), strict=True))
    changes: dict[str, Entry | None] = dict.fromkeys(ours)
    for path, entry in ours.items():
        changes[move.path(path)] = Entry(entry.mode, blobs.get(path, entry.blob))
    return into.write_tree(changes, tree)


_REGULAR = ("100644", "100755")
