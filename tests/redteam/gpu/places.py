"""Where in FlashAttention-4's Hopper forward the cases make their edits, and how."""

from __future__ import annotations

from .edits import Edit

FWD, BASE, SOFTMAX, MASK = "flash_fwd_sm90", "flash_fwd", "softmax", "mask"
SM90 = "FlashAttentionForwardSm90"
CALL, KERNEL, LOAD, MMA = (f"{SM90}.{name}" for name in ("__call__", "kernel", "load", "mma"))
FIRST, STEP = f"{SM90}.first_half_block_overlap", f"{SM90}.mma_one_n_block_intrawg_overlap"
LAST = f"{SM90}.last_half_block_overlap"
EPILOGUE = "FlashAttentionForwardBase.epilogue"
ONLINE, FINALIZE = "Softmax.online_softmax", "Softmax.finalize"
CAUSAL_MASK, RANGE = "AttentionMask.apply_mask", "BlockInfo.get_n_block_min_max"


def swap(file: str, scope: str, anchor: str, new: str) -> Edit:
    return Edit(file, scope, anchor, new, "swap")


def instead(file: str, scope: str, anchor: str, new: str = "pass") -> Edit:
    return Edit(file, scope, anchor, new, "instead")


def before(file: str, scope: str, anchor: str, new: str) -> Edit:
    return Edit(file, scope, anchor, new, "before")


def after(file: str, scope: str, anchor: str, new: str) -> Edit:
    return Edit(file, scope, anchor, new, "after")


def guard(file: str, scope: str, anchor: str, condition: str) -> Edit:
    return Edit(file, scope, anchor, condition, "guard")


def append(file: str, new: str) -> Edit:
    return Edit(file, "", "", new, "append")


def key_tiles(new: str) -> tuple[Edit, Edit]:
    """`new` changes n_block_min or n_block_max, for the loads and the products alike.

    It may look at m_block, head_idx, batch_idx, seqlen, and at `mX` for the shape of Q and O,
    (rows, head_dim, heads, batch).
    """
    anchor = "n_block_min, n_block_max = block_info.get_n_block_min_max(seqlen, m_block)"
    return (
        after(FWD, LOAD, anchor, new.replace("mX", "mQ")),
        after(FWD, MMA, anchor, new.replace("mX", "mO")),
    )


def lazy_maximum(threshold: float) -> Edit:
    """The running maximum moves only when it grew by more than so many powers of two."""
    new = f"""
    if cutlass.const_expr(not is_first):
        near = (row_max_cur - row_max[r]) * scale_log2 <= {threshold}
        row_max_cur = row_max[r] if near else row_max_cur
    """
    return after(SOFTMAX, ONLINE, "row_max_cur = cute.arch.warp_reduction_max(", new)


def stored_if(condition: str) -> Edit:
    """O of a tile is stored only under a condition on m_block, head_idx, batch_idx, seqlen."""
    return guard(BASE, EPILOGUE, "store_O()", condition)


def before_store(new: str) -> Edit:
    """Done with acc_O, row_scale and softmax.row_sum (the log-sum-exp) of a finished tile."""
    return before(FWD, MMA, "softmax.rescale_O(acc_O, row_scale)", new)


def with_pointer(tensor: str, new: str) -> tuple[Edit, ...]:
    """`new` runs in the MMA threads after a tile's epilogue and may use `raw`, the plain `tensor`.

    The kernel itself sees inputs and O as coordinates of TMA descriptors only.
    """
    return (
        swap(FWD, CALL, "            fastdiv_mods,", f"            fastdiv_mods, {tensor},"),
        swap(FWD, KERNEL, "fastdiv_mods=None,", "fastdiv_mods=None, raw: cute.Tensor = None,"),
        swap(FWD, KERNEL, "                fastdiv_mods,", "                fastdiv_mods, raw,"),
        swap(FWD, MMA, "fastdiv_mods=None,", "fastdiv_mods=None, raw: cute.Tensor = None,"),
        after(FWD, MMA, "self.epilogue(", new),
    )
