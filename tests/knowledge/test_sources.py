"""The seed by function, the DSL's documentation without importing it, and our notes."""

import json
import subprocess
import sys
from pathlib import Path

import avo_cute
from avo_cute.knowledge import dsl, open_base, shipped, source
from avo_cute.knowledge.piece import Piece, names, parts, unique
from avo_cute.knowledge.sections import LENGTH, sections

ENGINE = Path(avo_cute.__file__).parent.parent
CODE = b'''"""About it."""
import os

TABLE = {"a": 1}


@decorated
def first(x):
    """Doc."""
    def inner():
        return x
    return inner


class Outer:
    """A class."""
    field: int = 3

    def method(self):
        return 1

    class Nested:
        def deep(self):
            return 2


if True:
    def guarded():
        return 3
'''


def seeds(code, path="pkg/a.py", family="sm100"):
    return {p.id.removeprefix("seed:"): p for p in source.pieces({path: code}, family)}


def test_functions_classes_and_modules_are_passages():
    found = seeds(CODE)
    assert set(found) == {
        "pkg/a.py",
        "pkg/a.py::first",
        "pkg/a.py::Outer",
        "pkg/a.py::Outer.method",
        "pkg/a.py::Outer.Nested",
        "pkg/a.py::Outer.Nested.deep",
        "pkg/a.py::guarded",
    }
    first = found["pkg/a.py::first"]
    assert first.title == "first, lines 7-12 of pkg/a.py"
    assert first.text.startswith("@decorated\ndef first") and first.text.endswith("return inner")
    assert "field: int = 3" in found["pkg/a.py::Outer"].text
    assert "return 1" not in found["pkg/a.py::Outer"].text
    assert "# line 19: method" in found["pkg/a.py::Outer"].text
    rest = found["pkg/a.py"].text
    assert 'TABLE = {"a": 1}' in rest and "def first" not in rest


def test_what_is_no_python_is_one_passage():
    for code in (b"def (", b"x = 1\0", b"(" * 50_000):
        found = seeds(code)
        assert list(found) == ["pkg/a.py"]
        assert found["pkg/a.py"].title == "pkg/a.py, no Python"


def test_files_for_other_gpus_weigh_less():
    weights = {
        name: seeds(CODE, f"pkg/{name}", "sm100")[f"pkg/{name}"].weight
        for name in ("flash_fwd_sm100.py", "flash_fwd_sm90.py", "softmax.py")
    }
    assert weights["flash_fwd_sm90.py"] < weights["flash_fwd_sm100.py"] == weights["softmax.py"]


def test_the_softmax_tasks_source_is_found(lineage):
    base = open_base(lineage, "softmax", "sm100")
    assert any(p.source == "seed" for p in base.search("row softmax kernel")[:5])
    assert base.missing == ()


def test_ids_are_short_and_unique():
    pieces = [Piece("a" * 300, "seed", "", ""), Piece("a" * 300, "seed", "", "")]
    pieces += [Piece("b", "seed", "", ""), Piece("b", "seed", "", "")]
    ids = [piece.id for piece in unique(pieces)]
    assert len(set(ids)) == 4 and max(map(len, ids)) <= 100
    assert ids == [piece.id for piece in unique(pieces)]


def test_identifiers_come_apart():
    assert parts("FlashAttentionForwardSm100") == ["Flash", "Attention", "Forward", "Sm100"]
    assert parts("tcgen05.mma") == ["tcgen05", "mma"]
    assert parts("TMEMLoad_x2") == ["TMEM", "Load", "x2"]
    assert names("", "PipelineTmaUmma is one").split() == ["Pipeline", "Tma", "Umma"]


def test_the_dsl_is_read_and_not_imported(cache, tmp_path):
    code = (
        "import sys, json\n"
        "from avo_cute.knowledge import open_base\n"
        "base = open_base(None, 'fa4', 'sm100')\n"
        "print(json.dumps([base.counts(), 'cutlass' in sys.modules, base.missing]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    counts, imported, missing = json.loads(done.stdout)
    assert counts["dsl"] > 1000 and not imported
    assert set(counts) == {"dsl", "notes", "catalogue"}
    assert len(missing) == 1 and "avo-cute init" in missing[0]


def test_a_signature_and_its_docstring_are_a_passage():
    found = {p.id: p for p in dsl.pieces(dsl.installed())}
    piece = found["dsl:cutlass.cute.arch.mbar.mbarrier_wait"]
    assert piece.text.startswith("def mbarrier_wait(mbar_ptr")
    assert "\n\nWaits" in piece.text
    assert not any("._" in p.id.partition(".__init__")[0] for p in found.values())
    assert not any("cutlass._mlir" in id for id in found)


def test_only_what_is_public_and_examples_whole(tmp_path):
    package = tmp_path / "cutlass"
    for name, text in {
        "__init__.py": '"""Short."""\n',
        "ops.py": "def shown(a, *, b=1) -> int:\n    'Adds.'\n\ndef _hidden():\n    'No.'\n",
        "_inner/x.py": "def never():\n    '''No.'''\n",
        "examples/gemm.py": "def main():\n    return 1\n",
        "broken.py": "def (",
    }.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {p.id: p.text for p in dsl.pieces(dsl.Installed("1", package))}
    assert set(found) == {"dsl:cutlass.ops.shown", "dsl:cutlass.examples.gemm"}
    assert found["dsl:cutlass.ops.shown"] == "def shown(a, *, b=1) -> int\n\nAdds."
    assert "return 1" in found["dsl:cutlass.examples.gemm"]


def test_without_the_dsl_it_says_so(cache, tmp_path):
    """A machine without the package: everything else of this environment, linked."""
    import click

    site = Path(click.__file__).parent.parent
    for path in site.iterdir():
        if not path.name.startswith("nvidia_cutlass") and path.suffix != ".pth":
            (tmp_path / path.name).symlink_to(path)
    code = (
        f"import sys; sys.path[:0] = [{str(ENGINE)!r}, {str(tmp_path)!r}]\n"
        "from avo_cute.knowledge import open_base\n"
        "base = open_base(None, 'fa4', 'sm100')\n"
        "print(sorted(base.counts()), base.missing[1], base.search('TMEM size')[0].id)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "['catalogue', 'notes'] no documentation of the CuTe DSL: nvidia-cutlass-dsl is not "
        "installed notes:blackwell#tensor-memory-tmem"
    )


def test_every_note_names_its_sources_and_fits_an_answer():
    found = list(shipped.notes("sm100"))
    assert len(found) > 30
    for piece in found:
        assert "ource" in piece.text or "comput" in piece.text, piece.id
        assert len(piece.text) < 4500 and len(piece.text) > 100, piece.id
    assert len({piece.id for piece in found}) == len(found)


def test_sections_are_cut_at_headings_and_between_paragraphs():
    text = "intro\n# One\nfirst\n```\n# no heading\n```\n## Two #\n" + "word word.\n\n" * 800
    found = list(sections(text))
    assert [s.heading for s in found[:3]] == ["", "One", "Two"]
    assert "# no heading" in found[1].text
    assert all(len(s.text) <= LENGTH * 4 // 3 for s in found)
    assert sum(s.text.count("word") for s in found) == 1600


def test_a_line_without_an_end_is_cut_as_well():
    assert [len(s.text) for s in sections("x" * 7000)] == [3000, 4000]
    assert list(sections("")) == list(sections(" \n \n")) == []
