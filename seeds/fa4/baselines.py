"""The libraries that FlashAttention-4 is compared with, as torch ships them.

NAMES says which there are, `bind` makes one callable. torch is imported inside the functions.
"""

NAMES = ("cudnn", "fa2")


def bind(name, params, inputs):
    """A launch of `name` on q, k, v (batch, seqlen, heads, head_dim); calling it returns (out,).

    "cudnn" is cuDNN's fused attention, "fa2" FlashAttention-2, both through torch's
    scaled_dot_product_attention with every other backend switched off: a call that the library
    cannot do raises `RuntimeError` instead of taking another way. The log-sum-exp is not computed,
    which is to the baseline's advantage.

    Raises `ValueError` for a causal mask with Sq != Sk: torch aligns it at the top left, so the
    work would be another. A `scale` in `params` multiplies the scores, else 1/sqrt(head_dim).
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "fa2": SDPBackend.FLASH_ATTENTION}
    q, k, v = (x.transpose(1, 2) for x in inputs)
    causal, shared = bool(params["causal"]), q.shape[1] != k.shape[1]
    if causal and q.shape[2] != k.shape[2]:
        raise ValueError("torch aligns a causal mask at the top left: no baseline for Sq != Sk")
    attention, backend = torch.nn.functional.scaled_dot_product_attention, backends[name]
    scale = params.get("scale")

    def launch():
        with sdpa_kernel(backend):
            out = attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=shared)
        return (out.transpose(1, 2),)

    return launch
