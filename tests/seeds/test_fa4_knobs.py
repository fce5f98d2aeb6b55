"""FA4's knobs against the released source, and the rules that keep a build from being wasted."""

import difflib
import importlib.util
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from avo_cute.build import BuildRequest, Source, build_class
from avo_cute.knobs import apply, read
from avo_cute.patterns import normal
from avo_cute.plan import seed_of
from avo_cute.records import Failure
from avo_cute.sandbox import choose_layer
from avo_cute.target import TARGETS
from avo_cute.task import find_task

TASK = find_task("fa4")
KNOBS = TASK.knobs.KNOBS
BY_NAME = {knob.name: knob for knob in KNOBS}

SEED_VALUES = {
    "ex2_freq_full": "10", "ex2_freq_causal": "16", "ex2_start_full": "1",
    "ex2_start_causal": "1", "soft_regs_full": "184", "soft_regs_causal": "192",
    "corr_regs_full": "80", "corr_regs_causal": "72", "ex2_freq_full_103": "0",
    "soft_regs_full_103": "176", "soft_regs_causal_103": "176", "corr_regs_full_103": "80",
    "corr_regs_causal_103": "64", "tile_m_full": "128", "tile_n_causal": "128",
    "q_stage_full": "2 if seqlen_q_packgqa > tile_m and head_dim_v != 256 else 1",
    "split_p": "n_block_size // 4 * 3", "s0_s1_barrier": "False",
    "reuse_q_for_o": "self.is_split_kv", "static_persistent": "is_static_persistent",
    "scheduler_causal": "SingleTileLPTScheduler", "causal_2cta": "not causal",
    "clc": "utils._get_use_clc_scheduler_default()",
    "disable_2cta": "utils._get_disable_2cta_default(is_fwd=True)", "kv_stage_cap": "32",
    "l2_budget": "50 * 1024 * 1024", "pack_gqa_full": "qhead_per_kvhead > 1",
    "rescale_threshold": "8.0", "corr_tile": "16", "s_load": "32", "p_store": "16",
    "epilogue_tile": "8 * 32 // self.o_dtype.width", "ex2_run": "4", "ex2_fragment": "32",
    "poly_degree": "3", "unroll_softmax": "1",
    "sm90_tile_causal_4k": "FwdConfig(128, 128, True, True)",
    "sm90_tile_full_32k": "FwdConfig(128, 128, True, True)",
    "sm90_stages_full": "2", "sm90_l2_budget": "50 * 1024 * 1024", "sm90_regs_2": "(240, 24)",
    "sm90_regs_3": "(160, 32)", "sm90_scheduler_full": "SingleTileScheduler",
    "sm90_scheduler_causal": "SingleTileLPTScheduler",
    "sm90_lpt": "self.is_causal or self.is_local",
    "sm90_turns": "self.num_wg_mma >= 2 and self.tile_hdim <= 128",
    "sm90_rescale_first": "self.tile_hdimv > 128 and self.intra_wg_overlap",
    "sm120_tile_m_full": "128", "sm120_tile_n_full": "64", "sm120_stages_causal": "1",
    "sm120_threads_full": "128", "sm120_q_regs": "False",
}  # fmt: skip


@pytest.fixture(scope="module")
def seed() -> dict[str, bytes]:
    package = importlib.util.find_spec("flash_attn")
    assert package is not None and package.submodule_search_locations
    root = Path(package.submodule_search_locations[0]).parent
    return {knob.file: (root / knob.file).read_bytes() for knob in KNOBS}


def changed_lines(old: bytes, new: bytes) -> list[str]:
    diff = difflib.ndiff(old.decode().splitlines(), new.decode().splitlines())
    return [line for line in diff if line.startswith("- ")]


def test_every_knob_reads_its_site_in_the_seed(seed):
    values = read(KNOBS, seed)
    assert set(values) == set(BY_NAME)
    assert {name: values[name] for name in SEED_VALUES} == SEED_VALUES


def test_what_stands_in_the_seed_is_among_the_choices(seed):
    for name, value in read(KNOBS, seed).items():
        assert value in map(normal, BY_NAME[name].choices), name


@pytest.mark.parametrize("turn", range(max(len(knob.choices) for knob in KNOBS)))
def test_each_choice_changes_its_own_line_and_reads_back(seed, turn):
    wanted = {knob.name: knob.choices[turn % len(knob.choices)] for knob in KNOBS}
    before = read(KNOBS, seed)
    new = apply(KNOBS, seed, wanted)
    for file, data in new.items():
        moved = [n for n in wanted if BY_NAME[n].file == file and normal(wanted[n]) != before[n]]
        assert 1 <= len(changed_lines(seed[file], data)) <= 2 * len(moved)
    values = read(KNOBS, {**seed, **new})
    assert values == {name: normal(choice) for name, choice in wanted.items()}


