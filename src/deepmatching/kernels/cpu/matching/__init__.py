"""CPU kernels of ``deepmatching.network.operators``."""
