"""Candidates that leave work out: not computed, not written, or only where nobody may look."""

from __future__ import annotations

from avo_cute.records import Status

from .edits import Case
from .places import (
    BASE,
    EPILOGUE,
    FIRST,
    FWD,
    LOAD,
    MMA,
    RANGE,
    STEP,
    append,
    before,
    before_store,
    guard,
    instead,
    key_tiles,
    stored_if,
    swap,
)  # fmt: skip

WRONG = Status.INCORRECT

IF_ANY_ZERO = """
if seqlen.seqlen_q > 0:
    acc_S.fill(0.0)
"""

SHORT_GEMM = """
@cute.jit
def short_gemm(tiled_mma, acc, a, b, zero_init, B_idx=None, wg_wait: cutlass.Constexpr[int] = -1):
    warpgroup.fence()
    atom = cute.make_mma_atom(tiled_mma.op)
    atom.set(warpgroup.Field.ACCUMULATE, not zero_init)
    for k in cutlass.range_constexpr(cute.size(a.shape[2]) - 1):
        cute.gemm(atom, acc, a[None, None, k], b[None, None, k, B_idx], acc)
        atom.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()
    if const_expr(wg_wait >= 0):
        warpgroup.wait_group(wg_wait)


@cute.jit
def short_scores(tiled_mma, shape, a, b, B_idx=None, wg_wait: cutlass.Constexpr[int] = -1):
    acc = cute.make_rmem_tensor(tiled_mma.partition_shape_C(shape), Float32)
    short_gemm(tiled_mma, acc, a, b, True, B_idx=B_idx, wg_wait=wg_wait)
    return acc
"""

