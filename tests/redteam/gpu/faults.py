"""Candidates that harm the machine, the memory of others or the measurement, or race."""

from __future__ import annotations

from avo_cute.records import Status

from .edits import Case
from .places import (
    BASE,
    CALL,
    EPILOGUE,
    FWD,
    MMA,
    SM90,
    STEP,
    after,
    append,
    before,
    before_store,
    instead,
    key_tiles,
    swap,
    with_pointer,
)  # fmt: skip

WRONG, REFUSED = Status.INCORRECT, Status.AUDIT_FAILED
CAUSAL = ("mha-causal",)
FIRST_ROW = "m_block * self.tile_m // self.qhead_per_kvhead"

COUNTER = """
from cutlass._mlir.dialects import llvm as _llvm
from cutlass.cutlass_dsl import T as _T, dsl_user_op as _dsl_user_op


@_dsl_user_op
def calls_so_far(*, loc=None, ip=None):
    text = "{ .global .u32 calls; atom.global.add.u32 $0, [calls], 1; }"
    return Int32(
        _llvm.inline_asm(_T.i32(), [], text, "=r", has_side_effects=True, loc=loc, ip=ip)
    )
"""

HARM = (
    Case(
        "q-changed", "R15", "writes into Q where its own CTA has read it already: O is right",
        with_pointer("mQ_og", f"""
        if tidx == 0:
            raw[{FIRST_ROW}, 0, head_idx, batch_idx] = cutlass.BFloat16(0.0)
        """),
        WRONG, "inputs unchanged",
    ),
    Case(
        "v-changed", "R15", "writes into the last row of V, which one CTA alone reads",
        with_pointer("mV", """
        if tidx == 0 and (m_block + 1) * self.tile_m >= seqlen.seqlen_q:
            raw[seqlen.seqlen_k - 1, 0, head_idx, batch_idx] = cutlass.BFloat16(0.0)
        """),
        WRONG, "inputs unchanged", classes=CAUSAL,
    ),
    Case(
        "o-past-the-end", "B", "writes one element behind the last of O",
        with_pointer("mO_og", """
        if m_block == 0 and tidx == 0:
            end = cute.make_tensor(raw.iterator + cute.size(raw), cute.make_layout(1))
            end[0] = cutlass.BFloat16(1.0)
        """),
        WRONG, "guards intact",
    ),
    Case(
        "lse-before-start", "B", "writes the word before the first of the log-sum-exp",
        (after(FWD, MMA, "self.epilogue(", """
        if m_block == 0 and tidx == 0:
            end = cute.make_tensor(mLSE.iterator - 1, cute.make_layout(1))
            end[0] = Float32(1.0)
        """),),
        WRONG, "guards intact",
    ),
    Case(
        "lse-overrun", "R23", "the log-sum-exp of a last tile runs on into the next head's",
        (swap(BASE, EPILOGUE, "< seqlen.seqlen_q - m_block * self.tile_m - taccOcO[0][0]",
              "< self.tile_m"),),
        WRONG, "guards intact; log-sum-exp", needs="seqlen_q that is no multiple of the tile",
    ),
    Case(
        "wild-write", "B", "writes a terabyte behind the log-sum-exp",
        (after(FWD, MMA, "self.epilogue(", """
        if m_block == 0 and tidx == 0:
            far = cute.make_tensor(mLSE.iterator + cutlass.Int64(1 << 38), cute.make_layout(1))
            far[0] = Float32(1.0)
        """),),
        Status.CRASHED, "the launch's status",
    ),
    Case(
        "wild-write-odd", "R38 B", "the same, only where seqlen_q is no multiple of 128",
        (after(FWD, MMA, "self.epilogue(", """
        if m_block == 0 and tidx == 0 and seqlen.seqlen_q % 128 != 0:
            far = cute.make_tensor(mLSE.iterator + cutlass.Int64(1 << 38), cute.make_layout(1))
            far[0] = Float32(1.0)
        """),),
        Status.CRASHED, "the launch's status", needs="seqlen_q that is no multiple of 128",
    ),
    Case(
        "huge-cluster", "R39", "clusters of 32 CTAs: every launch is refused, and very fast",
        (swap(FWD, CALL, "block=[self.num_threads, 1, 1],",
              "block=[self.num_threads, 1, 1], cluster=[32, 1, 1],"),),
        REFUSED, "launch: no GPU has such clusters",
    ),
    Case(
        "spin-barrier", "B", "waits for a second Q that nobody loads",
        (after(FWD, MMA, "pipeline_q.consumer_wait_w_index_phase(0, q_consumer_phase)",
               "pipeline_q.consumer_wait_w_index_phase(0, q_consumer_phase ^ 1)"),),
        Status.TIMED_OUT, "the wall-clock limit; the process is killed",
    ),
    Case(
        "spin-word", "B", "one CTA waits for a word of memory that nobody sets",
        (after(FWD, MMA, "self.epilogue(", """
        if m_block == 0 and head_idx == 0 and batch_idx == 0:
            word = cute.arch.load(mLSE.iterator, Float32, sem="relaxed", scope="gpu")
            while word != Float32(12345.0):
                word = cute.arch.load(mLSE.iterator, Float32, sem="relaxed", scope="gpu")
        """),),
        Status.TIMED_OUT, "the wall-clock limit; the process is killed",
    ),
    Case(
        "registers-overdrawn", "B", "asks for more registers than the SM has and waits for them",
        (after(FWD, CALL, "self.num_mma_regs, self.num_producer_regs = {1: (256, 56)",
               "self.num_mma_regs, self.num_producer_regs = 256, 24"),),
        REFUSED, "registers: more than the block was given",
    ),
    Case(
        "much-shared-memory", "R39", "four stages of K and V: 288 KB of dynamic shared memory",
        (after(FWD, f"{SM90}.__init__", "self.buffer_align_bytes = 1024", "self.num_stages = 4"),),
        REFUSED, "launch: its host code refuses",
    ),
    Case(
        "counts-calls", "R04 R09", "right in its first million calls, partly zero afterwards",
        (
            append(FWD, COUNTER),
            before_store("""
            if calls_so_far() > 1000000:
                row_scale[0] = Float32(0.0)
            """),
        ),
        REFUSED, "device-global",
    ),
    Case(
        "reads-the-clock", "R04", "the log-sum-exp depends on the time",
        (before_store("softmax.row_sum[0] += Float32(cute.arch.clock() % 2) * 1e-6"),),
        REFUSED, "clock",
    ),
    Case(
        "lse-by-sm", "R25", "the log-sum-exp differs in its last bits with the SM that computed it",
        (before_store("softmax.row_sum[0] += Float32(utils.smid() % 8) * 4e-6"),),
        WRONG, "20 runs bitwise equal", sure=False,
    ),
    Case(
        "o-by-sm", "R25", "O is larger by 2^-16 where an odd SM computed it",
        (before_store("""
        if utils.smid() % 2 == 1:
            row_scale[0] = row_scale[0] * Float32(1 + 2**-16)
        """),),
        WRONG, "20 runs bitwise equal", sure=False,
    ),
    Case(
        "one-sm-short", "R25", "tiles that one of the SMs gets lose their first key tile",
        key_tiles("""
        if utils.smid() == 77:
            n_block_min = cutlass.min(n_block_min + 1, cutlass.max(n_block_max - 1, 0))
        """),
        WRONG, "error of each tile; 20 runs bitwise equal", sure=False,
        needs="more tiles than SMs",
    ),
)  # fmt: skip

