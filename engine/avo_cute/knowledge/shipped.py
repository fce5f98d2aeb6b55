"""What comes with avo-cute: our notes on hardware, DSL and FA4, and the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from hashlib import sha256
from pathlib import Path

from ..catalogue import Direction, directions
from .piece import CATALOGUE, NOTES, Piece
from .sections import sections

_FAMILY_OF = {"hopper": "sm90", "blackwell": "sm100"}  # notes on one family of GPUs
_OTHER = 0.7  # their weight for another one


def notes(family: str) -> Iterator[Piece]:
    """A passage for each section of `notes/*.md`; those about other GPUs weigh less."""
    for name, text in _files().items():
        about = _FAMILY_OF.get(name, family)
        title, _, body = text.partition("\n")
        for section in sections(body):
            heading = section.heading or "about"
            full = f"{title.lstrip('# ')}: {heading}"
            weight = 1.0 if about == family else _OTHER
            yield Piece(f"{NOTES}:{name}#{_slug(heading)}", NOTES, full, section.text, weight)


def catalogue(family: str) -> Iterator[Piece]:
    """A passage for each direction that is one for this family."""
    for direction in directions(family):
        yield Piece(f"{CATALOGUE}:{direction.name}", CATALOGUE, direction.title, _told(direction))


def identity() -> str:
    """Changes with the notes and with the catalogue."""
    told = [*_files().items(), *(d for f in ("sm90", "sm100") for d in directions(f))]
    return sha256(repr(told).encode()).hexdigest()


def _told(direction: Direction) -> str:
    named = [f.name for f in fields(direction) if f.name not in ("name", "title", "families")]
    lines = [f"{name}: {getattr(direction, name)}" for name in named]
    return "\n".join([f"name: {direction.name}", *lines])


@cache
def _files() -> dict[str, str]:
    folder = Path(__file__).with_name("notes")
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.md"))}


def _slug(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
