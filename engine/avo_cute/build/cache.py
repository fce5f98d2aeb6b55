"""Content-addressed results of builds and analyses; deleting the folder costs only time.

Builds are keyed by everything that decides an object's bytes, analyses by the object's hash and
the code that read it. Entries appear by rename and are checked against their own hashes when read,
so a torn or altered entry is a miss. The sandbox never sees this folder.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from ..errors import MachineFailed

LIMIT_BYTES = 8 << 30  # pruned to this, oldest first, when a run starts


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of results. Safe for several processes at once."""

    root: Path

    def get_build(self, key: str) -> dict[str, Path] | None:
        """Workload name -> object file of the build `key`, or None."""
        folder = self.root / "builds" / key[:2] / key
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            files = {name: folder / file for name, file in manifest["workloads"].items()}
            for path in files.values():
                if sha256(path.read_bytes()).hexdigest() != manifest["sha256"][path.name]:
                    return None
            os.utime(folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return files

    def put_build(self, key: str, objects: Mapping[str, bytes], files: Mapping[str, str]) -> None:
        """Keep a build: `objects` by file name, `files` maps workload name -> file name."""
        manifest = {
            "workloads": dict(files),
            "sha256": {name: sha256(data).hexdigest() for name, data in objects.items()},
        }
        parent = self.root / "builds" / key[:2]
        with _disk(parent), tempfile.TemporaryDirectory(dir=self._made(parent)) as scratch:
            folder = Path(scratch) / key
            folder.mkdir()
            for name, data in objects.items():
                (folder / name).write_bytes(data)
            (folder / "manifest.json").write_text(json.dumps(manifest))
            if (parent / key).exists():  # torn, or the same build finished elsewhere
                (parent / key).rename(Path(scratch) / "old")
            folder.rename(parent / key)

    def get_analysis(self, key: str) -> str | None:
        try:
            text = (self.root / "analyses" / key[:2] / f"{key}.json").read_text()
        except (OSError, UnicodeDecodeError):
            return None
        seal, _, content = text.partition("\n")
        return content if seal == digest(key, content) else None

    def put_analysis(self, key: str, text: str) -> None:
        parent = self.root / "analyses" / key[:2]
        with _disk(parent):
            handle, scratch = tempfile.mkstemp(dir=self._made(parent))
            with os.fdopen(handle, "w") as file:
                file.write(f"{digest(key, text)}\n{text}")
            Path(scratch).rename(parent / f"{key}.json")

    def prune(self, limit_bytes: int = LIMIT_BYTES) -> None:
        """Drop the builds that were used longest ago until the folder fits."""
        folders = [(f.stat().st_mtime, f) for f in self.root.glob("builds/*/*") if f.is_dir()]
        sizes = {f: sum(p.stat().st_size for p in f.iterdir()) for _, f in folders}
        total = sum(sizes.values())
        for _, folder in sorted(folders):
            if total <= limit_bytes:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= sizes[folder]

    @staticmethod
    def _made(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def digest(*parts: str) -> str:
    """One key from several strings, in order and unambiguously."""
    return sha256(json.dumps(parts).encode()).hexdigest()


class _disk:
    """Turns an OSError of the cache's disk into one clear line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise MachineFailed(
                f"cannot write the build cache {self.folder}: {reason}; free space there or "
                "set AVO_CUTE_CACHE to another folder"
            ) from None
