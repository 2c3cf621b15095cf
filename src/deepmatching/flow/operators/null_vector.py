"""The null vector of a small symmetric matrix, without a library that would wait for the device."""

import torch
from torch import Tensor

from deepmatching.kernels.constants import NULL_SQUARINGS, NULL_TINY
from deepmatching.kernels.registry import operator


@operator(cpu=(), cuda=("float64",))
def null_vector(matrix: Tensor) -> Tensor:
    """Return the unit eigenvector (n,) of the smallest eigenvalue of a symmetric matrix (n, n) that is not negative.

    M⁻¹ is squared four times. Each column is then nearly that vector, and the longest one is returned at length 1.
    """
    power = inverse(matrix)
    for _ in range(NULL_SQUARINGS):
        power = power / power.norm()
        power = power @ power
    longest = power.square().sum(dim=0).argmax()
    vector = power.index_select(1, longest[None])[:, 0]
    return vector / vector.norm()


def inverse(matrix: Tensor) -> Tensor:
    """Return the inverse of a symmetric matrix (n, n) that is not negative, by Gauss and Jordan."""
    unit = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    both = torch.cat([matrix + (NULL_TINY * matrix.diagonal().sum() + NULL_TINY**2) * unit, unit], dim=1)
    for k in range(len(matrix)):
        row = both[k] / both[k, k]
        both = torch.addr(both, both[:, k] - unit[k], row, alpha=-1)
    return both[:, len(matrix) :]
