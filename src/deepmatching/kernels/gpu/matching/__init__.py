"""CUDA kernels of ``deepmatching.network.operators``."""
