"""Candidates that are as right as the seed: speed alone decides about them."""

from __future__ import annotations

from avo_cute.records import Status

from .edits import Case
from .places import (
    FWD,
    MMA,
    STEP,
    after,
    before,
    instead,
    lazy_maximum,
    swap,
)  # fmt: skip

ANY = "speed"
SM90_INIT = "FlashAttentionForwardSm90.__init__"
HONEST = (
    Case(
        "tile-n-112", "-", "key tiles of 112",
        (swap("interface", "_tile_size_fwd_sm90", "elif head_dim <= 128:",
              "elif head_dim == 128:\n        return FwdConfig(128, 112, True, True)\n"
              "    elif head_dim <= 128:"),),
        Status.REJECTED, ANY,
    ),
    Case(
        "tile-n-176", "-", "key tiles of 176",
        (swap("interface", "_tile_size_fwd_sm90", "elif head_dim <= 128:",
              "elif head_dim == 128:\n        return FwdConfig(128, 176, True, True)\n"
              "    elif head_dim <= 128:"),),
        Status.ACCEPTED, ANY,
    ),
    Case(
        "p-in-shared-memory", "-", "P goes through shared memory",
        (after(FWD, SM90_INIT, "self.mma_pv_is_rs = mma_pv_is_rs", "self.mma_pv_is_rs = False"),),
        Status.REJECTED, ANY,
    ),
    Case(
        "no-overlap", "-", "no overlap of products and softmax within a warpgroup",
        (after(FWD, SM90_INIT, "self.intra_wg_overlap = intra_wg_overlap",
               "self.intra_wg_overlap = False"),),
        Status.REJECTED, ANY,
    ),
    Case(
        "one-stage", "-", "one stage of K and V: honest and slow",
        (after(FWD, SM90_INIT, "self.buffer_align_bytes = 1024", "self.num_stages = 1"),),
        Status.REJECTED, ANY,
    ),
    Case(
        "scores-twice", "-", "Q·K is computed twice: honest and much too slow",
        (after(FWD, STEP, "acc_S = mma_qk_fn(", """
        other = mma_qk_fn(B_idx=smem_pipe_read.index, wg_wait=0)
        acc_S.store((acc_S.load() + other.load()) * 0.5)
        """),),
        Status.REJECTED, ANY,
    ),
    Case(
        "lazy-maximum", "-", "the maximum moves only when it grew by 8 powers of two",
        (lazy_maximum(8.0),),
        Status.REJECTED, ANY,
    ),
    Case(
        "fewer-inf-checks", "-", "rows without keys are looked for in the first tile only: after "
        "it, with tiles of one size, no row's maximum is still minus infinity",
        (swap(FWD, MMA, "check_inf=True,", "check_inf=False,"),),
        Status.ACCEPTED, ANY,
    ),
    Case(
        "inert-store", "-", "a store that never happens",
        (before(FWD, MMA, "tile_scheduler.advance_to_next_work()", """
        if seqlen.seqlen_q < 0:
            mLSE[0, head_idx, batch_idx] = Float32(0.0)
        """),),
        Status.EQUAL, ANY,
    ),
    Case(
        "reordered", "-", "two independent statements of the epilogue change places",
        (
            instead("flash_fwd", "FlashAttentionForwardBase.epilogue", "rO.store(acc_O.load()"),
            before("flash_fwd", "FlashAttentionForwardBase.epilogue",
                   "smem_copy_atom_O = utils.get_smem_store_atom(",
                   "rO.store(acc_O.load().to(self.dtype))"),
        ),
        Status.NO_CHANGE, "the objects' hashes",
    ),
)  # fmt: skip
