"""y = softmax(x) along the rows of a matrix: bf16 in and out, fp32 in between.

One thread group per row. Every thread loads its part of the row once, in 128-bit pieces that lie
side by side across the group, and keeps it in registers: the row is read once and written once,
which is all the memory traffic there has to be. Maximum and sum go through warp shuffles and, for
groups wider than a warp, through one or two words of shared memory per warp.

The file tells its story in this order: decisions as data, the class with what is known at compile
time, host launch, kernel, cached compile, op with its checks, public function.
"""

import functools
import math
import operator
from typing import NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, const_expr
from cutlass.cute.nvgpu import CacheEvictionPriority, CopyG2ROp, CopyR2GOp, StoreCacheMode

LOG2_E = math.log2(math.e)
MAX_COLS = 16384
COL_MULTIPLE = 8  # elements in 128 bits: every vector width used here divides it


class Tuning(NamedTuple):
    """What the kernel decides by shape. Every combination gives a softmax; they differ in speed.

    Only "fold" narrows what may come in: the shift is rounded at the size of x, so |x| must stay
    below 1e4 where "subtract" takes every finite number.
    """

    threads_per_row: int  # a multiple of the warp size
    rows_per_cta: int
    vector: int  # elements in one load or store
    reduction: str  # "online": (max, sum) pairs meet once; "two-step": first max, then sum
    normalise: str  # "product" with 1/sum; "exponent": a second exponential, of x - max - log(sum)
    exponent: str  # "subtract": (x - max)*log2(e); "fold": x*log2(e) - max*log2(e), one FMA
    load: str  # L1: "normal", "first" (evict first) or "bypass" (do not allocate)
    store: str  # L2: "back" (normal write back) or "streaming" (evict first)


# Rows up to so many columns -> how to treat them. First match wins.
_TUNING = {
    4096: {
        "threads_per_row": 128,
        "rows_per_cta": 1,
        "vector": 8,
        "reduction": "online",
        "normalise": "product",
        "exponent": "subtract",
        "load": "normal",
        "store": "back",
    },
    16384: {
        "threads_per_row": 512,
        "rows_per_cta": 1,
        "vector": 8,
        "reduction": "online",
        "normalise": "product",
        "exponent": "subtract",
        "load": "normal",
        "store": "back",
    },
}

_LOAD = {
    "normal": CacheEvictionPriority.EVICT_NORMAL,
    "first": CacheEvictionPriority.EVICT_FIRST,
    "bypass": CacheEvictionPriority.NO_ALLOCATE,
}
_STORE = {"back": StoreCacheMode.WRITE_BACK, "streaming": StoreCacheMode.STREAMING}


