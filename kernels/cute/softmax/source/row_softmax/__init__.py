"""Row softmax in CuTe DSL: y = softmax(x) along the last dimension, bf16 in and out."""

from .softmax import row_softmax

__all__ = ["row_softmax"]
