"""CUDA kernels of ``deepmatching.flow.operators``."""