def test_a_change_leaves_every_other_knob_as_it_was(seed):
    before = read(KNOBS, seed)
    changes = {
        "soft_regs_full": "176",
        "tile_n_causal": "64",
        "sm90_tile_full_8k": "FwdConfig(128, 176, True, True)",
        "sm90_regs_2": "(232, 40)",
        "sm120_threads_causal": "256",
        "split_p": "n_block_size // 2",
    }
    after = read(KNOBS, {**seed, **apply(KNOBS, seed, changes)})
    assert after == {**before, **changes}


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
def test_the_seed_is_legal(seed, target):
    assert TASK.knobs.check(read(KNOBS, seed), target) == []


ILLEGAL = [
    ("b200", {"soft_regs_full": "180"}, "multiple of 8"),
    ("b200", {"soft_regs_full": "264"}, "24 to 256"),
    ("b200", {"soft_regs_full": "120"}, "at least 128"),
    ("b200", {"corr_regs_causal": "16"}, "24 to 256"),
    ("b200", {"soft_regs_causal": "208", "corr_regs_causal": "80"}, "leave 16 of 512"),
    ("b300", {"soft_regs_full_103": "216", "corr_regs_full_103": "64"}, "leave 16 of 512"),
    ("b300", {"soft_regs_full_103": "240"}, "leave -48 of 512"),
    ("b200", {"tile_m_full": "64"}, "owns 128 rows"),
    ("b200", {"tile_n_full": "100"}, "multiple of 16"),
    ("b200", {"tile_n_causal": "192"}, "take 640 of 512"),
    ("b200", {"tile_n_causal": "256", "q_stage_causal": "1"}, "take 640 of 512"),
    ("b200", {"q_stage_full": "3"}, "1 or 2"),
    ("b200", {"p_store": "32"}, "not a whole number of stores"),
    ("b200", {"p_store": "48"}, "does not divide"),
    ("b200", {"s_load": "128", "tile_n_full": "64"}, "does not divide"),
    ("b200", {"split_p": "n_block_size"}, "less than tile_n"),
    ("b200", {"rescale_threshold": "12.0"}, "from 0 to 8"),
    ("b200", {"kv_stage_cap": "1"}, "needs 2 stages"),
    ("h200", {"sm90_tile_full_4k": "FwdConfig(256, 128, True, True)"}, "64, 128 or 192"),
    ("h200", {"sm90_tile_full_8k": "FwdConfig(128, 120, True, True)"}, "multiple of 16"),
    ("h200", {"sm90_tile_full_16k": "FwdConfig(128, 208, True, True)"}, "need 220 registers"),
    ("h200", {"sm90_tile_causal_32k": "FwdConfig(192, 128, True, True)"}, "need 160 registers"),
    ("h100", {"sm90_tile_causal_4k": "FwdConfig(192, 96, True, True)"}, "need 136 registers"),
    ("h200", {"sm90_tile_causal_8k": "FwdConfig(128, 160, False, True)"}, "237568 of 232448"),
    ("h200", {"sm90_stages_full": "4"}, "294912 of 232448"),
    ("h200", {"sm90_stages_full": "0"}, "at least 1"),
    ("h200", {"sm90_regs_2": "(240, 40)"}, "more than 512"),
    ("h200", {"sm90_regs_2": "(236, 24)"}, "multiple of 8"),
    ("h200", {"sm90_regs_2": "(160, 24)"}, "leaves 128"),
    ("gb10", {"sm120_stages_full": "2", "sm120_tile_n_full": "80"}, "of 101376 bytes"),
    ("gb10", {"sm120_tile_n_full": "144"}, "of 101376 bytes"),
    ("gb10", {"sm120_threads_full": "384"}, "whole warps"),
    ("gb10", {"sm120_tile_n_causal": "40"}, "multiple of 16"),
]


@pytest.mark.parametrize(("target", "changes", "why"), ILLEGAL, ids=lambda x: str(x)[:40])
def test_what_is_illegal_is_named(seed, target, changes, why):
    lines = TASK.knobs.check({**read(KNOBS, seed), **changes}, TARGETS[target])
    named = [line for line in lines if why in line]
    assert named and any(name in named[0] for name in changes)
    assert len(set(lines)) == len(lines)


LEGAL = [
    ("h200", {"sm90_tile_full_4k": "FwdConfig(128, 176, True, True)"}),
    ("h200", {"sm90_tile_causal_8k": "FwdConfig(128, 192, True, True)"}),  # 224 KB: launched
    ("h200", {"sm90_tile_full_16k": "FwdConfig(192, 128, False, True)"}),
    ("h200", {"sm90_tile_full_32k": "FwdConfig(192, 80, True, True)"}),
    ("h200", {"sm90_tile_full_32k": "choose(seqlen)"}),  # an agent's own way
    ("b200", {"soft_regs_full": "200", "corr_regs_full": "88"}),  # 24 for the others
    ("b200", {"soft_regs_full": "184", "corr_regs_full": "88"}),
    ("b200", {"q_stage_full": "1", "tile_n_full": "64"}),
    ("b200", {"p_store": "32", "split_p": "n_block_size // 2"}),
    ("b200", {"soft_regs_full": "unknown()", "tile_n_full": "(1, 2)"}),  # an agent's own way
    ("gb10", {"sm120_stages_full": "2", "sm120_q_regs": "True"}),
]


