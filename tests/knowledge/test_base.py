"""Search and read: any text is a query, no source crowds out the others, passages are whole."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from avo_cute.errors import BadInput
from avo_cute.knowledge import open_base
from avo_cute.knowledge.base import MOST, _Hit, _mixed
from avo_cute.knowledge.query import MOST_TERMS, expression
from avo_cute.tools.study import Study

HOSTILE = [
    '"',
    '""" OR "',
    "softmax AND",
    "NOT softmax",
    "softmax NEAR(",
    "title:softmax",
    "{title text}: softmax",
    "soft*",
    "^softmax",
    "softmax) OR (1",
    "'; DROP TABLE passages; --",
    "softmax\0rescale",
    "\ud800 softmax",
    "a" * 10_000,
    "softmax " * 5_000,
    "漢字 ⟨χ⟩ ٣ ß",
    "-softmax +rescale",
    "%s %n %x",
    "\x1b[31m softmax",
    "​softmax",
]


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_no_query_is_an_error(base, query):
    found = base.search(query)
    assert len(found) <= MOST
    if "softmax" in query:
        assert any("softmax" in passage.id.lower() for passage in found)


@pytest.mark.parametrize("query", ["", " ", '"', "***", "()", "---", "_", "\0", "​"])
def test_nothing_to_look_for_finds_nothing(base, query):
    assert base.search(query) == []


def test_words_that_only_hold_a_sentence_together_do_not_count(base):
    assert base.search("what is the TMEM") == base.search("TMEM")
    assert base.search("what is this") != [] or expression("what is this")


def test_a_long_query_is_cut():
    assert expression(" ".join(f"word{n}" for n in range(500))).count(" OR ") == MOST_TERMS - 1


def test_an_identifier_is_found_whole_and_by_its_parts():
    assert expression("SoftmaxSm100.online_softmax").split(" OR ") == [
        '"softmaxsm100.online_softmax"',
        '"softmax"',
        '"sm100"',
        '"online"',
    ]


def test_no_source_crowds_out_the_others(base):
    for query in ("softmax", "mbarrier wait phase", "tcgen05 mma", "register"):
        found = base.search(query)
        sources = [passage.source for passage in found]
        assert len(found) == MOST
        assert len(set(sources)) >= 3, (query, sources)
        assert max(map(sources.count, sources)) <= MOST // 2


def test_a_source_fills_the_answer_where_nobody_else_has_anything():
    hits = [_Hit(n, "dsl", 20.0 - n) for n in range(12)]
    assert list(_mixed(hits)) == hits[:MOST]
    late = _Hit(99, "notes", 0.1)
    picked = list(_mixed([*hits, late]))
    assert late in picked and len(picked) == MOST


def test_a_passage_is_read_whole_and_a_result_is_short(base):
    name = "seed:flash_attn/cute/flash_fwd_sm100.py::FlashAttentionForwardSm100.softmax_step"
    (hit,) = [p for p in base.search("softmax_step") if p.id == name]
    assert len(hit.text) < 1500
    text = base.read(name)
    assert text.startswith("FlashAttentionForwardSm100.softmax_step, lines ")
    assert "def softmax_step(" in text and len(text.splitlines()) > 50


def test_every_id_that_a_search_gives_can_be_read_by_the_tool(base):
    for query in ("kernel", "BlackwellFusedMultiHeadAttention", "setmaxregister"):
        for passage in base.search(query):
            assert len(passage.id) <= 100
            assert passage.id and base.read(passage.id).strip()


@pytest.mark.parametrize("name", ["", "seed:nothing", "' OR 1=1 --", "\ud800", "x" * 5000])
def test_an_unknown_id_is_refused_in_one_line(base, name):
    with pytest.raises(BadInput, match="there is no passage") as told:
        base.read(name)
    assert len(str(told.value)) < 300 and "\n" not in str(told.value)


def test_the_tools_serve_it(base):
    study = Study(None, base)
    answer = study.knowledge_search("online softmax")
    assert answer.startswith('<data from="knowledge">') and "[seed:" in answer
    assert "def online_softmax" in study.knowledge_read(
        "seed:flash_attn/cute/softmax.py::Softmax.online_softmax"
    )


def test_many_threads_may_search(base):
    queries = ["softmax", "tcgen05 mma", "named barrier", "TMEM"] * 8
    alone = [[p.id for p in base.search(query)] for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: [p.id for p in base.search(q)], queries)) == alone


def test_it_is_fast(fa4, base):
    """50 ms each are wanted; ten times that still tells a missing index from a busy machine."""
    began = time.perf_counter()
    again = open_base(fa4, "fa4", "sm100")
    opened = time.perf_counter()
    for _ in range(5):
        again.search("how does the softmax of the correction warp use shared memory registers")
    searched = time.perf_counter()
    assert opened - began < 0.5
    assert (searched - opened) / 5 < 0.5
