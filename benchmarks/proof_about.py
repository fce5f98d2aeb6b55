"""What a part of the proof ran on: GPU, versions, sources. In every JSON, and on the page."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from proof_parts import Data, grid

from avo_cute.build.toolchain import toolchain
from avo_cute.gpu import find_gpus
from avo_cute.measure.devices import find_devices

ROOT = Path(__file__).resolve().parent.parent
# What decides about the figures; what only shows them (proof_page, proof_parts) is left out.
MEASURING = (
    "engine/avo_cute",
    "seeds",
    "tests/redteam/gpu",
    *(f"benchmarks/proof{name}.py" for name in ("", "_ground", "_timing", "_redteam", "_run")),
)
SUFFIXES = {".py", ".toml"}


@cache
def about() -> Mapping[str, str]:
    """The surroundings of this process; empty strings for what it cannot know."""
    gpu = next(iter(find_devices()), None)
    driver = next((g.driver for g in find_gpus()), "")
    return {
        "gpu": gpu.uuid if gpu else "",
        "device": gpu.model if gpu else "",
        "driver": driver,
        "torch": _version("torch"),
        "toolchain": toolchain(),
        "sources": sources(ROOT),
        "commit": commit(ROOT),
    }


def sources(root: Path) -> str:
    """One hash of every file that decides about the figures: the same in every copy."""
    digest = sha256()
    for path in sorted(_files(root), key=lambda p: p.relative_to(root).as_posix()):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _files(root: Path) -> Iterable[Path]:
    for name in MEASURING:
        path = root / name
        found = path.rglob("*") if path.is_dir() else [path]
        yield from (p for p in found if p.suffix in SUFFIXES and p.is_file())


def commit(root: Path) -> str:
    """The commit of a checkout whose measuring files are as committed; else ""."""
    top = _git(root, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != root.resolve():
        return ""
    changed = _git(root, "status", "--porcelain", "--", *MEASURING)
    return "" if changed is None or changed else (_git(root, "rev-parse", "HEAD") or "")


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# On the page.


def facts_of(data: Data) -> dict[str, str]:
    """What a part says of its surroundings; first its measuring processes, which were there."""
    raws = [
        *(data.get("processes") or []),
        *(data.get("raw") or {}).values(),
        *(d["raw"] for d in data.get("delays") or [] if d.get("raw")),
    ]
    seen: Mapping[str, Any] = next((r["facts"] for r in raws), {})
    devices = [a["device"] for a in data.get("attempts") or [] if a.get("device")]
    found = {key: str(seen.get(key) or data.get(key) or "") for key in KEYS}
    found["device"] = found["device"] or next(iter(devices), "")
    return found


KEYS = ("device", "gpu", "driver", "torch", "toolchain", "sources", "commit")


def setting(found: Mapping[str, Data], root: Path = ROOT) -> list[str]:
    """Date, GPU, versions and commit of every part, and what they have in common."""
    facts = {part: facts_of(data) for part, data in found.items()}
    here = {"sources": sources(root), "commit": commit(root)}
    rows = [
        (part, str(found[part].get("when", "")) or "–", f["device"] or "–",
         f["gpu"][:12] or "–", f["driver"] or "–", f["torch"] or "–", _commit(f, here))
        for part, f in facts.items()
    ]  # fmt: skip
    chains = sorted({f["toolchain"] for f in facts.values()} - {""})
    return [
        _machines(facts),
        "",
        *grid(("part", "when (UTC)", "GPU", "its UUID", "driver", "torch", "commit"), rows),
        "",
        f"Toolchain: {'; '.join(chains) or 'not recorded'}.",
    ]


def _commit(facts: Mapping[str, str], here: Mapping[str, str]) -> str:
    """A copy without git is known by its files, if they are those of this checkout."""
    known = facts["commit"]
    if not known and facts["sources"] and facts["sources"] == here["sources"]:
        known = here["commit"]
    if known:
        return known[:12]
    return f"files {facts['sources'][:12]}" if facts["sources"] else "not recorded"


def _machines(facts: Mapping[str, Mapping[str, str]]) -> str:
    unknown = [part for part, f in facts.items() if not f["gpu"]]
    gpus = {f["gpu"] for f in facts.values()} - {""}
    if unknown:
        return f"Not recorded is which GPU ran {', '.join(unknown)}: it may not have been the same."
    if len(gpus) == 1:
        return "One GPU ran all of it."
    return f"{len(gpus)} GPUs of the model ran it: figures of different parts are not of one GPU."
