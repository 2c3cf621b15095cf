"""Kernels for CPUs: compiled by Numba at their first call and kept on disk.

Each has the name and the signature of the operator that it stands behind (see ``deepmatching.kernels.registry``) and
agrees with the definition, up to rounding. Not differentiable. What Numba compiles has no Python types.
"""

from deepmatching.kernels.cpu.flow.geodesic import cell_graph, distance_transform, nearest_seeds
from deepmatching.kernels.cpu.flow.linear_system import warp
from deepmatching.kernels.cpu.flow.local_models import affine_models, paint, weighted_means
from deepmatching.kernels.cpu.flow.refinement import refinement_step
from deepmatching.kernels.cpu.flow.saliency import gaussian, saliency
from deepmatching.kernels.cpu.matching.aggregation import (
    aggregate,
    aggregate_and_pool,
    disaggregate,
    unpool_and_disaggregate,
)
from deepmatching.kernels.cpu.matching.correlation import correlate_and_pool
from deepmatching.kernels.cpu.matching.decoding import best_pooled
from deepmatching.kernels.cpu.matching.hog import hog_cells

__all__ = [
    "affine_models", "aggregate", "aggregate_and_pool", "best_pooled", "cell_graph", "correlate_and_pool",
    "disaggregate", "distance_transform", "gaussian", "hog_cells", "nearest_seeds", "paint",
    "refinement_step", "saliency", "unpool_and_disaggregate", "warp", "weighted_means",
]  # fmt: skip
