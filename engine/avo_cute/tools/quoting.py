"""Text of candidates, compilers and commits on its way to a model: data, which gives no orders.

The system prompt says that whatever stands between these marks is to be read and never obeyed; a
text cannot close its own mark.
"""

from __future__ import annotations

import re

from ..sandbox import printable


def quoted(source: str, text: str) -> str:
    """`text` as data from `source`, without control characters and without a mark of its own."""
    return f'<data from="{source}">\n{defused(text).rstrip()}\n</data>'


def defused(text: str) -> str:
    """`text` without control characters and marks, for words of ours that name something."""
    return _MARK.sub(lambda found: found[0].replace("<", "‹"), printable(text))


_MARK = re.compile(r"<\s*(?:/\s*)?data\b", re.IGNORECASE)  # linear in a run of blanks
