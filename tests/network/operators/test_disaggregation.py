"""Disaggregation against eq. (5), its gradient, and its GPU kernel."""

import math
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.operators import disaggregation
from helpers.volumes import TINY, assert_same_gradient, everywhere, grid_volume, random_volume, small_pairs, with_gaps


@settings(max_examples=20)
@given(geometry=small_pairs(), l=st.integers(0, 1))
def test_each_child_gets_its_best_parent(geometry: Geometry, l: int, device: torch.device, dtype: torch.dtype) -> None:
    """Disaggregation is the transpose of aggregation with max for sum: compare link by link."""
    l = min(l, geometry.L - 1)
    scores = random_volume(geometry, l + 1).to(device, dtype)
    result = disaggregation(scores, geometry.grid(l), geometry.links(l))[0]
    assert result.dtype == dtype and result.device == scores.device
    expected = torch.full(result.shape, -math.inf, dtype=dtype)
    H, W, h, w = scores.shape[1:]
    for i in range(H):
        for j in range(W):
            for di, dj, da, db in geometry.links(l):
                for a in range(h):
                    for b in range(w):
                        child = (i + di, j + dj, a + da, b + db)
                        if all(0 <= c < n for c, n in zip(child, expected.shape, strict=True)):
                            expected[child] = max(expected[child], scores[0, i, j, a, b])
    assert torch.equal(result.cpu(), expected)


def test_volumes_have_five_axes() -> None:
    with plain_operators(), pytest.raises((IndexError, ValueError)):
        disaggregation(torch.rand(1, 1, 3, 3), (2, 2), [(0, 0, 0, 0)] * 4)


@pytest.mark.parametrize("geometry", TINY)
def test_gradient(geometry: Geometry, device: torch.device) -> None:
    torch.manual_seed(1)
    S_1 = random_volume(geometry, 1).to(device).requires_grad_()
    assert gradcheck(lambda s: disaggregation(s, geometry.grid(0), geometry.links(0)).clamp(min=-1), S_1)


@pytest.mark.slow
@everywhere
def test_the_gpu_kernel_agrees(g: Geometry, gpu: ModuleType, gpu_device: str) -> None:
    for l in range(g.L):
        arguments = (g.grid(l), g.links(l))
        assert_same_gradient(
            lambda s, arguments=arguments: gpu.disaggregation(s, *arguments),
            lambda s, arguments=arguments: disaggregation.definition(s, *arguments),
            with_gaps(grid_volume(g, l + 1, l + 1, device=gpu_device)),
        )
