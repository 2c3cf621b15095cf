"""Triton kernels behind the operators, for CUDA tensors in float32.

Those of inference bear the names of ``deepmatching.operators.fused`` (and ``best_pooled``, ``decode_pooled`` and
``hog_cells``); those of training are called ``differentiable_…`` and stand behind the plain operators. See
``deepmatching.operators.kernels``. Importing this package raises ImportError where Triton is not installed.
"""

from deepmatching.operators.gpu.aggregation import differentiable_aggregation
from deepmatching.operators.gpu.correlation import correlate_and_pool, half_precision_scores
from deepmatching.operators.gpu.correlation_gradient import differentiable_correlation
from deepmatching.operators.gpu.decoding import best_pooled, decode_pooled
from deepmatching.operators.gpu.disaggregation import differentiable_disaggregation
from deepmatching.operators.gpu.fused import (
    aggregate,
    aggregate_and_pool,
    disaggregate,
    unpool_and_disaggregate,
)
from deepmatching.operators.gpu.hog import hog_cells
from deepmatching.operators.gpu.max_pooling import differentiable_max_pooling
from deepmatching.operators.gpu.power import differentiable_power
from deepmatching.operators.gpu.unpooling import differentiable_unpooling

__all__ = [
    "aggregate",
    "aggregate_and_pool",
    "best_pooled",
    "correlate_and_pool",
    "decode_pooled",
    "differentiable_aggregation",
    "differentiable_correlation",
    "differentiable_disaggregation",
    "differentiable_max_pooling",
    "differentiable_power",
    "differentiable_unpooling",
    "disaggregate",
    "half_precision_scores",
    "hog_cells",
    "unpool_and_disaggregate",
]
