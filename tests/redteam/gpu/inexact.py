"""Candidates that compute something a little different: precision, masks, scale, log-sum-exp."""

from __future__ import annotations

from avo_cute.records import Status

from .edits import Case
from .places import (
    BASE,
    CALL,
    CAUSAL_MASK,
    EPILOGUE,
    FINALIZE,
    FIRST,
    FWD,
    KERNEL,
    MASK,
    MMA,
    ONLINE,
    RANGE,
    SM90,
    SOFTMAX,
    STEP,
    after,
    before,
    before_store,
    guard,
    instead,
    lazy_maximum,
    swap,
)  # fmt: skip

WRONG = Status.INCORRECT
FULL, CAUSAL = ("mha-full",), ("mha-causal",)

INEXACT = (
    Case(
        "p-e4m3", "R20", "P is rounded to FP8 (e4m3) before P·V",
        (
            before(FWD, STEP, "utils.cvt_f16(tOrP_acc, tOrP_cur)",
                   "tOrP_acc.store(tOrP_acc.load().to(cutlass.Float8E4M3FN).to(Float32))"),
            before(FWD, FIRST, "tOrP_cur.store(tOrP_acc.load().to(self.dtype))",
                   "tOrP_acc.store(tOrP_acc.load().to(cutlass.Float8E4M3FN).to(Float32))"),
        ),
        WRONG, "relative error of out",
    ),
    Case(
        "p-toward-zero", "R20", "P is rounded toward zero; the mildest that must not pass",
        (swap("utils", "cvt_f16x2_f32", 'f"cvt.rn.{', 'f"cvt.rz.{'),),
        WRONG, "relative error of out (1.49 × the seed's on an H200), bias with one-signed V",
        needs="two key tiles or more",
    ),
    Case(
        "scores-bf16", "R20", "the scores are rounded to bf16 before the softmax",
        (
            before(FWD, STEP, "row_scale = softmax.online_softmax(",
                   "acc_S.store(acc_S.load().to(self.dtype).to(Float32))"),
            before(FWD, FIRST, "row_scale = softmax.online_softmax(",
                   "acc_S.store(acc_S.load().to(self.dtype).to(Float32))"),
        ),
        WRONG, "relative error of out, log-sum-exp", needs="scores well above 1 (q×4, q×16)",
    ),
    Case(
        "o-bf16", "R20", "O is rounded to bf16 after every key tile",
        (after(FWD, STEP, "softmax.rescale_O(acc_O, row_scale)",
               "acc_O.store(acc_O.load().to(self.dtype).to(Float32))"),),
        WRONG, "relative error of out", needs="several key tiles",
    ),
    Case(
        "scale-bf16", "R27", "the scale is rounded to bf16, 0.06 % off for 1/sqrt(128)",
        (before(FWD, KERNEL, "if warp_idx < 4:  # Producer",
                "softmax_scale_log2 = Float32(cutlass.BFloat16(softmax_scale_log2))"),),
        WRONG, "log-sum-exp; relative error with large scores",
    ),
    Case(
        "running-max-dropped", "R21", "the maximum of the first key tile serves for all: 5-7 % "
        "faster, and right wherever later logits do not climb by 127 powers of two",
        (
            instead(SOFTMAX, ONLINE, "row_max_cur = utils.fmax_reduce(", """
            row_max_cur = row_max[r]
            if cutlass.const_expr(is_first):
                row_max_cur = utils.fmax_reduce(acc_S_row, init_val=None, arch=arch)
            """),
            guard(SOFTMAX, ONLINE, "row_max_cur = cute.arch.warp_reduction_max(",
                  "cutlass.const_expr(is_first)"),
            after(SOFTMAX, ONLINE, "row_max[r] = row_max_cur", """
            if cutlass.const_expr(is_first):
                row_max[r] = Float32(0.0) if row_max_cur == -Float32.inf else row_max_cur
            """),
            instead(SOFTMAX, ONLINE, "(row_max_prev - row_max_cur) * scale_log2, fastmath=True",
                    "row_scale[r] = Float32(1.0)"),
            instead(FWD, STEP, "softmax.rescale_O(acc_O, row_scale)"),
        ),
        WRONG, "finite; relative error of out",
        needs="logits that climb along the walk, towards earlier keys, past 2^127",
    ),
    Case(
        "no-max", "R21", "no maximum is subtracted at all",
        (
            instead(SOFTMAX, ONLINE, "row_max_cur = utils.fmax_reduce(",
                    "row_max_cur = Float32(0.0)"),
            instead(SOFTMAX, ONLINE, "row_max_cur = cute.arch.warp_reduction_max("),
            instead(SOFTMAX, ONLINE, "(row_max_prev - row_max_cur) * scale_log2, fastmath=True",
                    "row_scale[r] = Float32(1.0)"),
            instead(FWD, STEP, "softmax.rescale_O(acc_O, row_scale)"),
        ),
        WRONG, "finite; relative error of out",
        needs="scores beyond ±87, or rows of large negative ones",
    ),
    Case(
        "threshold-126", "R21", "the maximum moves only when it grew by 126 powers of two; the sum "
        "of a few such weights has no reciprocal, of many it overflows",
        (lazy_maximum(126.0),),
        WRONG, "finite; error of each tile",
        needs="rows whose logits climb by 124 to 126 powers of two along the walk, and no further",
    ),
    Case(
        "fp8-products", "R20", "Q·K by FP8 matrix instructions, on the bytes of bf16",
        (
            after(FWD, f"{SM90}._get_tiled_mma", "tiled_mma_qk = sm90_utils_basic", """
            tiled_mma_qk = sm90_utils_basic.make_trivial_tiled_mma(
                cutlass.Float8E4M3FN, cutlass.Float8E4M3FN,
                warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.K,
                Float32, atom_layout_mnk=(self.tile_m // 64, 1, 1), tiler_mn=(64, self.tile_n),
            )
            """),
            before(FWD, MMA, "wg_mma_qk, (self.tile_m, self.tile_n, self.tile_hdim), sQ, sK", """
            wide = [
                sm90_utils.make_smem_layout(
                    cutlass.Float8E4M3FN, LayoutEnum.ROW_MAJOR, (rows, 2 * self.tile_hdim), stages
                )
                for rows, stages in ((self.tile_m, None), (self.tile_n, self.num_stages))
            ]
            narrow = [
                cute.make_tensor(
                    cute.recast_ptr(x.iterator, layout.inner, dtype=cutlass.Float8E4M3FN),
                    layout.outer,
                )
                for x, layout in zip((sQ, sK), wide)
            ]
            """),
            swap(FWD, MMA, "wg_mma_qk, (self.tile_m, self.tile_n, self.tile_hdim), sQ, sK",
                 "wg_mma_qk, (self.tile_m, self.tile_n, 2 * self.tile_hdim), *narrow"),
        ),
        Status.AUDIT_FAILED, "matrix",
    ),
    Case(
        "tail-unmasked", "R23 R26", "keys past the end of the last tile count, with score 0",
        (swap(FWD, FIRST, "mask_fn(acc_S, n_block=n_block, mask_seqlen=True)",
              "mask_fn(acc_S, n_block=n_block, mask_seqlen=False)"),),
        WRONG, "relative error of out, log-sum-exp", classes=FULL,
        needs="seqlen_k that is no multiple of the tile",
    ),
    Case(
        "zero-scores-masked", "R26", "instead of counting keys, a score of exactly 0 is masked, "
        "which is what the loads put past the end",
        (instead(FWD, FIRST, "mask_fn(acc_S, n_block=n_block, mask_seqlen=True)", """
        for i in cutlass.range_constexpr(cute.size(acc_S)):
            acc_S[i] = -Float32.inf if acc_S[i] == 0.0 else acc_S[i]
        """),),
        WRONG, "relative error of out", classes=FULL, needs="scores that are exactly zero",
    ),
    Case(
        "v-read-past-the-end", "R26", "V is loaded in whole tiles, as if what lies behind it were "
        "finite (its weights are zero)",
        (before(FWD, CALL, "tma_atom_V, tma_tensor_V = None, None", """
        rows = cute.ceil_div(mV.shape[0], self.tile_n) * self.tile_n
        mV = cute.make_tensor(
            mV.iterator, cute.make_layout((rows, *mV.shape[1:]), stride=mV.stride)
        )
        """),),
        WRONG, "finite: NaN behind V", needs="seqlen_k that is no multiple of the tile",
    ),
    Case(
        "causal-peek", "R23", "row i sees key i+1 for one row of 64",
        (before(MASK, CAUSAL_MASK, "col_limit_right = row_idx + causal_row_offset", """
        if row_idx % 64 == 37:
            row_idx += 1
        """),),
        WRONG, "error of each tile; future keys perturbed", classes=CAUSAL,
        needs="38 rows or more",
    ),
    Case(
        "causal-strict", "R23", "row i does not see its own key",
        (swap(MASK, CAUSAL_MASK, "1 + self.seqlen_k - n_block * self.tile_n",
              "self.seqlen_k - n_block * self.tile_n"),),
        WRONG, "relative error of out", classes=CAUSAL,
    ),
    Case(
        "causal-top-left", "R27", "the causal mask is aligned at the top left",
        (
            swap(MASK, CAUSAL_MASK,
                 "1 + self.seqlen_k - n_block * self.tile_n - self.seqlen_q - thr_col_offset",
                 "1 - n_block * self.tile_n - thr_col_offset"),
            swap("block_info", RANGE,
                 "n_idx = m_idx_max + seqlen_info.seqlen_k - seqlen_info.seqlen_q",
                 "n_idx = m_idx_max"),
            swap("block_info", "BlockInfo.get_n_block_min_causal_local_mask",
                 "n_idx = m_idx_min + seqlen_info.seqlen_k - seqlen_info.seqlen_q",
                 "n_idx = m_idx_min"),
        ),
        WRONG, "relative error of out", classes=CAUSAL, needs="seqlen_q other than seqlen_k",
    ),
    Case(
        "no-inf-check", "R23", "a row that sees nothing of its first key tile becomes NaN",
        (swap(FWD, FIRST, "softmax.online_softmax(acc_S, is_first=is_first_block)",
              "softmax.online_softmax(acc_S, is_first=is_first_block, check_inf=False)"),),
        WRONG, "finite", classes=CAUSAL,
        needs="seqlen_q other than seqlen_k by no multiple of the tile",
    ),
    Case(
        "o-low-by-a-thousandth", "R20", "every O is 0.1 % too small, less than bf16 resolves",
        (before_store("""
        for r in cutlass.range_constexpr(cute.size(row_scale)):
            row_scale[r] = row_scale[r] * Float32(0.999)
        """),),
        WRONG, "bias of out", needs="V of one sign",
    ),
    Case(
        "scale-fixed", "R27", "the scale is 1/sqrt(head_dim), whatever the argument says",
        (before(FWD, CALL, "softmax_scale_log2, softmax_scale = utils.compute_softmax_scale_log2(",
                "softmax_scale = Float32(self.tile_hdim**-0.5)"),),
        WRONG, "relative error of out", needs="another scale",
    ),
    Case(
        "strides-ignored", "R27", "V is read as if it were contiguous",
        (after(FWD, CALL, "mQ, mK, mV, mO = [assume_tensor_aligned(t)", """
        mV = cute.make_tensor(
            mV.iterator, cute.make_ordered_layout(mV.shape, order=(3, 2, 1, 0))
        )
        """),),
        WRONG, "relative error of out", needs="strided views of V",
    ),
    Case(
        "lse-base-2", "R27", "the log-sum-exp is to base 2",
        (swap(SOFTMAX, FINALIZE, "LN2 = math.log(2.0)", "LN2 = 1.0"),),
        WRONG, "log-sum-exp",
    ),
    Case(
        "lse-unscaled", "R27", "the maximum in the log-sum-exp is not scaled",
        (swap(SOFTMAX, FINALIZE, "row_max_scaled = row_max[r] * scale_log2",
              "row_max_scaled = row_max[r]"),),
        WRONG, "log-sum-exp",
    ),
    Case(
        "lse-bf16", "R27", "the log-sum-exp is rounded to bf16",
        (swap(BASE, EPILOGUE, "taccOgLSE[m, 0] = lse[m]",
              "taccOgLSE[m, 0] = Float32(cutlass.BFloat16(lse[m]))"),),
        WRONG, "log-sum-exp",
    ),
    Case(
        "lse-nudged", "R27", "the log-sum-exp is 0.0006 too large",
        (swap(BASE, EPILOGUE, "taccOgLSE[m, 0] = lse[m]", "taccOgLSE[m, 0] = lse[m] + 6e-4"),),
        WRONG, "log-sum-exp",
    ),
    Case(
        "nan-in-out", "R17", "one row of each head's first tile is NaN",
        (before_store("""
        if m_block == 0 and tidx == 0:
            row_scale[0] = Float32(float("nan"))
        """),),
        WRONG, "finite",
    ),
    Case(
        "nan-in-lse", "R17", "one log-sum-exp of each head is NaN",
        (before_store("""
        if m_block == 0 and tidx == 0:
            softmax.row_sum[0] = Float32(float("nan"))
        """),),
        WRONG, "finite",
    ),
)  # fmt: skip
