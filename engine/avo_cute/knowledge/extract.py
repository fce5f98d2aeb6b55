"""The text in a document: Markdown and plain text as they are, HTML and PDF without their form.

Headings come out as Markdown's, so that all kinds are cut into passages alike. `BadInput` in one
line for what has no text in it: binary, encrypted, broken or empty files.
"""

from __future__ import annotations

import codecs
import logging
import re
import struct
import zlib
from html.parser import HTMLParser
from io import BytesIO
from time import monotonic

from ..errors import BadInput
from .piece import plain

MOST_TEXT = 5_000_000  # characters that a document may have
MOST_PAGES = 3000
MOST_SECONDS = 60.0  # for the pages of a PDF
PLAIN, MARKUP, PDF = (".md", ".markdown", ".txt", ".rst"), (".html", ".htm", ".xhtml"), (".pdf",)
KNOWN = (*PLAIN, *MARKUP, *PDF)


def text_of(name: str, data: bytes) -> str:
    """The text of the file `name`, told by its ending and its first bytes."""
    if data.startswith(b"%PDF-") or name.lower().endswith(PDF):
        text = _pdf(name, data)
    else:
        text = _decoded(name, data)
        if name.lower().endswith(MARKUP):
            text = _html(text)
    text = plain(text.replace("\r\n", "\n").replace("\r", "\n")).strip()
    if not re.search(r"[^\W_]", re.sub(r"(?m)^## page [0-9]+$", "", text)):
        raise BadInput(f"{name} holds no text{_SCANNED if data.startswith(b'%PDF-') else ''}")
    if len(text) > MOST_TEXT:
        raise BadInput(f"{name} holds {len(text):,} characters of text; {MOST_TEXT:,} are allowed")
    return text + "\n"


def _decoded(name: str, data: bytes) -> str:
    """UTF-8, UTF-16 with its mark, else Windows-1252; control characters mean binary."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", "replace")
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("cp1252", "replace")
    if _BINARY.search(text):
        raise BadInput(f"{name} is binary: Markdown, text, HTML and PDF can be added")
    return text


def _html(text: str) -> str:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    lines = (line.rstrip() for line in "".join(reader.found).splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


class _Reader(HTMLParser):
    """What a page shows: no scripts, no styles; headings marked, code kept as it stands."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._hidden: list[str] = []
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag == "pre":
            self._code += 1
            self.found.append("\n```\n")
        elif tag in _HEADINGS:
            self.found.append(f"\n\n{'#' * _HEADINGS[tag]} ")
        elif tag in _BLOCKS:
            self.found.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag == "pre" and self._code:
            self._code -= 1
            self.found.append("\n```\n")
        elif tag in _HEADINGS or tag in _BLOCKS:
            self.found.append("\n")

    def handle_data(self, data: str) -> None:
        if self._hidden:
            return
        self.found.append(data if self._code else re.sub(r"\s+", " ", data))


def _pdf(name: str, data: bytes) -> str:
    """The text of every page, each below a heading with its number."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError, PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns about every odd file
    end = monotonic() + MOST_SECONDS
    pages: list[str] = []
    try:
        reader = PdfReader(BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise BadInput(f"{name} is encrypted: add a copy without a password")
        count = len(reader.pages)
        if count > MOST_PAGES:
            raise BadInput(f"{name} has {count} pages; {MOST_PAGES} are allowed")
        for number, page in enumerate(reader.pages, 1):
            pages.append(f"## page {number}\n\n{page.extract_text()}\n")
            if monotonic() > end:
                raise BadInput(f"{name} takes more than {MOST_SECONDS:.0f} s to read")
    except (FileNotDecryptedError, DependencyError):
        raise BadInput(f"{name} is encrypted: add a copy without a password") from None
    except (PyPdfError, *_BROKEN) as error:
        said = " ".join(str(error).split())[:120] or type(error).__name__
        raise BadInput(f"{name} is no PDF that can be read: {said}") from None
    return "\n".join(pages)


# What pypdf lets through from files that are not what they claim to be.
_BROKEN = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, OSError,
    RecursionError, MemoryError, NotImplementedError, zlib.error, struct.error,
)  # fmt: skip
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_SCANNED = ": its pages are pictures, perhaps"
_HIDDEN = frozenset(("script", "style", "template", "noscript", "svg", "iframe"))
_HEADINGS = {"title": 1} | {f"h{n}": n for n in range(1, 7)}
_BLOCKS = frozenset(
    "p div br li ul ol dl dt dd tr table section article blockquote figure figcaption hr main "
    "header footer nav aside details summary".split()
)
