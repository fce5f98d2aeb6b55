"""`avo-cute knowledge …` as processes."""

import json

from .conftest import pdf


def refused(done):
    """The one line that says why."""
    said = [line for line in done.stderr.splitlines() if not line.startswith("…")]
    assert len(said) == 1 and said[0].startswith("avo-cute: "), said
    return said[0]


def test_search_works_without_a_lineage(avo):
    done = avo("knowledge", "search", "exponential", "throughput")
    assert "[notes:blackwell#" in done.stdout
    assert done.stderr.startswith("… no seed and no documents")
    found = json.loads(avo("knowledge", "search", "setmaxnreg", "--json").stdout)
    assert {"id", "source", "title", "text"} == set(found[0])
    assert any(p["id"].endswith("setmaxregister_increase") for p in found)


def test_the_target_chooses_the_gpus(avo):
    words = ("knowledge", "search", "units and rates per SM", "--json")
    first = lambda *more: json.loads(avo(*words, *more).stdout)[0]["id"]  # noqa: E731
    assert first("--target", "h200") == "notes:hopper#units-and-rates-per-sm"
    assert first("--target", "b200") == first() == "notes:blackwell#units-and-rates-per-sm"
    assert "unknown target 'x'" in refused(avo(*words, "--target", "x", code=1))


def test_read_prints_a_passage_whole(avo):
    text = avo("knowledge", "read", "notes:blackwell#tensor-memory-tmem").stdout
    assert text.startswith("Blackwell") and "128 lanes" in text
    assert "no passage 'x'" in refused(avo("knowledge", "read", "x", code=1))


def test_nothing_found_is_exit_1(avo):
    assert "use other words" in refused(avo("knowledge", "search", "zyzzyva", code=1))
    done = avo("knowledge", "search", "zyzzyva", "--json", code=1)
    assert json.loads(done.stdout) == []


def test_usage_is_exit_2(avo):
    avo("knowledge", "search", code=2)
    avo("knowledge", "add", code=2)
    avo("knowledge", "nothing", code=2)
    avo("knowledge", "add", "not-there.md", code=2)


def test_documents_need_a_lineage(avo, tmp_path):
    (tmp_path / "a.md").write_text("text")
    for words in (("add", "a.md"), ("list",), ("remove", "a.md")):
        assert "`avo-cute init`" in refused(avo("knowledge", *words, code=1))
    assert not (tmp_path / "lineage.git").exists()


def test_from_add_to_remove(avo, lineage, tmp_path):
    (tmp_path / "paper.pdf").write_bytes(pdf("quadrature of the zyzzyva"))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.html").write_text("<h1>Title</h1><p>second document")
    (tmp_path / "more" / "c.bin").write_bytes(b"\0")
    done = avo("knowledge", "add", "paper.pdf", "more")
    assert done.stdout == "added: paper.pdf\nadded: more/b.html\n"
    assert "… skipped: 1 of other kinds" in done.stderr
    listed = json.loads(avo("knowledge", "list", "--json").stdout)
    assert [d["name"] for d in listed] == ["more/b.html", "paper.pdf"]
    assert "paper.pdf" in avo("knowledge", "list").stdout
    done = avo("knowledge", "search", "zyzzyva")  # the task is the one that the lineage has
    assert "[documents:paper.pdf#1] paper.pdf: page 1" in done.stdout and done.stderr == ""
    assert avo("knowledge", "add", "paper.pdf").stdout == "unchanged: paper.pdf\n"
    assert avo("knowledge", "remove", "paper.pdf").stdout == "removed: paper.pdf\n"
    assert "no document 'paper.pdf'" in refused(avo("knowledge", "remove", "paper.pdf", code=1))


def test_a_refused_document_is_one_line(avo, lineage, tmp_path):
    (tmp_path / "a.md").write_bytes(b"\0\1")
    assert refused(avo("knowledge", "add", "a.md", code=1)).endswith(
        "a.md is binary: Markdown, text, HTML and PDF can be added"
    )
