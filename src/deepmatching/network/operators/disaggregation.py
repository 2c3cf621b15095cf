"""Disaggregation (DA), the reverse of aggregation, eq. (5) of the paper."""

from torch import Tensor

from deepmatching.geometry.discretization import Links
from deepmatching.kernels.registry import operator
from deepmatching.network.operators.shifted_max import aggregation_views, reversed_views, shifted_max


@operator(differentiable=True)
def disaggregation(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """Return Q_{l+1/2}(q|p) = max { Q_{l+1}(q − 2^l δ_i | p − 2^l δ_i), i = 1…4 }.

    Every child takes the best of its parents' scores, or −∞ without a parent: a point between the large patches of a
    small image, or, on the absolute lattice, a cell that no parent's map covers. The first parent in raster order wins
    ties.

    ``scores`` are Q_{l+1}, (B, H_{l+1}, W_{l+1}, h, w), the result (B, H_l, W_l, h, w) with ``grid`` = (H_l, W_l), and
    ``links`` = ``Geometry.links(l)`` lead to the children.
    """
    size = (*grid, *scores.shape[3:])
    views = reversed_views(aggregation_views(scores.shape[1:], size, links))
    return shifted_max(scores, (scores.shape[0], *size), views)[0]
