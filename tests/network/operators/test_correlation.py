"""Correlation against brute force from eq. (2), its gradient, and its GPU kernel."""

from itertools import product
from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.operators import correlation
from helpers.brute_force import brute_correlation
from helpers.volumes import GEOMETRIES, assert_same_gradients, everywhere, sizes_of_cells, unit_cells


def random_cells(g: Geometry, patch: int, channels: int, batch: int = 2) -> list[torch.Tensor]:
    return [torch.randn(batch, channels, *size, dtype=torch.float64) for size in sizes_of_cells(g, patch)]


@settings(max_examples=15)
@given(
    rows=st.integers(1, 2), columns=st.integers(1, 3), target=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    radius=st.one_of(st.none(), st.sampled_from([2, 6, 12])), patch=st.sampled_from([1, 4]),
)  # fmt: skip
def test_it_is_the_rectified_inner_product(
    rows: int, columns: int, target: tuple[int, int], radius: int | None, patch: int, device: torch.device,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    geometry = Geometry((8 * rows, 8 * columns), (8 * target[0], 8 * target[1]), radius=radius)
    cells0, cells1 = (cells.to(device, dtype) for cells in random_cells(geometry, patch, 2))
    result = correlation(cells0, cells1, geometry, patch)
    assert result.shape == (2, *geometry.shape(0)) and result.dtype == dtype and result.device == cells0.device
    for b in range(2):
        expected = brute_correlation(cells0[b].cpu(), cells1[b].cpu(), geometry, patch)
        torch.testing.assert_close(result[b].cpu(), expected)


def test_tiles_of_a_long_row_agree_with_the_whole_map(device: torch.device, dtype: torch.dtype) -> None:
    """More than one tile of reference points: the window around p is that part of the unrestricted map."""
    sizes = ((16, 176), (24, 160))
    absolute, relative = Geometry(*sizes, radius=None), Geometry(*sizes, radius=20)
    cells = [some.to(device, dtype) for some in random_cells(relative, 4, 3)]
    whole, windows = (correlation(*cells, g, 4)[0].cpu() for g in (absolute, relative))
    padded = torch.nn.functional.pad(whole, (8, 20, 8, 20))  # the first window starts 8 cells off the map
    for i, j in product(*map(range, relative.grid(0))):
        torch.testing.assert_close(windows[i, j], padded[i, j, 4 * i : 4 * i + 21, 4 * j : 4 * j + 21])


def test_batches_and_channels_must_agree() -> None:
    geometry = Geometry((8, 16), (16, 8), radius=4)
    cells0, cells1 = random_cells(geometry, 4, 2)
    with plain_operators():
        with pytest.raises(ValueError):
            correlation(cells0, cells1[:1], geometry, 4)
        with pytest.raises(RuntimeError):
            correlation(cells0, cells1[:, :1], geometry, 4)


@pytest.mark.parametrize("radius", [4, None])
@pytest.mark.parametrize("patch", [1, 4])
def test_gradient(radius: int | None, patch: int, device: torch.device) -> None:
    geometry = Geometry((8, 16), (16, 8), radius=radius)
    leaves = [cells.to(device).requires_grad_() for cells in random_cells(geometry, patch, 2, batch=1)]
    assert gradcheck(lambda a, b: correlation(a, b, geometry, patch), leaves, fast_mode=True)


@pytest.mark.slow
@everywhere
@pytest.mark.parametrize(("patch", "channels", "batch"), [(1, 20, 2), (4, 3, 1)])
def test_the_gpu_kernel_agrees(
    g: Geometry, patch: int, channels: int, batch: int, gpu: ModuleType, gpu_device: str
) -> None:
    cells = unit_cells(g, patch, channels, batch, gpu_device)
    assert_same_gradients(gpu.correlation, correlation, cells, g, patch, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
def test_one_product_of_halves_is_nearly_exact(gpu: ModuleType, gpu_device: str) -> None:
    from deepmatching.kernels.gpu.matching.correlation import correlate

    g = GEOMETRIES["relative, even R"]
    cells0, cells1 = unit_cells(g, 4, 3, device=gpu_device)
    exact = correlation.definition(cells0, cells1, g, 4)
    assert 0 < float((correlate(cells0, cells1, g, 4, half=True) - exact).norm() / exact.norm()) < 1e-3