class RowSoftmax:
    """Softmax of rows of exactly `cols` columns; only the number of rows is left to run time."""

    def __init__(self, cols: int, tuning: Tuning):
        self.cols = cols
        self.tuning = tuning
        self.warps_per_row = tuning.threads_per_row // cute.arch.WARP_SIZE
        self.threads = tuning.threads_per_row * tuning.rows_per_cta
        stride = tuning.threads_per_row * tuning.vector
        self.vectors = -(-cols // stride)  # per thread
        self.has_tail = cols % stride != 0

    @cute.jit
    def __call__(self, mX: cute.Tensor, mY: cute.Tensor, stream):
        self.kernel(mX, mY).launch(
            grid=[cute.ceil_div(mX.shape[0], self.tuning.rows_per_cta), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mY: cute.Tensor):
        tidx, _, _ = cute.arch.thread_idx()
        bidx, _, _ = cute.arch.block_idx()
        row_in_cta = tidx // self.tuning.threads_per_row
        row = bidx * self.tuning.rows_per_cta + row_in_cta
        sMax, sSum = self.allocate_partials()
        if const_expr(sMax is not None):
            sMax, sSum = sMax[None, row_in_cta], sSum[None, row_in_cta]

        # Threads past the last row or column take part in every reduction with -inf.
        rX = cute.make_rmem_tensor((self.tuning.vector, self.vectors), BFloat16)
        rX.fill(-BFloat16.inf)
        if row < mX.shape[0]:
            self.load_row(mX[row, None], rX, tidx % self.tuning.threads_per_row)

        x = rX.load().to(Float32)
        if const_expr(self.tuning.reduction == "online"):
            y = self.softmax_online(x, sMax, sSum)
        else:
            y = self.softmax_two_step(x, sMax, sSum)
        rX.store(y.to(BFloat16))

        if row < mX.shape[0]:
            self.store_row(rX, mY[row, None], tidx % self.tuning.threads_per_row)

    @cute.jit
    def softmax_online(self, x: cute.TensorSSA, sMax, sSum):
        """Each warp works relative to its own maximum; one meeting corrects for the row's."""
        warp_max = self.warp_max(x)
        e = self.exponentials(x, finite(warp_max))
        row_max, row_sum = finite(warp_max), self.warp_sum(e)
        correction = Float32(1.0)
        if const_expr(self.warps_per_row > 1):
            row_max, row_sum = self.meet_online(warp_max, row_sum, sMax, sSum)
            # From warp_max itself: a warp of -inf must get 0 here, however low the row's maximum.
            correction = cute.math.exp2((warp_max - row_max) * LOG2_E, fastmath=True)
        if const_expr(self.tuning.normalise == "exponent"):
            return self.exponentials(x, row_max, row_sum)
        return e * (correction * cute.arch.rcp_approx(row_sum))

    @cute.jit
    def softmax_two_step(self, x: cute.TensorSSA, sMax, sSum):
        """The row's maximum is known before the first exponential is taken."""
        row_max = self.warp_max(x)
        if const_expr(self.warps_per_row > 1):
            row_max = self.meet(row_max, cute.arch.fmax, sMax)
        row_max = finite(row_max)
        e = self.exponentials(x, row_max)
        row_sum = self.warp_sum(e)
        if const_expr(self.warps_per_row > 1):
            row_sum = self.meet(row_sum, operator.add, sSum)
        if const_expr(self.tuning.normalise == "exponent"):
            return self.exponentials(x, row_max, row_sum)
        return e * cute.arch.rcp_approx(row_sum)

    def exponentials(self, x: cute.TensorSSA, row_max, row_sum=None):
        """e^(x - row_max), or divided by `row_sum`: a sum's logarithm joins the exponent."""
        log_sum = 0.0 if row_sum is None else cute.math.log2(row_sum, fastmath=True)
        if self.tuning.exponent == "fold":
            return cute.math.exp2(x * LOG2_E - (row_max * LOG2_E + log_sum), fastmath=True)
        scaled = (x - row_max) * LOG2_E
        return cute.math.exp2(scaled if row_sum is None else scaled - log_sum, fastmath=True)

    @cute.jit
    def meet(self, value: Float32, op: cutlass.Constexpr, sPartial: cute.Tensor):
        """Combine one value per warp over the warps of a row; every thread gets the result."""
        warp = cute.arch.warp_idx() % self.warps_per_row  # a shuffle: all lanes take part
        if cute.arch.lane_idx() == 0:
            sPartial[warp] = value
        cute.arch.barrier()
        result = sPartial[0]
        for other in cutlass.range_constexpr(1, self.warps_per_row):
            result = op(result, sPartial[other])
        return result

    @cute.jit
    def meet_online(self, warp_max: Float32, warp_sum: Float32, sMax, sSum):
        """Row maximum and row sum from one (maximum, sum) pair per warp, with one barrier."""
        warp = cute.arch.warp_idx() % self.warps_per_row  # a shuffle: all lanes take part
        if cute.arch.lane_idx() == 0:
            sMax[warp] = warp_max
            sSum[warp] = warp_sum
        cute.arch.barrier()
        row_max = sMax[0]
        for other in cutlass.range_constexpr(1, self.warps_per_row):
            row_max = cute.arch.fmax(row_max, sMax[other])
        row_max = finite(row_max)
        row_sum = Float32(0.0)
        for other in cutlass.range_constexpr(self.warps_per_row):
            scale = cute.math.exp2((sMax[other] - row_max) * LOG2_E, fastmath=True)
            row_sum += sSum[other] * scale
        return row_max, row_sum

    def warp_max(self, x: cute.TensorSSA):
        value = x.reduce(cute.ReductionOp.MAX, init_val=-Float32.inf, reduction_profile=0)
        return cute.arch.warp_reduction(value, cute.arch.fmax)

    def warp_sum(self, e: cute.TensorSSA):
        value = e.reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)
        return cute.arch.warp_reduction(value, operator.add)

    @cute.jit
    def load_row(self, gX: cute.Tensor, rX: cute.Tensor, thread):
        atom = cute.make_copy_atom(
            CopyG2ROp(),
            BFloat16,
            num_bits_per_copy=self.tuning.vector * BFloat16.width,
            l1c_evict_priority=_LOAD[self.tuning.load],
        )
        pieces = cute.zipped_divide(gX, (self.tuning.vector,))
        for i in cutlass.range_constexpr(self.vectors):
            piece = thread + i * self.tuning.threads_per_row
            if self.inside(i, piece):
                cute.copy(atom, pieces[None, piece], rX[None, i])

    @cute.jit
    def store_row(self, rY: cute.Tensor, gY: cute.Tensor, thread):
        atom = cute.make_copy_atom(
            CopyR2GOp(),
            BFloat16,
            num_bits_per_copy=self.tuning.vector * BFloat16.width,
            store_cache_mode=_STORE[self.tuning.store],
        )
        pieces = cute.zipped_divide(gY, (self.tuning.vector,))
        for i in cutlass.range_constexpr(self.vectors):
            piece = thread + i * self.tuning.threads_per_row
            if self.inside(i, piece):
                cute.copy(atom, rY[None, i], pieces[None, piece])

    def inside(self, i: int, piece):
        """Only the last piece of a thread can lie past the end of the row."""
        if self.has_tail and i == self.vectors - 1:
            return piece < self.cols // self.tuning.vector
        return True

    @cute.jit
    def allocate_partials(self):
        """Shared memory for one maximum and one sum per warp; none where a warp has a row."""
        if const_expr(self.warps_per_row == 1):
            return None, None
        smem = cutlass.utils.SmemAllocator()
        layout = cute.make_layout((self.warps_per_row, self.tuning.rows_per_cta))
        return (
            smem.allocate_tensor(Float32, layout, byte_alignment=16),
            smem.allocate_tensor(Float32, layout, byte_alignment=16),
        )


@cute.jit
def finite(maximum: Float32):
    """A maximum that can be subtracted: -inf (nothing but -inf so far) becomes 0."""
    return maximum if maximum != -Float32.inf else Float32(0.0)


def choose(cols: int) -> Tuning:
    """The tuning for rows of `cols` columns; it never depends on the number of rows."""
    return Tuning(**next(_TUNING[limit] for limit in _TUNING if cols <= limit))


@functools.cache
def compile_row_softmax(cols: int):
    """The compiled kernel for rows of `cols` columns: f(x, out), any number and stride of rows."""
    rows = cute.sym_int()
    x, out = (
        cute.runtime.make_fake_tensor(
            BFloat16,
            (rows, cols),
            stride=(cute.sym_int64(divisibility=COL_MULTIPLE), 1),
            assumed_align=16,
        )
        for _ in range(2)
    )
    return cute.compile(
        RowSoftmax(cols, choose(cols)),
        x,
        out,
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
        options="--enable-tvm-ffi",
    )


def _row_softmax(x, out) -> None:
    """Write softmax(x) to `out`, on the current stream; `out` may be `x`."""
    import torch  # here, so that compiling does not pay for it

    for name, tensor in (("x", x), ("out", out)):
        if tensor.dim() != 2 or tensor.dtype != torch.bfloat16 or not tensor.is_cuda:
            raise ValueError(f"{name} must be a bf16 CUDA matrix")
        if tensor.stride(1) != 1 or tensor.stride(0) % COL_MULTIPLE or tensor.data_ptr() % 16:
            raise ValueError(f"{name} must have contiguous rows that start at 16 bytes")
    if out.shape != x.shape or out.device != x.device:
        raise ValueError("out must have the shape and device of x")
    rows, cols = x.shape
    if not 0 < cols <= MAX_COLS or cols % COL_MULTIPLE:
        raise ValueError(f"columns must be a multiple of {COL_MULTIPLE} up to {MAX_COLS}")
    if rows:
        compile_row_softmax(cols)(x, out)


def row_softmax(x, out=None):
    """softmax(x) along the last dimension.

    x: bf16 CUDA tensor (rows, cols), rows contiguous and 16-byte aligned, cols a multiple of 8 up
    to 16384. A row of -inf gives NaN, as in torch. `out` receives the result; it may be x itself.
    """
    if out is None:
        import torch

        out = torch.empty_like(x)
    _row_softmax(x, out)
    return out
