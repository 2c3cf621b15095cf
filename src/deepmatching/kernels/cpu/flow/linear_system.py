"""Warping, and the linear system of one step of variational refinement (see ``deepmatching.flow.refinement``).

Loops go over whole rows and have one result each, because LLVM vectorises those. Rows have two more pixels on each
side, which repeat the outermost.
"""

import numpy as np
import torch
from torch import Tensor

from deepmatching.kernels.constants import EPSILON, ZETA
from deepmatching.kernels.cpu.compilation import helper, kernel
from deepmatching.kernels.cpu.matching.pooling import vector_width
from deepmatching.kernels.cpu.running import arrays_of, run_in_threads

BAND = 16  #: rows that are done together
SLAB = 8  #: bands of the warped image that are held at once, at least
MARGIN = 4  #: rows on each side that second derivatives reach
ZERO, QUARTER, HALF, ONE = np.float32(0), np.float32(0.25), np.float32(0.5), np.float32(1)
DERIVATIVE_TAPS = np.float32(8 / 12), np.float32(-1 / 12)  #: of (1, −8, 0, 8, −1) / 12, from the centre on


def warp(image0: Tensor, image1: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`deepmatching.flow.operators.refinement_step.warp`."""
    first, second, field = arrays_of(image0, image1, flow)
    mean, difference, inside = map(torch.from_numpy, warp_rows(first, second, field, 0, image0.shape[1]))
    return mean, difference, inside


def warp_rows(
    image0: np.ndarray, image1: np.ndarray, flow: np.ndarray, top: int, bottom: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return :func:`warp` of the rows from ``top`` to ``bottom`` − 1."""
    channels, rows, width = image0.shape[0], bottom - top, image0.shape[2]
    mean, difference = (np.empty((channels, rows, width), dtype=np.float32) for _ in range(2))
    inside = np.empty((rows, width), dtype=np.float32)
    run_in_threads(_warp, rows, top, image0, image1, flow, mean, difference, inside)
    return mean, difference, inside


@kernel
def _warp(begin, end, top, image0, image1, flow, mean, difference, inside):
    channels, height, width = image1.shape
    for r in range(begin, end):
        y = top + r
        for x in range(inside.shape[1]):
            u, v = np.float32(x) + flow[0, y, x], np.float32(y) + flow[1, y, x]
            inside[r, x] = ONE if (u >= ZERO and v >= ZERO and u <= width - 1 and v <= height - 1) else ZERO
            u, v = min(max(u, ZERO), np.float32(width - 1)), min(max(v, ZERO), np.float32(height - 1))
            j, i = int(u), int(v)
            p, q = u - np.float32(j), v - np.float32(i)
            k, l = min(j + 1, width - 1), min(i + 1, height - 1)
            for c in range(channels):
                above = image1[c, i, j] + p * (image1[c, i, k] - image1[c, i, j])
                below = image1[c, l, j] + p * (image1[c, l, k] - image1[c, l, j])
                value = above + q * (below - above)
                mean[c, r, x] = HALF * (image0[c, y, x] + value)
                difference[c, r, x] = value - image0[c, y, x]


def linear_system(
    image0: np.ndarray, image1: np.ndarray, flow: np.ndarray, start: np.ndarray, smoothness: np.ndarray,
    gamma: float, hold: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return M⁻¹, b and the weights s for :func:`deepmatching.kernels.cpu.flow.refinement.relax`.

    Images are (C, H, W) and (C, H', W'), the flow and that before the first step (2, H, W), ``smoothness`` (H, W): α λ.
    """
    channels, height, width = image0.shape
    shape = (height + 2, 2, vector_width.py_func((width + 1) // 2 + 2))
    inverse, right = np.zeros((3, *shape), dtype=np.float32), np.zeros((2, *shape), dtype=np.float32)
    across, along = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    weights = np.zeros((2, height, width), dtype=np.float32)
    run_in_threads(_smoothness_weights, height, flow, smoothness, np.float32(EPSILON**2), weights, across, along)
    numbers = [np.float32(n) for n in (gamma / channels, hold, 3 / channels, ZETA**2, EPSILON**2)]
    slab = BAND * max(SLAB, 2 * torch.get_num_threads())
    for first in range(0, height, slab):
        last = min(first + slab, height)
        top, bottom = max(first - MARGIN, 0), min(last + MARGIN, height)
        warped = warp_rows(image0, image1, flow, top, bottom)
        run_in_threads(
            _system_bands, -(-(last - first) // BAND), first, last, top,
            *warped, flow, start, weights, *numbers, inverse, right,
        )  # fmt: skip
    return inverse, right, across, along


@kernel
def _smoothness_weights(begin, end, flow, smoothness, tiny, weights, across, along):
    """Fill in s between column x and x + 1, and row y and y + 1: α λ Ψ′(|∇u|² + |∇v|²), half-way between the two."""
    height, width = smoothness.shape
    slopes = np.empty((2, width), dtype=np.float32)  # of u and v, along the border between the two pixels
    for y in range(begin, end):
        up, down = max(y - 1, 0), min(y + 1, height - 1)
        for c in range(2):
            _along_border(flow[c, up], flow[c, down], slopes[c])
        u, v, start, weight = flow[0, y], flow[1, y], smoothness[y], weights[0, y]
        _weigh(u, v, u[1:], v[1:], slopes, start, start[1:], tiny, weight[: width - 1])
        _store(weight, across[y + 1])
        if y + 1 < height:
            for c in range(2):
                _across_border(flow[c, y], flow[c, down], slopes[c])
            _weigh(u, v, flow[0, down], flow[1, down], slopes, start, smoothness[down], tiny, weights[1, y])
            _store(weights[1, y], along[y + 1])


@helper
def _along_border(above, below, result):
    """Take four times the derivative along y between column x and x + 1."""
    for x in range(result.shape[0]):
        result[x] = below[x] - above[x]
    for x in range(result.shape[0] - 1):
        result[x] += result[x + 1]


@helper
def _across_border(row, next_row, result):
    """Take four times the derivative along x between a row and the next, with the outermost pixels repeated."""
    last = row.shape[0] - 1
    inner, right, next_right = result[1:], row[2:], next_row[2:]
    for x in range(right.shape[0]):
        inner[x] = right[x] - row[x] + next_right[x] - next_row[x]
    second, before_last = min(1, last), max(last - 1, 0)
    result[0] = row[second] - row[0] + next_row[second] - next_row[0]
    result[last] = row[last] - row[before_last] + next_row[last] - next_row[before_last]


@helper
def _weigh(u, v, next_u, next_v, slopes, smoothness, next_smoothness, tiny, weights):
    """Weigh a row or column and the next; ``slopes`` are four times the derivatives the other way."""
    u_slope, v_slope = slopes[0], slopes[1]
    for x in range(weights.shape[0]):
        a, b = next_u[x] - u[x], QUARTER * u_slope[x]
        weights[x] = a * a + b * b + tiny
    for x in range(weights.shape[0]):
        a, b = next_v[x] - v[x], QUARTER * v_slope[x]
        weights[x] += a * a + b * b
    for x in range(weights.shape[0]):
        weights[x] = HALF * (smoothness[x] + next_smoothness[x]) / np.sqrt(weights[x])


@helper
def _store(row, halves):
    """Store even and odd columns apart, from cell 1 on."""
    even, odd = halves[0][1:], halves[1][1:]
    for i in range((row.shape[0] + 1) // 2):
        even[i] = row[2 * i]
    for i in range(row.shape[0] // 2):
        odd[i] = row[2 * i + 1]


@kernel
def _system_bands(
    begin, end, slab_first, slab_last, top, mean, difference, inside, flow, start, weights, gamma, hold,
    repeats, zeta, tiny, inverse, right
):  # fmt: skip
    """Fill in M⁻¹ and b of bands of ``BAND`` rows; ``gamma`` is divided by the number of channels.

    The bands are those of rows ``slab_first`` … ``slab_last`` − 1; the warped arrays begin at row ``top``. Each channel
    counts ``repeats`` times, so that there are three. ``sums`` holds Σ_c of the entries A_11, A_12, A_22, b_1, b_2 of
    the data term and of its squared error, before the robust weight.
    """
    channels, height, width = mean.shape[0], flow.shape[1], flow.shape[2]
    rows = np.empty((2, BAND + 4, width + 4), dtype=np.float32)
    padded = np.empty(width + 4, dtype=np.float32)
    second, norms = np.empty((5, width), dtype=np.float32), np.empty((2, width), dtype=np.float32)
    sums = np.empty((BAND, 6, width), dtype=np.float32)
    for band in range(begin, end):
        first = slab_first + band * BAND
        last = min(first + BAND, slab_last)
        sums[:] = ZERO
        for c in range(channels):
            for r in range(last - first + 4):  # first derivatives, two rows more on each side
                y = min(max(first - 2 + r, 0), height - 1)
                _pad(mean[c, y - top], padded)
                _along_x(padded, rows[0, r][2:-2])
                _repeat_ends(rows[0, r])
                _along_y(mean[c], y - top, rows[1, r][2:-2])
                _repeat_ends(rows[1, r])
            for y in range(first, last):
                r = y - first + 2
                _along_x(rows[0, r], second[0])
                for k in range(2):
                    before2, before = rows[k, r - 2][2:], rows[k, r - 1][2:]
                    _derive(before2, before, rows[k, r + 1][2:], rows[k, r + 2][2:], second[1 + k])
                _pad(difference[c, y - top], padded)
                _along_x(padded, second[3])
                _along_y(difference[c], y - top, second[4])
                for k in range(2):
                    _norm(second[k], second[k + 1], zeta, norms[k])
                    _add_equation(second[k], second[k + 1], second[3 + k], norms[k], sums[y - first])
        for y in range(first, last):
            total = sums[y - first]
            _robust(inside[y - top], gamma, repeats, tiny, total)
            if hold > ZERO:
                _hold(inside[y - top], hold, flow[0, y], start[0, y], norms[0], total[0], total[3])
                _hold(inside[y - top], hold, flow[1, y], start[1, y], norms[0], total[2], total[4])
            _add_smoothness(flow, weights, y, total, norms[0])
            _invert(total, norms[0], norms[1])
            for k in range(3):
                _store(total[k], inverse[k, y + 1])
            for k in range(2):
                _store(total[3 + k], right[k, y + 1])


@helper
def _pad(row, result):
    """Copy a row to one with two more pixels on each side."""
    inner = result[2:]
    for x in range(row.shape[0]):
        inner[x] = row[x]
    _repeat_ends(result)


@helper
def _repeat_ends(row):
    n = row.shape[0]
    row[0] = row[1] = row[2]
    row[n - 1] = row[n - 2] = row[n - 3]


@helper
def _along_x(padded, result):
    """Derive along a row, which has two more pixels on each side than the result."""
    _derive(padded, padded[1:], padded[3:], padded[4:], result)


@helper
def _along_y(image, y, result):
    """Derive along the columns of an image (H, W) at row y."""
    last = image.shape[0] - 1
    _derive(image[max(y - 2, 0)], image[max(y - 1, 0)], image[min(y + 1, last)], image[min(y + 2, last)], result)


@helper
def _derive(a, b, d, e, result):
    """Take the five-point derivative, from the values two and one before and after."""
    near, far = DERIVATIVE_TAPS
    for x in range(result.shape[0]):
        result[x] = near * (d[x] - b[x]) + far * (e[x] - a[x])


@helper
def _norm(p, q, zeta, result):
    """Set the result to 1 / (p² + q² + ζ²)."""
    for x in range(result.shape[0]):
        result[x] = ONE / (p[x] * p[x] + q[x] * q[x] + zeta)


@helper
def _add_equation(p, q, t, norm, sums):
    """Add the normal equations of p du + q dv + t = 0 with weight ``norm``, and its squared error at du = dv = 0."""
    a11, a12, a22, b1, b2, error = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]
    for x in range(p.shape[0]):
        a11[x] += norm[x] * p[x] * p[x]
    for x in range(p.shape[0]):
        a12[x] += norm[x] * p[x] * q[x]
    for x in range(p.shape[0]):
        a22[x] += norm[x] * q[x] * q[x]
    for x in range(p.shape[0]):
        b1[x] -= norm[x] * p[x] * t[x]
    for x in range(p.shape[0]):
        b2[x] -= norm[x] * q[x] * t[x]
    for x in range(p.shape[0]):
        error[x] += norm[x] * t[x] * t[x]


@helper
def _robust(inside, factor, repeats, tiny, sums):
    """Multiply the data term by its weight and Ψ′ = 1 / √(error + ε²), or by 0 outside the second image."""
    scale = sums[5]
    for x in range(scale.shape[0]):
        scale[x] = factor * inside[x] / np.sqrt(repeats * scale[x] + tiny)
    for k in range(5):
        row = sums[k]
        for x in range(scale.shape[0]):
            row[x] *= scale[x]


@helper
def _hold(inside, hold, flow, start, pull, diagonal, right):
    """Pull pixels that leave the second image back to where they started."""
    for x in range(pull.shape[0]):
        pull[x] = hold * (ONE - inside[x])
    for x in range(pull.shape[0]):
        diagonal[x] += pull[x]
    for x in range(pull.shape[0]):
        right[x] += pull[x] * (start[x] - flow[x])


@helper
def _add_smoothness(flow, weights, y, sums, flux):
    """Add Σ_n s_n to the diagonal, and Σ_n s_n (flow_n − flow) to the right side, over the four neighbours n."""
    height, width = weights.shape[1:]
    diagonal = sums[5]
    across, below, above = weights[0, y], weights[1, y], weights[1, max(y - 1, 0)]
    none = ZERO if y == 0 else ONE  # nothing above the first row; the weights right of and below the last are 0
    for x in range(width):
        diagonal[x] = across[x] + below[x] + none * above[x]
    beyond = diagonal[1:]
    for x in range(width - 1):
        beyond[x] += across[x]
    for c in range(2):
        f, side = flow[c, y], sums[3 + c]
        lower, upper = flow[c, min(y + 1, height - 1)], flow[c, max(y - 1, 0)]
        for x in range(width - 1):
            flux[x] = across[x] * (f[x + 1] - f[x])
        for x in range(width - 1):
            side[x] += flux[x]
        beyond = side[1:]
        for x in range(width - 1):
            beyond[x] -= flux[x]
        for x in range(width):
            side[x] += below[x] * (lower[x] - f[x])
        for x in range(width):
            side[x] += none * above[x] * (upper[x] - f[x])


@helper
def _invert(sums, determinant, spare):
    """Replace M = A + diagonal by its inverse. A pixel without data and without neighbours gets the increment 0."""
    a11, a12, a22, diagonal = sums[0], sums[1], sums[2], sums[5]
    for x in range(diagonal.shape[0]):
        a11[x] += diagonal[x]
    for x in range(diagonal.shape[0]):
        a22[x] += diagonal[x]
    for x in range(diagonal.shape[0]):
        d = a11[x] * a22[x] - a12[x] * a12[x]
        determinant[x] = ONE / d if d > ZERO else ZERO
    for x in range(diagonal.shape[0]):
        spare[x] = a11[x] * determinant[x]
    for x in range(diagonal.shape[0]):
        a11[x] = a22[x] * determinant[x]
    for x in range(diagonal.shape[0]):
        a22[x] = spare[x]
    for x in range(diagonal.shape[0]):
        a12[x] *= -determinant[x]
