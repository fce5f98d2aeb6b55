"""Where avo-cute keeps things and what the environment says."""

from __future__ import annotations

import os
from pathlib import Path

ENV_PREFIX = "AVO_CUTE_"
DEFAULT_LINEAGE = "lineage.git"
DEFAULT_TASK = "fa4"
DEFAULT_TARGET = "b200"


def cache_dir() -> Path:
    """The build cache: `AVO_CUTE_CACHE`, or avo-cute's folder in the user's cache folder."""
    if own := os.environ.get(f"{ENV_PREFIX}CACHE"):
        return Path(own).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "avo-cute"
