"""Local models and the flow they make: gradients, least squares by brute force, kernels."""

from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepmatching.flow.operators.local_models import affine_models, falloff_weights, paint, weighted_means
from deepmatching.geometry.homographies import affine_fit
from deepmatching.kernels.constants import OWN_WEIGHT, WIDE_RIDGE
from deepmatching.kernels.registry import plain_operators

quick = settings(max_examples=25)


def neighbours(seed: int, seeds: int, number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """index (itself first, some missing), weights, points, displacements."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.stack([torch.randperm(seeds, generator=generator)[:number] for _ in range(seeds)]).int()
    index = torch.cat([torch.arange(seeds)[:, None].int(), index], dim=1)
    index[:, 1:][torch.rand(seeds, number, generator=generator) < 0.2] = -1
    distances = torch.rand(index.shape, generator=generator) * 3
    distances[:, 0] = 0
    points = torch.rand(seeds, 2, generator=generator, dtype=torch.float64) * 50
    values = torch.randn(seeds, 2, generator=generator, dtype=torch.float64) * 5
    return index, falloff_weights(index, distances, 0.8), points, values


def test_the_ridge_is_the_originals_four_points_around_the_match() -> None:
    """A row of 0.96 for the match, and four of 0.01 at ±0.1 pixels with the same displacement."""
    index, weights, points, values = neighbours(5, 9, 6)
    models, _ = affine_models(index, weights, points, values, 2e-6)
    for s in range(len(index)):
        rows, right = [[0.0, 0, 0.96]], [0.96 * values[s].numpy()]
        for dx, dy in ((0.1, 0), (-0.1, 0), (0, 0.1), (0, -0.1)):
            rows.append([0.01 * dx, 0.01 * dy, 0.01])
            right.append(0.01 * values[s].numpy())
        for n in range(1, index.shape[1]):
            j, w = int(index[s, n]), float(weights[s, n])
            if j >= 0:
                rows.append([*(w * (points[j] - points[s])).tolist(), w])
                right.append(w * values[j].numpy())
        expected = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0]
        np.testing.assert_allclose(models[s], expected, atol=1e-6)


@quick
@given(st.integers(0, 2**31), st.integers(1, 20), st.integers(1, 12), st.sampled_from([0, 0.25]))
def test_kernels_agree_with_the_definitions(seed: int, seeds: int, number: int, wide: float) -> None:
    index, weights, points, values = neighbours(seed, seeds, min(number, seeds))
    label = torch.randint(0, seeds, (7, 9)).int()

    def results() -> tuple[Tensor, ...]:
        models, spread = affine_models(index, weights, points, values, 0.01, wide)
        return weighted_means(index, weights, values), models, spread, paint(label, points, models).float()

    found = results()
    with plain_operators():
        expected = results()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@quick
@given(st.integers(0, 2**31), st.floats(-100, 100), st.floats(-100, 100))
def test_equal_displacements_are_reproduced_to_the_last_bit(seed: int, u: float, v: float) -> None:
    index, weights, points, _ = neighbours(seed, 12, 8)
    values = torch.tensor([[u, v]], dtype=torch.float64).repeat(12, 1)
    models, spread = affine_models(index, weights, points, values, 2e-6)
    assert torch.equal(weighted_means(index, weights, values), values)
    assert torch.equal(models[:, 2], values) and not models[:, :2].any() and not spread.any()


def test_the_ridge_pulls_to_the_wider_model() -> None:
    index, weights, points, values = neighbours(3, 12, 9)
    chosen = index >= 0
    slopes = []
    for s in range(len(index)):
        j, w = index[s][chosen[s]].long(), weights[s][chosen[s]].clone()
        w[0] *= OWN_WEIGHT
        slopes.append(affine_fit(points[j] - points[s], values[j] - values[s], w**0.25, WIDE_RIDGE)[:2])
    pulled, _ = affine_models(index, weights, points, values, 1e9, 0.25)
    torch.testing.assert_close(pulled[:, :2], torch.stack(slopes), rtol=1e-5, atol=1e-5)


@quick
@given(st.integers(0, 2**31), st.floats(0, 1e3))
def test_affine_motion_is_left_alone_by_any_ridge(seed: int, ridge: float) -> None:
    index, weights, points, _ = neighbours(seed, 40, 39)
    slope = torch.tensor([[0.1, -0.05], [0.02, 0.2]], dtype=torch.float64)
    values = points @ slope + torch.tensor([3.0, -1.0], dtype=torch.float64)
    models, spread = affine_models(index, weights, points, values, ridge + 1e-6, 0.25)
    torch.testing.assert_close(models[:, :2], slope.expand(40, 2, 2), rtol=0.01, atol=1e-3)
    assert spread.max() < 0.05


def test_gradients_flow_through_the_models() -> None:
    index, weights, points, values = neighbours(2, 6, 4)
    label = torch.randint(0, 6, (4, 5), generator=torch.Generator().manual_seed(0))

    arguments = [t.clone().requires_grad_() for t in (points, values, weights.clamp(min=1e-3))]
    for wide in (0, 0.25):

        def flow(points: Tensor, values: Tensor, weights: Tensor, wide: float = wide) -> Tensor:
            counted = weights * (index >= 0)
            return paint(label, points, affine_models(index, counted, points, values, 0.1, wide)[0]).sum(dim=(0, 1))

        assert torch.autograd.gradcheck(flow, arguments)


@pytest.mark.parametrize(("seeds", "number", "wide"), [(9, 6, 0.0), (9, 6, 0.25), (3, 1, 0.25), (40, 33, 0.25)])
def test_the_gpu_kernels_agree(seeds: int, number: int, wide: float, gpu: ModuleType, gpu_device: str) -> None:
    given = [tensor.to(gpu_device) for tensor in neighbours(1, seeds, number)]
    index, weights, points, values = given
    models, spread = found = gpu.affine_models(index, weights, points, values, 30.0, wide)
    expected = affine_models.definition(index, weights, points, values, 30.0, wide)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    means = gpu.weighted_means(index, weights, values)
    torch.testing.assert_close(means, weighted_means.definition(index, weights, values))
    label = torch.randint(0, seeds, (7, 9), device=gpu_device).int()
    painted = gpu.paint(label, points, models)
    assert painted.dtype == torch.float32
    torch.testing.assert_close(painted, paint.definition(label, points, models).float())
    values = torch.tensor([[0.1, -7.3]], dtype=torch.float64, device=gpu_device).repeat(seeds, 1)
    models, spread = gpu.affine_models(index, weights, points, values, 30.0, wide)
    assert torch.equal(models[:, 2], values) and not models[:, :2].any() and not spread.any()  # to the last bit
    assert torch.equal(gpu.weighted_means(index, weights, values), values)