@pytest.mark.parametrize(("target", "changes"), LEGAL, ids=lambda x: str(x)[:40])
def test_what_is_legal_passes(seed, target, changes):
    assert TASK.knobs.check({**read(KNOBS, seed), **changes}, TARGETS[target]) == []


expressions = st.one_of(
    st.integers(-9999, 9999).map(str),
    st.sampled_from(
        ["0", "1e999", "True", "()", "(8,)", "(8, 8)", "(8, 'a')", "x", "1 // 0", "", ")"]
    ),
    st.floats().map(repr),
)


@given(
    values=st.dictionaries(st.sampled_from(sorted(BY_NAME)), expressions, max_size=12),
    target=st.sampled_from(sorted(TARGETS)),
)
@example(values={"sm90_tile_causal_16k": ""}, target="h100")
@example(values={"sm90_tile_full": ")"}, target="h200")
def test_no_value_makes_the_rules_fail(values, target):
    assert all(isinstance(line, str) for line in TASK.knobs.check(values, TARGETS[target]))


def test_every_knob_serves_some_target_and_class_of_the_task():
    for knob in KNOBS:
        served = any(knob.applies(target, TASK.workloads) for target in TARGETS.values())
        assert served or (knob.at == "" and len(knob.choices) == 1), knob.name
        assert len(knob.title) <= 40 and (knob.effect or len(knob.choices) == 1)
        assert {choice for choice, _ in knob.expect} <= set(knob.choices), knob.name
        assert set(knob.choices) <= {c for c, _ in knob.labels} or not knob.labels, knob.name


LENGTHS = ("4k", "8k", "16k", "32k")
LARGE, LONG = "FwdConfig(192, 128, False, True)", "FwdConfig(128, 192, True, True)"


def tiles(mask: str, *choices: str) -> dict[str, str]:
    named = zip(LENGTHS, choices, strict=True)
    return {f"sm90_tile_{mask}_{length}": choice for length, choice in named}


def test_a_tile_by_length_reads_well_as_a_patch(seed):
    changes = {"sm90_tile_causal_8k": LARGE, "sm90_tile_causal_16k": LONG}
    changes |= {"sm90_tile_causal_32k": LARGE, **tiles("full", *[LARGE] * 4)}
    text = apply(KNOBS, seed, changes)["flash_attn/cute/interface.py"].decode()
    expected = """\
    elif head_dim <= 128:
        return (
            (
                FwdConfig(128, 128, True, True) if seqlen < 6 * 1024
                else FwdConfig(192, 128, False, True) if seqlen < 12 * 1024
                else FwdConfig(128, 192, True, True) if seqlen < 24 * 1024
                else FwdConfig(192, 128, False, True)
            ) if is_causal
            else FwdConfig(128, 128, True, True) if seqlen < 3 * 1024
            else FwdConfig(192, 128, False, True)
        )
    elif head_dim <= 192:
"""
    assert expected in text
    before = seed["flash_attn/cute/interface.py"].decode()
    removed = [line for line in difflib.ndiff(before.splitlines(), text.splitlines())]
    assert len([line for line in removed if line.startswith("- ")]) == 3


@pytest.mark.parametrize(
    "steps",
    [
        [tiles("causal", LONG, LONG, LARGE, LONG)],
        [tiles("full", *[LARGE] * 4), tiles("causal", *[LARGE] * 4)],
        [{"sm90_tile_full_16k": LONG}, {"sm90_tile_full_8k": LONG}, {"sm90_tile_causal_4k": LARGE}],
    ],
)
def test_the_first_choice_again_gives_the_first_source_back(seed, steps):
    before, files = read(KNOBS, seed), seed
    values = before
    for step in steps:
        files = {**files, **apply(KNOBS, files, step)}
        values = {**values, **step}
        assert read(KNOBS, files) == values
    assert files != seed
    for name in sorted(before):  # one by one
        files = {**files, **apply(KNOBS, files, {name: before[name]})}
    assert files == seed


def test_each_length_gets_the_object_that_its_knob_asks_for(seed, tmp_path):
    changes = {"sm90_tile_causal_8k": LARGE, "sm90_tile_causal_32k": LARGE}
    for path, data in {**seed_of(TASK).files, **apply(KNOBS, seed, changes)}.items():
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).write_bytes(data)
    source = Source("by-length", tmp_path / "tree")
    causal = tuple(w for w in TASK.select("mha") if w.class_name == "mha-causal")
    target, cache = TARGETS["h200"], tmp_path / "cache"
    objects = build_class(
        BuildRequest(source, TASK.directory, target, causal, choose_layer(), cache)
    )
    assert not isinstance(objects, Failure), objects
    four, eight, sixteen, thirty_two = (objects[w.name].read_bytes() for w in causal)
    assert four == sixteen != eight == thirty_two