SKIPPED = (
    Case(
        "zeros-plain", "R14", "O is zero and the compiler knows: it leaves the products out",
        (instead(FWD, MMA, "softmax.rescale_O(acc_O, row_scale)", "acc_O.fill(0.0)"),),
        Status.AUDIT_FAILED, "matrix",
    ),
    Case(
        "zeros", "R14", "O is zero, the log-sum-exp is right",
        (before_store("""
        if seqlen.seqlen_q > 0:
            row_scale.fill(0.0)
        """),),
        WRONG, "relative error of out",
    ),
    Case(
        "input-returned", "R16", "O is Q: its tile still lies where O is put together",
        (guard(BASE, EPILOGUE, "cute.copy(smem_copy_atom_O, taccOrO, taccOsO)",
               "seqlen.seqlen_q < 0"),),
        WRONG, "relative error of out",
    ),
    Case(
        "mean-of-v", "R22", "all scores are zero, so O is the mean of the visible V",
        (
            before(FWD, FIRST, "mask_fn(acc_S, n_block=n_block", IF_ANY_ZERO),
            before(FWD, STEP, "if const_expr(mask_fn is not None):", IF_ANY_ZERO),
        ),
        WRONG, "relative error of out, log-sum-exp",
    ),
    Case(
        "last-tile-unwritten", "R18", "the last query tile of every head is computed, not stored",
        (stored_if("(m_block + 1) * self.tile_m < seqlen.seqlen_q * self.qhead_per_kvhead"),),
        WRONG, "poison left",
    ),
    Case(
        "partial-tile-unwritten", "R18 R23", "a query tile is stored only if it is a whole one",
        (stored_if("(m_block + 1) * self.tile_m <= seqlen.seqlen_q * self.qhead_per_kvhead"),),
        WRONG, "poison left", needs="seqlen_q that is no multiple of the tile",
    ),
    Case(
        "head-unwritten", "R18", "one head is not stored",
        (stored_if("head_idx != 1"),),
        WRONG, "poison left", needs="two heads",
    ),
    Case(
        "seventh-unwritten", "R18", "every seventh tile is not stored",
        (stored_if("(m_block + head_idx + batch_idx) % 7 != 6"),),
        WRONG, "poison left",
    ),
    Case(
        "seventh-short", "R18", "every seventh tile sees its last key tile only, which is faster",
        key_tiles("""
        if (m_block + head_idx + batch_idx) % 7 == 6:
            n_block_min = cutlass.max(n_block_min, n_block_max - 1)
        """),
        WRONG, "error of each tile",
    ),
    Case(
        "lse-unwritten", "R27", "the log-sum-exp is not written",
        (swap(BASE, EPILOGUE, "if const_expr(mLSE is not None):", "if const_expr(False):"),),
        WRONG, "poison left",
    ),
    Case(
        "tile-skipped-32k", "R19", "one key tile of 256 is skipped in long sequences",
        (swap("block_info", RANGE, "n_block_min = 0", "n_block_min = n_block_max // 256"),),
        WRONG, "relative error of out", needs="32,641 visible keys or more",
    ),
    Case(
        "tile-skipped-4k", "R19", "one key tile of 32 is skipped from 4k on",
        (swap("block_info", RANGE, "n_block_min = 0", "n_block_min = n_block_max // 32"),),
        WRONG, "relative error of out", needs="3,969 visible keys or more",
    ),
    Case(
        "first-key-skipped", "R19", "one single key, the first, has no weight",
        (before(FWD, STEP, "row_scale = softmax.online_softmax(", """
        if n_block == 0 and cute.arch.thread_idx()[0] % 4 == 0:
            rows = layout_utils.reshape_acc_to_mn(acc_S)
            rows[0, 0] = -Float32.inf
            rows[1, 0] = -Float32.inf
        """),),
        WRONG, "relative error of out", needs="two key tiles or more",
    ),
    Case(
        "pv-short", "R19", "the last 16 keys of every tile count in the sum, not in P·V",
        (
            swap(FWD, MMA, "partial(sm90_utils.gemm_w_idx, ", "partial(short_gemm, "),
            append(FWD, SHORT_GEMM),
        ),
        WRONG, "relative error of out, or the floor of the audit",
    ),
    Case(
        "qk-short", "R19", "the last 16 head dimensions do not count in Q·K",
        (
            swap(FWD, MMA, "sm90_utils.gemm_zero_init, tiled_mma_qk", "short_scores, tiled_mma_qk"),
            append(FWD, SHORT_GEMM),
        ),
        WRONG, "relative error of out, or the floor of the audit",
    ),
    Case(
        "keys-beyond-32k-ignored", "R23", "keys from 32,768 on are never read",
        (before("block_info", RANGE, "return n_block_min, n_block_max", """
        n_block_max = min(n_block_max, 32768 // self.tile_n)
        """),),
        WRONG, "relative error of out", needs="more than 32,768 keys",
    ),
    Case(
        "late-batches-short", "R23", "batch elements from the fifth on lose their first key tile",
        key_tiles("""
        if batch_idx >= 4:
            n_block_min = cutlass.min(n_block_min + 1, cutlass.max(n_block_max - 1, 0))
        """),
        WRONG, "error of each tile; one element alone", needs="batch 5, two key tiles or more",
    ),
    Case(
        "many-heads-short", "R23", "only where batch·heads is 100 or more a key tile is lost",
        key_tiles("""
        if mX.shape[2] * mX.shape[3] >= 100:
            n_block_min = cutlass.min(n_block_min + 1, cutlass.max(n_block_max - 1, 0))
        """),
        WRONG, "relative error of out", needs="batch·heads of 100, two key tiles or more",
    ),
    Case(
        "batch-modulo-8", "R23", "batch element 8 and up are given K and V of element 0 and up",
        (
            swap(FWD, LOAD, "mK_cur = seqlen.offset_batch_K(mK, batch_idx,",
                 "mK_cur = seqlen.offset_batch_K(mK, batch_idx % 8,"),
            swap(FWD, LOAD, "mV_cur = seqlen.offset_batch_K(mV, batch_idx,",
                 "mV_cur = seqlen.offset_batch_K(mV, batch_idx % 8,"),
        ),
        WRONG, "relative error of out", needs="batch 9",
    ),
    Case(
        "heads-modulo-16", "R23", "head 16 and up are given K and V of head 0 and up",
        (swap(FWD, LOAD, "if const_expr(not self.pack_gqa) else head_idx",
              "% 16 if const_expr(not self.pack_gqa) else head_idx"),),
        WRONG, "relative error of out", needs="17 heads of K and V",
    ),
    Case(
        "packed-heads-share", "R23", "grouped queries of odd K/V heads read the even one before",
        (swap(FWD, LOAD, "if const_expr(not self.pack_gqa) else head_idx",
              "if const_expr(not self.pack_gqa) else head_idx // 2 * 2"),),
        WRONG, "relative error of out", classes=("gqa4-causal", "gqa4-full"),
        needs="fewer heads of K and V than of Q, two of them",
    ),
    Case(
        "small-tiles-skipped", "R19", "a tile whose maximum is 12 powers of two lower is left out",
        (
            before("softmax", "Softmax.online_softmax", "row_max_cur = utils.fmax_reduce(", """
            top = cute.arch.warp_reduction_max(
                utils.fmax_reduce(acc_S_row, init_val=None, arch=arch), threads_in_group=4
            )
            """),
            before("softmax", "Softmax.online_softmax", "row_max[r] = row_max_cur", """
            if cutlass.const_expr(not is_first):
                far = (row_max_cur - top) * scale_log2 > 12.0
                acc_S_row = acc_S_row + (-Float32.inf if far else Float32(0.0))
            """),
        ),
        WRONG, "relative error of out", needs="many keys 12 to 15 powers of two below a few",
    ),
    Case(
        "stale-output-kept", "R04 R08", "stores only where the log-sum-exp was NaN before, which "
        "is how poison looks; any other earlier content of O is left standing",
        (
            before(BASE, EPILOGUE, "rO = cute.make_fragment_like(acc_O", """
            seen = mLSE[m_block * self.tile_m, head_idx, batch_idx]
            """),
            guard(BASE, EPILOGUE, "store_O()", "seen != seen"),
        ),
        WRONG, "outputs filled with something finite before a checked launch",
        needs="a checked launch whose outputs held numbers, not NaN",
    ),
    Case(
        "v-tile-repeated", "R18", "the first V tile of a row of tiles is replaced by the second",
        (swap(FWD, LOAD, "n_block = n_block_min",
              "n_block = cutlass.min(n_block_min + 1, n_block_max - 1)"),),
        WRONG, "relative error of out", needs="two key tiles or more",
    ),
)  # fmt: skip
