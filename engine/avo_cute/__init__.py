"""avo-cute evolves CUTLASS CuTe-DSL kernels; every candidate is a git commit with its score."""

__version__ = "0.1.0"
