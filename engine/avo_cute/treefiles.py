"""The files of a tree as a mapping that reads only what is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .repo import Repo


class TreeFiles(Mapping[str, bytes]):
    """Path -> content of every file of a git tree; contents are read once, on demand."""

    def __init__(self, repo: Repo, tree: str) -> None:
        self._repo, self._entries = repo, repo.read_tree(tree)
        self._read: dict[str, bytes] = {}

    def __getitem__(self, path: str) -> bytes:
        if path not in self._read:
            (self._read[path],) = self._repo.read_blobs([self._entries[path].blob])
        return self._read[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
