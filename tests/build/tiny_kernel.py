"""y = 2 x in CuTe DSL, honest and not: compiles every named variant for every named arch.

Run as `python tiny_kernel.py OUT ARCH:VARIANT...`; leaves OUT/ARCH-VARIANT.o. It needs no GPU.
Run by path in a child process, because the DSL keeps state for the life of a process.
"""

import importlib.util
import sys
from pathlib import Path

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

WORKER = Path(__file__).parents[2] / "engine" / "avo_cute" / "build" / "worker.py"
THREADS = 128
usleep = cute.ffi(name="usleep", params_types=[Int32], return_type=Int32)


class Double:
    """`variant` names what is wrong with it; "honest" has one kernel and one launch."""

    def __init__(self, variant):
        self.variant = variant

    @cute.jit
    def __call__(self, mX: cute.Tensor, mY: cute.Tensor, scale: cutlass.Float32, stream):
        blocks = cute.ceil_div(mX.shape[0], THREADS)
        if cutlass.const_expr(self.variant == "host-call"):
            usleep(Int32(1))
        if cutlass.const_expr(self.variant == "host-printf"):
            cute.printf("called with %d", mX.shape[0])
        options = {"grid": [blocks, 1, 1], "block": [THREADS, 1, 1], "stream": stream}
        if cutlass.const_expr(self.variant == "pdl"):
            options["use_pdl"] = True
        if cutlass.const_expr(self.variant == "cluster"):
            options["cluster"] = [2, 1, 1]
        if cutlass.const_expr(self.variant == "much-smem"):
            options["smem"] = 240 * 1024
        if cutlass.const_expr(self.variant == "big-block"):
            options["block"] = [2048, 1, 1]
        self.kernel(mX, mY, scale).launch(**options)
        if cutlass.const_expr(self.variant == "two-launches"):
            self.kernel(mX, mY, scale).launch(**options)
        if cutlass.const_expr(self.variant == "two-kernels"):
            self.second(mX, mY).launch(**options)

    @cute.kernel
    def kernel(self, mX: cute.Tensor, mY: cute.Tensor, scale: cutlass.Float32):
        i = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
        if i < mX.shape[0]:
            value = mX[i] * scale
            if cutlass.const_expr(self.variant == "clock"):
                value += cutlass.Float32(cute.arch.clock())
            if cutlass.const_expr(self.variant == "clock64"):
                value += cutlass.Float32(cute.arch.clock64())
            if cutlass.const_expr(self.variant == "globaltimer"):
                value += cutlass.Float32(cute.arch.globaltimer())
            if cutlass.const_expr(self.variant == "globaltimer-lo"):
                value += cutlass.Float32(cute.arch.globaltimer_lo())
            if cutlass.const_expr(self.variant == "device-printf"):
                cute.printf("%f", value)
            if cutlass.const_expr(self.variant == "device-global"):
                value += count_calls()
            mY[i] = value

    @cute.kernel
    def second(self, mX: cute.Tensor, mY: cute.Tensor):
        i = cute.arch.block_idx()[0] * THREADS + cute.arch.thread_idx()[0]
        if i < mX.shape[0]:
            mY[i] = mY[i] + mX[i]


@dsl_user_op
def count_calls(*, loc=None, ip=None):
    """How often was this called? Kept in a device variable from launch to launch."""
    text = "{ .global .f32 calls; atom.global.add.f32 $0, [calls], 0f3F800000; }"
    return cutlass.Float32(
        llvm.inline_asm(T.f32(), [], text, "=f", has_side_effects=True, loc=loc, ip=ip)
    )


def pin_host_cpu(module):
    """The build worker's own, loaded by path as the worker is."""
    spec = importlib.util.spec_from_file_location("worker", WORKER)
    worker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(worker)
    worker.pin_host_cpu(module)


def build(arch, variant, out):
    rows = cute.sym_int()
    x, y = (cute.runtime.make_fake_compact_tensor(cutlass.Float32, (rows,)) for _ in range(2))
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    compiled = cute.compile(
        Double(variant),
        x,
        y,
        cutlass.Float32(2),
        stream,
        options=f"--enable-tvm-ffi --gpu-arch {arch}",
    )
    if variant != "native-host":
        pin_host_cpu(compiled.ir_module)
    compiled.export_to_c(object_file_path=str(out), function_name="kernel")


if __name__ == "__main__":
    for name in sys.argv[2:]:
        build(*name.split(":"), Path(sys.argv[1]) / f"{name.replace(':', '-')}.o")
