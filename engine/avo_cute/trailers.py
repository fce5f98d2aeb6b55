"""Commit messages whose trailers git reads back exactly, whatever the text around them says.

Subject and body are written by a model and are untrusted. git finds trailers by shape alone: a
line `---` or a scissors line hides the block behind it, a last paragraph `Score: 99` joins it, and
`git am` cuts a message at anything that looks like the start of a diff. `compose` defuses those
lines by one space in front, so the text stays readable and the only trailers are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SUBJECT_LENGTH = 72


def compose(subject: str, body: str, trailers: Mapping[str, str]) -> str:
    """The message of a commit: subject, body, and a last paragraph that holds exactly `trailers`.

    A trailer whose value is empty is left out. ValueError for a key that git would not read
    (letters, digits and `-` only), that `git am` takes for a diff, or that differs from another
    in case only.
    """
    parts = [_clean_subject(subject), clean_body(body), _block(trailers)]
    return "\n\n".join(part for part in parts if part) + "\n"


def parse(message: str) -> tuple[str, str, dict[str, str]]:
    """Subject, body and trailers of any message; never raises.

    Of a trailer given twice the last counts. A message without trailers gives an empty mapping.
    """
    subject, _, rest = message.lstrip("\n").partition("\n")
    rest = rest.strip("\n")
    head, _, last = rest.rpartition("\n\n")
    found = _read_block(last)
    return (subject, rest, {}) if found is None else (subject, head.rstrip("\n"), found)


def clean_body(body: str) -> str:
    """A body as `compose` keeps it; cleaning it again changes nothing."""
    text = _CONTROL.sub("", body.replace("\r\n", "\n").replace("\r", "\n"))
    lines = (line.rstrip() for line in text.split("\n"))
    return "\n".join(f" {line}" if _DANGEROUS.match(line) else line for line in lines).strip("\n")


_KEY = re.compile(r"[A-Za-z0-9-]+")
_NOT_A_KEY = {"index", "from", "date", "subject"}  # git am reads these as a diff or as headers
_TRAILER = re.compile(r"^([A-Za-z0-9-]+)[ \t]*:[ \t]*(.*)$", re.MULTILINE)

# Controls, surrogates, line separators and bidirectional overrides: none is text, all can deceive.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_SCISSORS = "------------------------ >8 ------------------------"
_DANGEROUS = re.compile(
    r"---|diff -|Index: |From |\(cherry picked from commit |[A-Za-z0-9-]+[ \t]*:"
    rf"|\S.*{_SCISSORS}$"
)


def _clean_subject(subject: str) -> str:
    text = _single_line(subject)
    text = re.sub("-{4,}", "---", text)  # no scissors
    if text.startswith(("---", "#")):
        text = text.lstrip("-# ")
    if len(text) > SUBJECT_LENGTH:
        text = text[: SUBJECT_LENGTH - 1].rstrip() + "…"
    return text or "(no subject)"


def _block(trailers: Mapping[str, str]) -> str:
    lines, seen = [], set(_NOT_A_KEY)
    for key, value in trailers.items():
        if not _KEY.fullmatch(key) or key.lower() in seen or key.startswith("---"):
            raise ValueError(f"not usable as a trailer's key: {key!r}")
        seen.add(key.lower())
        if clean := _single_line(value):
            lines.append(f"{key}: {clean}")
    return "\n".join(lines)


def _single_line(text: str) -> str:
    """Words of `text` on one line. str.split takes every kind of white space for a separator."""
    return " ".join(_CONTROL.sub(" ", text).split())


def _read_block(paragraph: str) -> dict[str, str] | None:
    """The trailers of a paragraph that is nothing but trailers, else None."""
    pairs = _TRAILER.findall(paragraph)
    if not pairs:
        return None
    if len(pairs) != paragraph.count("\n") + 1:  # the common case is one a line
        pairs = _unfold(paragraph)
    return {key: value.strip() for key, value in pairs} or None


def _unfold(paragraph: str) -> list[tuple[str, str]]:
    """Trailers with continuation lines joined, and what `cherry-pick -x` adds passed over."""
    pairs: list[tuple[str, str]] = []
    for line in paragraph.split("\n"):
        found = _TRAILER.fullmatch(line)
        if found:
            pairs.append((found[1], found[2]))
        elif line[:1].isspace() and pairs:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]} {line.strip()}")
        elif not line.startswith("(cherry picked from commit "):
            return []
    return pairs
