"""The null vector of a small matrix, which one program holds. The definition takes a hundred launches."""

import triton
import triton.language as tl
from torch import Tensor

from deepmatching.kernels import constants
from deepmatching.kernels.gpu.indexing import fetch, launch

RELATIVE = tl.constexpr(constants.NULL_TINY)
SQUARINGS = tl.constexpr(constants.NULL_SQUARINGS)


@triton.jit
def _null_vector(matrix, vector, number, SIDE: tl.constexpr):
    """Invert a matrix of up to SIDE × SIDE by Gauss and Jordan, square the inverse, and store its longest column."""
    i = tl.arange(0, SIDE)
    row, column = i[:, None], i[None, :]
    on, diagonal = (row < number) & (column < number), row == column
    left = fetch(matrix + row * number + column, on)
    left += tl.where(diagonal & on, RELATIVE * tl.sum(tl.where(diagonal, left, 0.0)) + RELATIVE * RELATIVE, 0.0)
    right = tl.where(diagonal & on, 1.0, 0.0).to(left.dtype)
    for k in range(number):
        factors = tl.sum(tl.where(column == k, left, 0.0), axis=1) - tl.where(i == k, 1.0, 0.0)
        pivots = tl.sum(tl.where(row == k, left, 0.0), axis=0)
        pivot = tl.sum(tl.where(i == k, pivots, 0.0), axis=0)
        inverses = tl.sum(tl.where(row == k, right, 0.0), axis=0)
        left -= factors[:, None] * (pivots / pivot)[None, :]
        right -= factors[:, None] * (inverses / pivot)[None, :]
    for _ in tl.static_range(SQUARINGS):
        right = right / tl.sqrt(tl.sum(right * right))
        right = tl.sum(right[:, :, None] * right[None, :, :], axis=1)
    longest = tl.argmax(tl.sum(right * right, axis=0), axis=0)
    found = tl.sum(tl.where(column == longest, right, 0.0), axis=1)
    tl.store(vector + i, found / tl.sqrt(tl.sum(found * found, axis=0)), mask=i < number)


def null_vector(matrix: Tensor) -> Tensor:
    """See :func:`deepmatching.flow.operators.null_vector.null_vector`."""
    matrix = matrix.contiguous()
    vector = matrix.new_empty(len(matrix))
    launch(_null_vector, (1,), matrix, vector, len(matrix), SIDE=triton.next_power_of_2(len(matrix)), num_warps=4)
    return vector
