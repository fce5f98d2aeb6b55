"""Text out of files: what is shown, and one line for what has none."""

import io

import pytest
from pypdf import PdfReader, PdfWriter

from avo_cute.errors import BadInput
from avo_cute.knowledge import extract
from avo_cute.knowledge.extract import text_of

from .conftest import pdf

PAGE = b"""<!doctype html><html><head><title>Tensor &amp; memory</title>
<style>p { color: red }</style><script>alert("<p>stolen</p>")</script></head>
<body><h2>Columns</h2><p>512 columns<br>of 32&nbsp;bits</p>
<pre>a = 1
  b = 2</pre><svg><text>drawn</text></svg><ul><li>one<li>two</ul>
<!-- hidden --><p onclick="steal()">The end</body></html>"""


def encrypted(password):
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf("secret"))))
    writer.encrypt(user_password=password, owner_password="owner")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_markdown_stays_as_it_is():
    assert text_of("a.md", b"# One\r\n\r\n* two\r\n") == "# One\n\n* two\n"


def test_a_page_is_what_it_shows():
    text = text_of("a.html", PAGE)
    assert "# Tensor & memory" in text and "## Columns" in text
    assert "512 columns\nof 32 bits" in text.replace("\xa0", " ")
    assert "a = 1\n  b = 2" in text
    assert "one\n" in text and "The end" in text
    for word in ("color", "alert", "stolen", "drawn", "hidden", "steal"):
        assert word not in text


@pytest.mark.parametrize(
    "data", [b"<script>never closed <p>text", b"<p>" * 100_000, b"<!-- ", b"<p></p>"]
)
def test_a_page_that_shows_nothing_is_refused(data):
    with pytest.raises(BadInput, match=r"^a.html holds no text$"):
        text_of("a.html", data)


def test_broken_markup_is_no_error():
    text = text_of("a.html", b"<p <b>x</p></i></script><div>&#xZZ; &bogus; &#9999999999; after")
    assert "after" in text


def test_a_pdf_is_its_pages():
    text = text_of("paper.pdf", pdf("first page", "lazy rescaling"))
    assert "## page 1\n\nfirst page" in text and "## page 2\n\nlazy rescaling" in text
    assert text_of("no ending", pdf("told by its first bytes")).count("told by") == 1


def test_an_encrypted_pdf_is_refused_and_one_that_everybody_may_read_is_not():
    with pytest.raises(BadInput, match=r"^paper.pdf is encrypted: add a copy without a password$"):
        text_of("paper.pdf", encrypted("user"))
    assert "secret" in text_of("paper.pdf", encrypted(""))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"%PDF-1.4\n",
        b"%PDF-1.7 nothing else",
        b"not a pdf at all",
        pdf("x")[:200],
        pdf("x").replace(b"/Count 1", b"/Count -5").replace(b"/Kids [4 0 R]", b"/Kids 4 0 R"),
        pdf("x").replace(b"/Kids [4 0 R]", b"/Kids [2 0 R]"),
        pdf("x").replace(b"/Type /Pages", b"/Type 17 0 R"),
        b"%PDF-1.4\n" + bytes(range(256)) * 50,
    ],
    ids=range(9),
)
def test_a_broken_pdf_is_refused_in_one_line(data, capfd):
    with pytest.raises(BadInput, match=r"^paper.pdf (is no PDF that can be read|holds no text)"):
        text_of("paper.pdf", data)
    assert capfd.readouterr() == ("", "")


def test_a_pdf_without_text_says_what_it_may_be():
    with pytest.raises(BadInput, match="pictures, perhaps"):
        text_of("scan.pdf", pdf("", ""))


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01\0\0", b"GIF89a\x01\x00\x01\x00", b"a\0b"])
@pytest.mark.parametrize("name", ["kernel.cubin", "renamed.md", "page.html"])
def test_binary_is_refused(name, data):
    with pytest.raises(BadInput, match=f"^{name} is binary"):
        text_of(name, data)


def test_other_encodings_are_read():
    assert text_of("a.txt", "Größe".encode("utf-16")) == "Größe\n"
    assert text_of("a.txt", "Größe".encode("cp1252")) == "Größe\n"
    assert text_of("a.txt", b"\xef\xbb\xbfGr\xc3\xb6\xc3\x9fe") == "Größe\n"


def test_escape_sequences_do_not_reach_a_terminal():
    text = text_of("a.txt", b"red \x1b[31m and \x9b31m \xe2\x80\xae turned")
    assert "\x1b" not in text and "\x9b" not in text and "\u202e" not in text and "red" in text


@pytest.mark.parametrize("data", [b"", b" \n\t", b"***\n---\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(data):
    with pytest.raises(BadInput, match=r"^a.md holds no text$"):
        text_of("a.md", data)


def test_too_much_text_is_refused():
    with pytest.raises(BadInput, match="are allowed"):
        text_of("a.txt", b"word " * (extract.MOST_TEXT // 5 + 10))
