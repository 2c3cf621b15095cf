"""CPU kernels of ``deepmatching.flow.operators``."""
