"""Kernels for CPUs: compiled by Numba at their first call and kept on disk.

Each has the name and the signature of the operator it replaces (see ``deepmatching.operators.fused``) and agrees with
it, up to rounding, for float32 tensors. Not differentiable.
"""

from deepmatching.operators.cpu.aggregation import aggregate, aggregate_and_pool
from deepmatching.operators.cpu.compilation import compiled
from deepmatching.operators.cpu.correlation import correlate_and_pool
from deepmatching.operators.cpu.decoding import best_pooled
from deepmatching.operators.cpu.disaggregation import disaggregate, unpool_and_disaggregate
from deepmatching.operators.cpu.hog import hog_cells

__all__ = [
    "aggregate",
    "aggregate_and_pool",
    "best_pooled",
    "compiled",
    "correlate_and_pool",
    "disaggregate",
    "hog_cells",
    "unpool_and_disaggregate",
]
