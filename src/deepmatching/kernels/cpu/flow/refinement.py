"""One step of variational refinement: a linear system, and its red-black successive over-relaxation.

See ``deepmatching.flow.refinement``. The even and the odd columns of a row are stored apart, so that all neighbours of
the pixels that are updated together lie side by side. Arrays are (…, H + 2, 2, n) with an empty row above and below and
an empty (0) first and last cell: pixel (x, y) is at [y + 1, x % 2, x // 2 + 1].
"""

import numpy as np
from torch import Tensor

from deepmatching.kernels.cpu.compilation import helper, kernel
from deepmatching.kernels.cpu.flow.linear_system import linear_system
from deepmatching.kernels.cpu.running import arrays_of, run_in_threads

BAND = 48  #: rows that are relaxed together
DEPTH = 12  #: half-iterations for each visit to a band
EMPTY = np.float32(0)


def refinement_step(
    flow: Tensor, start: Tensor, image0: Tensor, image1: Tensor, smoothness: Tensor,
    gamma: float, hold: float, iterations: int, omega: float,
) -> None:  # fmt: skip
    """See :func:`deepmatching.flow.operators.refinement_step.refinement_step`."""
    first, second, weights = arrays_of(image0, image1, smoothness)
    result = flow.detach().numpy()
    equations = linear_system(first, second, result, start.detach().numpy(), weights, gamma, hold)
    relax(equations, iterations, omega, result)


def relax(equations: tuple[np.ndarray, ...], iterations: int, omega: float, flow: np.ndarray) -> None:
    """Add d to the flow: d ← d + ω (M⁻¹ (b + Σ_n s_n d_n) − d) over the even, then the odd pixels, from d = 0.

    A band of rows is copied with as many rows around it as there are half-iterations in one visit. The outermost of
    these lack a neighbour and are discarded. The result is that of passes over the whole image, but a band stays in the
    cache, and threads may work on different bands.

    The equations are the upper triangle of M⁻¹ (3, …), b (2, …), and the weights s between column x and x + 1 and
    between row y and y + 1 (…); the flow is (2, H, W).
    """
    found, next_found = np.zeros_like(equations[1]), np.zeros_like(equations[1])
    height = found.shape[1] - 2
    for start in range(0, 2 * iterations, DEPTH):
        depth = min(DEPTH, 2 * iterations - start)
        run_in_threads(_relax_bands, -(-height // BAND), *equations, start, depth, np.float32(omega), found, next_found)
        found, next_found = next_found, found
    for q in range(2):
        columns = flow[:, :, q::2]
        columns += found[:, 1:-1, q, 1 : 1 + columns.shape[2]]


@kernel
def _relax_bands(begin, end, inverse, right, across, along, start, depth, omega, found, result):
    """Do the half-iterations ``start`` … ``start`` + ``depth`` − 1 of bands of ``BAND`` rows."""
    height, n = found.shape[1] - 2, found.shape[3]
    d = np.zeros((2, BAND + 2 * depth + 2, 2, n), dtype=np.float32)
    sums = np.zeros((2, n), dtype=np.float32)
    for band in range(begin, end):
        first, last = band * BAND, min((band + 1) * BAND, height)
        top, bottom = max(0, first - depth), min(height, last + depth)
        d[:, bottom - top + 1] = EMPTY
        for c in range(2):
            for y in range(top, bottom):
                _copy(found[c, y + 1], d[c, y - top + 1])
        for t in range(depth):
            margin = depth - 1 - t
            for y in range(max(0, first - margin), min(height, last + margin)):
                _relax_row(inverse, right, across, along, y + 1, d, y - top + 1, (start + t + y) % 2, omega, sums)
        for c in range(2):
            for y in range(first, last):
                _copy(d[c, y - top + 1], result[c, y + 1])


@helper
def _copy(source, target):
    """Copy a row, (2, n). Compiling an assignment of arrays takes a second."""
    for q in range(2):
        for i in range(target.shape[1]):
            target[q, i] = source[q, i]


@helper
def _relax_row(inverse, right, across, along, y, d, r, q, omega, sums):
    """Update the even (q = 0) or odd columns of row y, which is row r of d."""
    here, other = across[y, q], across[y, 1 - q]
    for c in range(2):
        beside = d[c, r, 1 - q]
        if q == 0:
            _pull(right[c, y, q][1:], other, beside, here[1:], beside[1:], sums[c][1:])
        else:
            _pull(right[c, y, q], other, beside, here, beside[1:], sums[c][:-1])
        _add(along[y - 1, q], d[c, r - 1, q], along[y, q], d[c, r + 1, q], sums[c])
    for c in range(2):
        _update(inverse[c, y, q], inverse[c + 1, y, q], sums[0], sums[1], omega, d[c, r, q])


# LLVM vectorises only loops over whole rows, from 0 on, with one result each and few arrays to compare for overlap.
# Empty cells stay 0 = 0 + 0 · 0.


@helper
def _pull(right, weight0, value0, weight1, value1, sums):
    """Set sums = right + weight0 · value0 + weight1 · value1."""
    for i in range(sums.shape[0]):
        sums[i] = right[i] + weight0[i] * value0[i] + weight1[i] * value1[i]


@helper
def _add(weight0, value0, weight1, value1, sums):
    """Add weight0 · value0 + weight1 · value1 to the sums."""
    for i in range(sums.shape[0]):
        sums[i] += weight0[i] * value0[i] + weight1[i] * value1[i]


@helper
def _update(inverse0, inverse1, sum0, sum1, omega, value):
    """Add ω (inverse0 · sum0 + inverse1 · sum1 − value) to the value."""
    for i in range(value.shape[0]):
        value[i] += omega * (inverse0[i] * sum0[i] + inverse1[i] * sum1[i] - value[i])
