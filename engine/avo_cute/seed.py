"""Where a lineage starts: upstream's files, byte for byte, at upstream's own paths.

    seed.toml   package = "…"         the distribution on the package index
                version = "…"
                wheel_sha256 = "…"    of the released wheel, for the record
                files_sha256 = "…"    of the files taken; see `identity`
                files = [{ from = "pkg/**/*.py" }, { from = "*.dist-info/LICENSE", to = "LICENSE" }]

`from` matches paths of the wheel, `to` is the path upstream has it at (the same where left out).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from .errors import BadInput
from .globs import matches
from .repo import Repo
from .tomlfile import read_toml

_REGULAR = ("100644", "100755")


@dataclass(frozen=True, slots=True)
class Seed:
    """The files of a first commit. `upstream` names their source; `subject` is the commit's."""

    files: Mapping[str, bytes]  # by path in the tree
    upstream: str
    subject: str


def from_wheel(seed_toml: Path) -> Seed:
    """The released package that seed.toml names, as installed here, verified file by file.

    `BadInput` names a file that is missing or altered and the command that restores it.
    """
    wanted = read_toml(seed_toml, _SeedFile)
    files = dict(sorted(_installed(wanted)))
    if identity(files) != wanted.files_sha256:
        raise BadInput(
            f"the installed {wanted.package} {wanted.version} does not hold the files it was "
            f"released with: restore it with `{wanted.remedy}`"
        )
    upstream = f"{wanted.package} {wanted.version} {wanted.wheel_sha256}"
    return Seed(files, upstream, f"Import {wanted.package} {wanted.version}")


def from_checkout(seed_toml: Path, path: Path, rev: str | None = None) -> Seed:
    """The same files out of a user's own checkout: at `rev` (HEAD), or as they lie in a folder.

    In a git repository only what is committed counts, so that the seed has upstream's blobs.
    """
    wanted = read_toml(seed_toml, _SeedFile)
    git_dir = path / ".git" if (path / ".git").exists() else path
    if git_dir != path or ((path / "HEAD").is_file() and (path / "objects").is_dir()):
        files, where = _committed(git_dir, rev, wanted)
    elif rev is not None:
        raise BadInput(f"{path} is no git repository, so it has no revision {rev!r}")
    else:
        tree = _walk(path)
        files = {name: data for name, data in tree if matches(name, wanted.tree_paths)}
        where = identity(files)
    if not files:
        raise BadInput(f"{path} holds none of {', '.join(wanted.tree_paths)}")
    name = f"{wanted.package} {path.resolve().name}"
    return Seed(files, f"{name} {where}", f"Import {name} {where[:10]}")


def from_folder(folder: Path) -> Seed:
    """Every file below a folder: the seed of a task that ships its own source."""
    files = dict(_walk(folder))
    if not files:
        raise BadInput(f"{folder} holds no files to start from")
    where = identity(files)
    return Seed(files, f"{folder.parent.name} source {where}", f"Import {folder.parent.name}")


def identity(files: Mapping[str, bytes]) -> str:
    """sha256 over the lines `<path> <sha256 of the file>`, sorted by path."""
    lines = (f"{path} {hashlib.sha256(files[path]).hexdigest()}\n" for path in sorted(files))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(alias="from")
    to: str | None = None


class _SeedFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    package: str
    version: str
    wheel_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    files_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    files: tuple[_Rule, ...] = Field(min_length=1)

    @property
    def remedy(self) -> str:
        return f"pip install --force-reinstall --no-deps {self.package}=={self.version}"

    @property
    def tree_paths(self) -> tuple[str, ...]:
        """What the rules say, as patterns of paths in the tree."""
        return tuple(rule.to or rule.source for rule in self.files)

    def target(self, path: str) -> str | None:
        """Where a file of the wheel goes in the tree, if it is taken at all."""
        for rule in self.files:
            if matches(path, [rule.source]):
                return rule.to or path
        return None


def _installed(wanted: _SeedFile) -> Iterator[tuple[str, bytes]]:
    """Tree path and content of each file of the wheel's RECORD that a rule takes."""
    try:
        package = importlib.metadata.distribution(wanted.package)
    except importlib.metadata.PackageNotFoundError:
        raise BadInput(f"{wanted.package} is not installed: `{wanted.remedy}`") from None
    if package.version != wanted.version:
        raise BadInput(
            f"{wanted.package} {package.version} is installed, this task starts at "
            f"{wanted.version}: `{wanted.remedy}`"
        )
    for file in package.files or ():
        target = wanted.target(file.as_posix())
        if target is not None:
            yield target, _verified(file, wanted.remedy)


def _verified(file: importlib.metadata.PackagePath, remedy: str) -> bytes:
    path = Path(str(file.locate()))
    try:
        data = path.read_bytes()
    except OSError:
        raise BadInput(f"{path} is missing: restore it with `{remedy}`") from None
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    if file.hash is None or (file.hash.mode, file.hash.value) != ("sha256", digest):
        raise BadInput(f"{path} is not as released: restore it with `{remedy}`")
    return data


def _committed(git_dir: Path, rev: str | None, wanted: _SeedFile) -> tuple[dict[str, bytes], str]:
    """The files at a revision of a repository, and the commit it names."""
    repo = Repo.open(git_dir)
    commit = repo.rev_parse(rev or "HEAD")
    if commit is None:
        raise BadInput(f"{git_dir} has no revision {rev or 'HEAD'!r}")
    entries = {p: e for p, e in repo.read_tree(commit).items() if matches(p, wanted.tree_paths)}
    for path, entry in entries.items():
        if entry.mode not in _REGULAR:
            raise BadInput(f"{path} in {git_dir} at {commit[:10]} is not a regular file")
    contents = repo.read_blobs([entry.blob for entry in entries.values()])
    return dict(zip(entries, contents, strict=True)), commit


def _walk(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Regular files below a folder, by their path in it; caches and links are passed over."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not path.is_symlink() and not _IGNORED.intersection(parts):
            yield "/".join(parts), path.read_bytes()


_IGNORED = {"__pycache__", ".git"}