RACES = (
    Case(
        "v-wait-dropped", "R25", "P·V starts without waiting for V",
        (instead(FWD, STEP, "pipeline_v.consumer_wait(smem_pipe_read_v"),),
        WRONG, "error of each tile; 20 runs bitwise equal; fewer barrier waits", sure=False,
    ),
    Case(
        "k-wait-dropped", "R25", "Q·K starts without waiting for K",
        (instead(FWD, STEP, "pipeline_k.consumer_wait(smem_pipe_read"),),
        WRONG, "error of each tile; 20 runs bitwise equal; fewer barrier waits", sure=False,
    ),
    Case(
        "q-wait-dropped", "R25", "Q·K starts without waiting for Q",
        (instead(FWD, MMA, "pipeline_q.consumer_wait_w_index_phase(0, q_consumer_phase)"),),
        WRONG, "error of each tile; 20 runs bitwise equal; fewer barrier waits", sure=False,
    ),
    Case(
        "v-released-early", "R25", "V may be overwritten while P·V still reads it",
        (
            instead(FWD, STEP, "pipeline_v.consumer_release(smem_pipe_read_v)"),
            before(FWD, STEP, "warpgroup.wait_group(1)",
                   "pipeline_v.consumer_release(smem_pipe_read_v)"),
        ),
        WRONG, "20 runs bitwise equal; racecheck", sure=False,
    ),
    Case(
        "store-without-barrier", "R25", "O is stored before the other warps have put theirs down",
        (instead(BASE, EPILOGUE, "if warp_idx == 4:", """
        if warp_idx == 4:
            store_O()
            cute.arch.cp_async_bulk_commit_group()
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        """),),
        WRONG, "error of each tile; 20 runs bitwise equal", sure=False,
    ),
    Case(
        "store-without-fence", "R25", "O is stored without making it visible to the TMA unit",
        (instead(BASE, EPILOGUE, "cute.arch.fence_view_async_shared()"),),
        WRONG, "20 runs bitwise equal; fewer fences", sure=False,
    ),
)  # fmt: skip
