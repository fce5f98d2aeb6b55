"""How FlashAttention-4's forward is compiled for one workload, on a machine without a GPU.

`prepare` and `compile` run inside the sandbox, in the candidate's process; `arguments` is also
called by the engine, so this module imports nothing heavy at its top.
"""

import os
import sys


def prepare(target):
    """Stand in for the GPU that the candidate's host code asks about, before it is imported."""
    arch = target["arch"].removeprefix("sm_").rstrip("af")
    os.environ["FLASH_ATTENTION_ARCH"] = f"sm_{arch}"
    os.environ["FLASH_ATTENTION_NUM_SMS"] = str(target["sms"])
    import cutlass.utils
    import cutlass.utils.hardware_info
    import torch

    # FA4 switches 2-CTA forward off under a CUDA 12 torch. The artifact must not depend on which
    # torch flavour the build machine happens to have.
    torch.version.cuda = "13.0"
    torch.cuda.get_device_capability = lambda *_, **__: (int(arch[:-1]), int(arch[-1]))
    torch.cuda.is_available = lambda: False

    class TargetInfo:
        """What the persistent tile schedulers ask the driver for."""

        def __init__(self, device_id=0):
            self.device_id = device_id

        def get_device_multiprocessor_count(self):
            return target["sms"]

        def get_max_active_clusters(self, cluster_size, stream=None):
            return target["sms"] // cluster_size

        def get_l2_cache_size_in_bytes(self):
            return target["l2_bytes"]

    cutlass.utils.HardwareInfo = cutlass.utils.hardware_info.HardwareInfo = TargetInfo


def compile(params, target):
    """The compiled function that FA4's own host code asks for.

    Workloads for which it asks for the same compilation get the same object, because its own
    compile key decides.
    """
    import flash_attn.cute.interface  # noqa: F401  (its attribute of this name may be a function)
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    forward = sys.modules["flash_attn.cute.interface"]._flash_attn_fwd
    if not isinstance(getattr(forward, "compile_cache", None), Asked):
        forward.compile_cache = Asked()
    forward.compile_cache.last = None
    with FakeTensorMode():
        q, k, v = (
            torch.empty(*shape, dtype=torch.bfloat16, device="cuda") for shape in _qkv(params)
        )
        forward(q, k, v, causal=params["causal"], return_lse=True)
    if forward.compile_cache.last is None:
        raise RuntimeError("_flash_attn_fwd compiled nothing through its compile_cache")
    return forward.compile_cache[forward.compile_cache.last]


def arguments(params, target):
    """One call of the object: FA4's own order (`_flash_attn_fwd`'s call in interface.py).

    The names are those of the kernel classes' `__call__`; the stream comes from the environment.
    `params` may hold a "scale" of its own: it is an argument and asks for no other compilation.
    """
    none = ("none",)
    q, k, v = (("tensor", shape, "bfloat16") for shape in _qkv(params))
    lse = ("tensor", (params["batch"], params["heads"], params["seqlen_q"]), "float32")
    scale = ("float", params.get("scale", params["head_dim"] ** -0.5))
    optional = [none] * 8  # cu_seqlens and seqused of q and k, page table, window, learnable sink
    aux = ("tuple", [none, none])
    on_sm100 = target["family"] == "sm100"
    return [
        *(q, k, v, q, lse, scale),
        *optional,
        *([none] if on_sm100 else []),  # descale factors
        none,  # block-sparse tensors
        aux,
        *([none] * (7 if on_sm100 else 2)),  # the scheduler's tensors
        *([("int", params["seqlen_q"])] if on_sm100 else []),  # max_seqlen_q
    ]


class Asked(dict):
    """A compile cache that remembers which key was asked for last."""

    last = None

    def __contains__(self, key):
        self.last = key
        return super().__contains__(key)


def _qkv(params):
    batch, head_dim = params["batch"], params["head_dim"]
    keys = (batch, params["seqlen_k"], params["kv_heads"], head_dim)
    return (batch, params["seqlen_q"], params["heads"], head_dim), keys, keys
