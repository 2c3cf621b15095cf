"""Disaggregation (DA), the reverse of aggregation, eq. (5) of the paper."""

from torch import Tensor

from deepmatching.geometry.discretization import Links
from deepmatching.kernels.registry import operator
from deepmatching.network.operators.shifted_max import View, aggregation_views, shifted_max


@operator(differentiable=True)
def disaggregation(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """Q_{l+1/2}(q|p) = max { Q_{l+1}(q − 2^l δ_i | p − 2^l δ_i), i = 1…4 }.

    Every child takes the best of its parents' scores, or −∞ without a parent: a point between the large patches of a
    small image, or, on the absolute lattice, a cell that no parent's map covers. The first parent in raster order wins
    ties.

    Args:
        scores: Q_{l+1}, (B, H_{l+1}, W_{l+1}, h, w).
        grid: (H_l, W_l).
        links: the four links down to the children, ``Geometry.links(l)``.

    Returns:
        Q_{l+1/2}, (B, H_l, W_l, h, w).
    """
    parents = (scores.shape[1], scores.shape[2])
    window = (scores.shape[3], scores.shape[4])
    # A child's parents come in the reverse order of the links that lead to it.
    views = [
        View(code, child, parent) for code, parent, child in reversed(aggregation_views(parents, grid, window, links))
    ]
    values, _ = shifted_max(scores, (scores.shape[0], *grid, *window), views)
    return values
