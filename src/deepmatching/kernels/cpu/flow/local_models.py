"""CPU kernels of ``deepmatching.flow.operators.local_models``."""

import numpy as np
import torch
from torch import Tensor

from deepmatching.kernels.constants import OWN_WEIGHT, WIDE_RIDGE
from deepmatching.kernels.cpu.compilation import helper, kernel
from deepmatching.kernels.cpu.running import arrays_of, run_in_threads


def weighted_means(index: Tensor, weights: Tensor, values: Tensor) -> Tensor:
    """See :func:`deepmatching.flow.operators.local_models.weighted_means`."""
    result = np.empty((len(index), values.shape[1]), dtype=np.float64)
    run_in_threads(_weighted_means, len(index), *arrays_of(index, weights, values), result)
    return torch.from_numpy(result)


@kernel
def _weighted_means(begin, end, index, weights, values, result):
    for s in range(begin, end):
        total, x, y = 0.0, 0.0, 0.0
        for n in range(index.shape[1]):
            j = index[s, n]
            if j >= 0:
                # Differences to the seed's own value: equal values give exactly that value.
                w = weights[s, n]
                total += w
                x += w * (values[j, 0] - values[s, 0])
                y += w * (values[j, 1] - values[s, 1])
        result[s, 0], result[s, 1] = values[s, 0] + x / total, values[s, 1] + y / total


def affine_models(
    index: Tensor, weights: Tensor, points: Tensor, values: Tensor, ridge: float, wide: float = 0.0
) -> tuple[Tensor, Tensor]:
    """See :func:`deepmatching.flow.operators.local_models.affine_models`."""
    models, spread = np.empty((len(index), 3, 2), dtype=np.float64), np.empty(len(index), dtype=np.float64)
    arrays = arrays_of(index, weights, points, values)
    run_in_threads(_affine_models, len(index), *arrays, float(ridge), float(wide), models, spread)
    return torch.from_numpy(models), torch.from_numpy(spread)


@helper
def _normal_equations(s, index, weights, points, values, power, n, r):
    """Add Σ w² x xᵀ to n (3, 3) and Σ w² x vᵀ to r (3, 2) over the neighbours of a seed, w = weights^power."""
    x, y, u, v = points[s, 0], points[s, 1], values[s, 0], values[s, 1]
    for m in range(index.shape[1]):
        j = index[s, m]
        if j < 0:
            continue
        dx, dy = points[j, 0] - x, points[j, 1] - y
        du, dv = values[j, 0] - u, values[j, 1] - v
        w = weights[s, m] if m > 0 else OWN_WEIGHT * weights[s, m]
        if power != 1.0:
            w = w**power
        w *= w
        n[0, 0] += w * dx * dx
        n[0, 1] += w * dx * dy
        n[0, 2] += w * dx
        n[1, 1] += w * dy * dy
        n[1, 2] += w * dy
        n[2, 2] += w
        r[0, 0] += w * dx * du
        r[0, 1] += w * dx * dv
        r[1, 0] += w * dy * du
        r[1, 1] += w * dy * dv
        r[2, 0] += w * du
        r[2, 1] += w * dv
    n[1, 0], n[2, 0], n[2, 1] = n[0, 1], n[0, 2], n[1, 2]


@helper
def _solve(n, r, a):
    """Solve n a = r for a (3, 2), with n (3, 3) symmetric and positive definite; n and r are overwritten."""
    for k in range(3):
        for i in range(k + 1, 3):
            factor = n[i, k] / n[k, k]
            for j in range(k + 1, 3):
                n[i, j] -= factor * n[k, j]
            r[i, 0] -= factor * r[k, 0]
            r[i, 1] -= factor * r[k, 1]
    for c in range(2):
        a[2, c] = r[2, c] / n[2, 2]
        a[1, c] = (r[1, c] - n[1, 2] * a[2, c]) / n[1, 1]
        a[0, c] = (r[0, c] - n[0, 1] * a[1, c] - n[0, 2] * a[2, c]) / n[0, 0]


@kernel
def _affine_models(begin, end, index, weights, points, values, ridge, wide, models, spread):
    n, r, a = np.empty((3, 3)), np.empty((3, 2)), np.empty((3, 2))
    for s in range(begin, end):
        x, y, u, v = points[s, 0], points[s, 1], values[s, 0], values[s, 1]
        a[:] = 0.0
        if wide > 0.0:
            n[:], r[:] = 0.0, 0.0
            n[0, 0] = n[1, 1] = WIDE_RIDGE
            _normal_equations(s, index, weights, points, values, wide, n, r)
            _solve(n, r, a)
        n[:], r[:] = 0.0, 0.0
        n[0, 0] = n[1, 1] = ridge
        for c in range(2):
            r[0, c], r[1, c] = ridge * a[0, c], ridge * a[1, c]
        _normal_equations(s, index, weights, points, values, 1.0, n, r)
        _solve(n, r, a)
        total, residual = 0.0, 0.0
        for m in range(index.shape[1]):
            j = index[s, m]
            if j >= 0:
                dx, dy = points[j, 0] - x, points[j, 1] - y
                eu = values[j, 0] - u - (a[0, 0] * dx + a[1, 0] * dy + a[2, 0])
                ev = values[j, 1] - v - (a[0, 1] * dx + a[1, 1] * dy + a[2, 1])
                w = weights[s, m] if m > 0 else OWN_WEIGHT * weights[s, m]
                total += w
                residual += w * np.sqrt(eu * eu + ev * ev)
        spread[s] = residual / total
        for c in range(2):
            models[s, 0, c], models[s, 1, c] = a[0, c], a[1, c]
        models[s, 2, 0], models[s, 2, 1] = u + a[2, 0], v + a[2, 1]


def paint(label: Tensor, points: Tensor, models: Tensor) -> Tensor:
    """See :func:`deepmatching.flow.operators.local_models.paint`."""
    flow = np.empty((*label.shape, 2), dtype=np.float32)
    run_in_threads(_paint, len(label), *arrays_of(label, points, models), flow)
    return torch.from_numpy(flow)


@kernel
def _paint(begin, end, label, points, models, flow):
    for i in range(begin, end):
        for j in range(label.shape[1]):
            s = label[i, j]
            dx, dy = j - points[s, 0], i - points[s, 1]
            for c in range(2):
                flow[i, j, c] = models[s, 0, c] * dx + models[s, 1, c] * dy + models[s, 2, c]
