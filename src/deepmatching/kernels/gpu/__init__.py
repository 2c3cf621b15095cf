"""Kernels for CUDA: written in Triton, compiled at their first call.

Each has the name and the signature of the operator that it stands behind (see ``deepmatching.kernels.registry``). The
paper's operators carry gradients; those of inference do not. Importing this package raises ImportError where Triton is
not installed.
"""

from deepmatching.kernels.gpu.flow.geodesic import cell_graph, distance_transform, nearest_seeds
from deepmatching.kernels.gpu.flow.local_models import affine_models, paint, weighted_means
from deepmatching.kernels.gpu.flow.null_vector import null_vector
from deepmatching.kernels.gpu.flow.refinement import refinement_step, warp
from deepmatching.kernels.gpu.flow.saliency import gaussian, saliency
from deepmatching.kernels.gpu.matching.aggregation import (
    aggregate,
    aggregate_and_pool,
    aggregation,
    disaggregate,
    disaggregation,
    unpool_and_disaggregate,
)
from deepmatching.kernels.gpu.matching.contexts import compare_contexts, windows
from deepmatching.kernels.gpu.matching.correlation import correlate_and_pool
from deepmatching.kernels.gpu.matching.correlation_gradient import correlation
from deepmatching.kernels.gpu.matching.decoding import best_pooled, decode_pooled
from deepmatching.kernels.gpu.matching.evidence import gather_evidence
from deepmatching.kernels.gpu.matching.maps import joined, normalised
from deepmatching.kernels.gpu.matching.pooling import max_pooling, unpooling
from deepmatching.kernels.gpu.matching.power import power
from deepmatching.kernels.gpu.matching.subpixel import refine_to_subpixel, scores_around

__all__ = [
    "affine_models", "aggregate", "aggregate_and_pool", "aggregation", "best_pooled", "cell_graph",
    "compare_contexts", "correlate_and_pool", "correlation", "decode_pooled", "disaggregate", "disaggregation",
    "distance_transform", "gather_evidence", "gaussian", "joined", "max_pooling", "nearest_seeds", "normalised",
    "null_vector", "paint", "power", "refine_to_subpixel", "refinement_step", "saliency", "scores_around",
    "unpool_and_disaggregate", "unpooling", "warp", "weighted_means", "windows",
]  # fmt: skip
