"""Aggregation (AG) of four patches into one of twice their side, eq. (4) of the paper without its power."""

from torch import Tensor

from deepmatching.geometry.discretization import Links, overlap
from deepmatching.kernels.registry import operator
from deepmatching.network.operators.shifted_max import aggregation_views


@operator(differentiable=True)
def aggregation(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """S_{l+1}(q|p)^{1/ν} = mean over the existing children i of S_{l+1/2}(q + 2^l δ_i | p + 2^l δ_i).

    A child off the grid of reference points is missing, and the mean leaves it out (the paper's 1/4 holds inside the
    image). On the absolute lattice, a child's cell off the target map counts 0. A point without children scores 0.

    Args:
        scores: S_{l+1/2}, (B, H_l, W_l, h, w).
        grid: (H_{l+1}, W_{l+1}).
        links: the four links down to the children, ``Geometry.links(l)``.

    Returns:
        (B, H_{l+1}, W_{l+1}, h, w).
    """
    below, window = (scores.shape[1], scores.shape[2]), (scores.shape[3], scores.shape[4])
    total = scores.new_zeros(scores.shape[0], *grid, *window)
    for _, parent, child in aggregation_views(grid, below, window, links):
        total[parent] += scores[child]
    return total.div_(_existing_children(scores, grid, links)[:, :, None, None])


def _existing_children(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """Number of children of each point that are on the grid of ``scores``, at least 1: (H_{l+1}, W_{l+1})."""
    count = scores.new_zeros(grid)
    for down, right, *_ in links:
        rows, columns = overlap(down, grid[0], scores.shape[1]), overlap(right, grid[1], scores.shape[2])
        if rows and columns:
            count[rows[0], columns[0]] += 1
    return count.clamp_(min=1)
