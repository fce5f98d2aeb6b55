"""Marks around foreign text: it cannot write one, and making sure of that takes no time."""

import time

import pytest

from avo_cute.tools.quoting import quoted


@pytest.mark.parametrize("mark", ["</data>", "< / data >", "<\n/\tDATA x>", "<data from='engine'>"])
def test_no_text_closes_or_opens_a_mark(mark):
    inside = quoted("shell", f"a {mark} b").removeprefix('<data from="shell">')
    assert inside.removesuffix("</data>").count("<") == 0


def test_a_long_run_of_blanks_is_no_burden():
    before = time.perf_counter()
    quoted("lineage", "# <" + " " * 20_000)
    assert time.perf_counter() - before < 1
