"""What an agent would ask, and the passage that has to be among the first five."""

import pytest

from avo_cute.knowledge import open_base

FWD = "seed:flash_attn/cute/flash_fwd_sm100.py::FlashAttentionForwardSm100"
SOFTMAX = "seed:flash_attn/cute/softmax.py::"
REGISTERS = "notes:fa4#registers-of-softmax-correction-and-other-warps"

QUESTIONS = [
    ("how many registers does the correction warp have", REGISTERS),
    ("ex2 emulation polynomial", "seed:flash_attn/cute/utils.py::ex2_emulation"),
    ("ex2 emulation polynomial", "notes:fa4#emulated-exponentials-ex2-by-a-polynomial"),
    ("exponential throughput MUFU per SM", "notes:blackwell#units-and-rates-per-sm"),
    ("TMEM size", "notes:blackwell#tensor-memory-tmem"),
    ("setmaxnreg", "dsl:cutlass.cute.arch.nvvm_wrappers.setmaxregister_increase"),
    ("warpgroup_reg_alloc", "notes:hopper#registers-for-each-role-setmaxnreg"),
    ("mbarrier phase", "notes:synchronisation#mbarrier-counts-bytes-and-the-phase"),
    ("mbarrier phase", "dsl:cutlass.cute.arch.mbar.mbarrier_wait"),
    ("how does the online softmax rescale work", "notes:fa4#online-softmax-and-rescaling"),
    ("how does the online softmax rescale work", f"{SOFTMAX}Softmax.online_softmax"),
    ("tcgen05.mma", "notes:blackwell#tcgen05-mma-the-matrix-product"),
    ("P in TMEM", "notes:blackwell#p-in-tmem"),
    ("shared memory limit per block", "notes:blackwell#shared-memory-registers-and-clusters"),
    ("which tile scheduler is used for causal", "notes:fa4#schedulers"),
    ("branchless rescale", "catalogue:branchless-rescale"),
    ("one product over two blocks", "catalogue:two-cta-products"),
    (
        "break inside a dynamic loop is not allowed",
        "notes:cute-dsl#what-dynamic-control-flow-cannot-do",
    ),
    ("range_constexpr", "notes:cute-dsl#loops-range-cutlass-range-cutlass-range-constexpr"),
    ("named barrier ids", "notes:synchronisation#named-barriers"),
    ("fence.proxy.async", "notes:synchronisation#fences"),
    ("PipelineTmaUmma", "dsl:cutlass.pipeline.sm100.PipelineTmaUmma"),
    ("correction_rescale", f"{FWD}.correction_rescale"),
    ("where are exponentials computed: apply_exp2_convert", f"{SOFTMAX}SoftmaxSm100"),
    ("apply causal mask sm100", "seed:flash_attn/cute/mask.py::AttentionMask.apply_mask_sm100"),
    ("register spills", "notes:cute-dsl#registers-spills-and-sizes-without-a-gpu"),
    ("2CTA tx_count", "notes:blackwell#two-blocks-for-one-product-2-cta-cta-group-2"),
    ("softmax_step split_P_arrive", "notes:fa4#p-is-handed-over-in-two-parts"),
    ("what gave AVO the most", "notes:fa4#avo-published-changes-and-their-gains-on-a-b200"),
]


@pytest.mark.parametrize(("query", "wanted"), QUESTIONS)
def test_the_passage_is_among_the_first_five(base, query, wanted):
    found = [passage.id for passage in base.search(query)[:5]]
    assert any(id == wanted or id.startswith(f"{wanted}.") for id in found), found


def test_on_hopper_hoppers_notes_come_first(fa4):
    on_hopper = open_base(fa4, "fa4", "sm90")
    for query, wanted in [
        ("units and rates per SM", "notes:hopper#units-and-rates-per-sm"),
        ("ping pong warpgroups in turn", "catalogue:ping-pong-groups"),
        ("intra_wg_overlap", "notes:hopper#how-fa4-s-forward-is-built-here"),
    ]:
        assert wanted in [passage.id for passage in on_hopper.search(query)[:5]], query


def test_a_direction_of_other_gpus_is_not_offered(fa4, base):
    on_hopper = open_base(fa4, "fa4", "sm90")
    sm100_only, sm90_only = "catalogue:branchless-rescale", "catalogue:ping-pong-groups"
    ids = lambda b, q: [p.id for p in b.search(q)]  # noqa: E731
    assert sm100_only in ids(base, "branchless rescale")
    assert sm100_only not in ids(on_hopper, "branchless rescale")
    assert sm90_only not in ids(base, "ping-pong groups")
