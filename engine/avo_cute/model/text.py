"""Text as the API takes it: UTF-8, and never empty."""

from __future__ import annotations


def sendable(text: str) -> str:
    """The text, with what has no UTF-8 replaced; blank text, which is refused, gets a word."""
    return well_formed(text) if text.strip() else "(nothing)"


def well_formed(text: str) -> str:
    """Halves of surrogate pairs joined where they meet, and replaced where they do not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
