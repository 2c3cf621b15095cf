"""Kernels for CUDA: written in Triton, compiled at their first call.

Each has the name and the signature of the operator that it stands behind (see ``deepmatching.operators.kernels``). The
paper's operators carry gradients; those of inference do not. Importing this package raises ImportError where Triton is
not installed.
"""

from deepmatching.operators.gpu.aggregation import aggregation
from deepmatching.operators.gpu.contexts import compare_contexts, windows
from deepmatching.operators.gpu.correlation import correlate_and_pool
from deepmatching.operators.gpu.correlation_gradient import correlation
from deepmatching.operators.gpu.decoding import best_pooled, decode_pooled
from deepmatching.operators.gpu.disaggregation import disaggregation
from deepmatching.operators.gpu.evidence import gather_evidence
from deepmatching.operators.gpu.fused import (
    aggregate,
    aggregate_and_pool,
    disaggregate,
    unpool_and_disaggregate,
)
from deepmatching.operators.gpu.gaussian import gaussian
from deepmatching.operators.gpu.geodesic import cell_graph, distance_transform, nearest_seeds
from deepmatching.operators.gpu.hog import hog_cells
from deepmatching.operators.gpu.local_models import affine_models, paint, weighted_means
from deepmatching.operators.gpu.lookups import lookup
from deepmatching.operators.gpu.max_pooling import max_pooling
from deepmatching.operators.gpu.power import power
from deepmatching.operators.gpu.refinement import refinement_step
from deepmatching.operators.gpu.saliency import saliency
from deepmatching.operators.gpu.unpooling import unpooling
from deepmatching.operators.gpu.warping import warp

__all__ = [
    "affine_models",
    "aggregate",
    "aggregate_and_pool",
    "aggregation",
    "best_pooled",
    "cell_graph",
    "compare_contexts",
    "correlate_and_pool",
    "correlation",
    "decode_pooled",
    "disaggregate",
    "disaggregation",
    "distance_transform",
    "gather_evidence",
    "gaussian",
    "hog_cells",
    "lookup",
    "max_pooling",
    "nearest_seeds",
    "paint",
    "power",
    "refinement_step",
    "saliency",
    "unpool_and_disaggregate",
    "unpooling",
    "warp",
    "weighted_means",
    "windows",
]
