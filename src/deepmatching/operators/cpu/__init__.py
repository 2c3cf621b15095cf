"""Kernels for CPUs: compiled by Numba at their first call and kept on disk.

Each has the name and the signature of the operator that it stands behind (see ``deepmatching.operators.kernels``) and
agrees with the definition, up to rounding. Not differentiable.
"""

from deepmatching.operators.cpu.aggregation import aggregate, aggregate_and_pool
from deepmatching.operators.cpu.correlation import correlate_and_pool
from deepmatching.operators.cpu.decoding import best_pooled
from deepmatching.operators.cpu.disaggregation import disaggregate, unpool_and_disaggregate
from deepmatching.operators.cpu.gaussian import gaussian
from deepmatching.operators.cpu.geodesic import cell_graph, distance_transform, nearest_seeds
from deepmatching.operators.cpu.hog import hog_cells
from deepmatching.operators.cpu.local_models import affine_models, paint, weighted_means
from deepmatching.operators.cpu.lookups import lookup, lookup_squares
from deepmatching.operators.cpu.refinement import refinement_step
from deepmatching.operators.cpu.saliency import saliency
from deepmatching.operators.cpu.warping import warp

__all__ = [
    "affine_models",
    "aggregate",
    "aggregate_and_pool",
    "best_pooled",
    "cell_graph",
    "correlate_and_pool",
    "disaggregate",
    "distance_transform",
    "gaussian",
    "hog_cells",
    "lookup",
    "lookup_squares",
    "nearest_seeds",
    "paint",
    "refinement_step",
    "saliency",
    "unpool_and_disaggregate",
    "warp",
    "weighted_means",
]
