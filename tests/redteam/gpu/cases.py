"""Candidates for an H200 that must not pass: real edits of FlashAttention-4's Hopper forward.

`CASES` end in their `ends` or one of the checks is blind; `HONEST` are as right as the seed. Each
builds for sm_90a and passes the audit, unless it ends in `audit-failed`. The seed's own source is
not here: an edit names its place by a fragment of a line.
"""

from __future__ import annotations

from .edits import MHA, Case, Edit, Misplaced, tree_of
from .faults import HARM, RACES
from .honest import HONEST
from .inexact import INEXACT
from .skipped import SKIPPED

CASES = (*SKIPPED, *INEXACT, *HARM, *RACES)
BY_NAME = {case.name: case for case in (*CASES, *HONEST)}

__all__ = ["BY_NAME", "CASES", "HONEST", "MHA", "Case", "Edit", "Misplaced", "tree_of"]
