"""Aggregation (AG) of four patches into one of twice their side, eq. (4) of the paper without its power."""

from torch import Tensor

from deepmatching.geometry.discretization import Links, overlap
from deepmatching.kernels.registry import operator
from deepmatching.network.operators.shifted_max import aggregation_views


@operator(differentiable=True)
def aggregation(scores: Tensor, grid: tuple[int, int], links: Links) -> Tensor:
    """Return S_{l+1}(q|p)^{1/ν} = mean over the existing children i of S_{l+1/2}(q + 2^l δ_i | p + 2^l δ_i).

    A child off the grid of reference points is missing, and the mean leaves it out (the paper's 1/4 holds inside the
    image). On the absolute lattice, a child's cell off the target map counts 0. A point without children scores 0.

    ``scores`` are S_{l+1/2}, (B, H_l, W_l, h, w), the result (B, H_{l+1}, W_{l+1}, h, w) with ``grid`` = (H_{l+1},
    W_{l+1}), and ``links`` = ``Geometry.links(l)`` lead to the children.
    """
    size = (*grid, *scores.shape[3:])
    total, existing = scores.new_zeros(scores.shape[0], *size), scores.new_zeros(grid)
    for _, parent, child in aggregation_views(size, scores.shape[1:], links):
        total[parent] += scores[child]
    for down, right, *_ in links:
        rows, columns = overlap(down, grid[0], scores.shape[1]), overlap(right, grid[1], scores.shape[2])
        if rows and columns:
            existing[rows[0], columns[0]] += 1
    return total.div_(existing.clamp_(min=1)[:, :, None, None])
