"""Calibrations: what machines make of equal kernels, kept in the lineage beside the attempts.

`refs/calibrations/<task>-<how many workloads>/<gpu>` leads to a commit whose tree holds the numbers
and the raw samples; a new calibration has the one before as its parent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from . import trailers
from .repo import ABSENT, FILE, Entry, RefUpdate, Repo

NUMBERS = "calibration.json"


def read_calibration(repo: Repo, group: str, gpu: str) -> str | None:
    """The latest numbers for a GPU, as `Calibration.text` wrote them; None where there are none."""
    commit = repo.rev_parse(_ref(group, gpu))
    if commit is None:
        return None
    entry = repo.read_tree(commit).get(NUMBERS)
    return None if entry is None else repo.read_blobs([entry.blob])[0].decode("utf-8", "replace")


def write_calibration(
    repo: Repo, group: str, gpu: str, files: Mapping[str, bytes], facts: Mapping[str, str]
) -> str:
    """Keep `files`, `NUMBERS` among them; `facts` become trailers. Returns the commit."""
    blobs = repo.write_blobs(list(files.values()))
    entries = {name: Entry(FILE, blob) for name, blob in zip(files, blobs, strict=True)}
    tree = repo.write_tree(entries)
    ref = _ref(group, gpu)
    old = repo.rev_parse(ref)
    message = trailers.compose(f"Calibration of {group} on {gpu}", "", facts)
    commit = repo.commit(tree, [old] if old else [], message, int(time.time()))
    repo.update_refs([RefUpdate(ref, commit, old or ABSENT)], "calibration")
    return commit


def _ref(group: str, gpu: str) -> str:
    names = (re.sub(r"[^A-Za-z0-9-]+", "-", part).strip("-") or "unnamed" for part in (group, gpu))
    return "refs/calibrations/" + "/".join(names)
