"""Geometries and score volumes for the operators' tests."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import Operator, plain_operators
from deepmatching.network.operators import max_pooling, unpooling

seeds = st.integers(0, 2**31)
batches = st.integers(1, 2)


@st.composite
def small_pairs(draw: st.DrawFn) -> Geometry:
    """Draw small pairs on both lattices; two sizes, one or two levels, odd and even radii."""
    size0, size1 = ((8 * draw(st.integers(1, 4)), 8 * draw(st.integers(1, 4))) for _ in range(2))
    radius = draw(st.one_of(st.none(), st.sampled_from([2, 4, 6, 10, 14])))
    return Geometry(size0, size1, radius=radius, levels=draw(st.integers(1, 2)))


@st.composite
def lattices(draw: st.DrawFn, smallest_level: int = 1) -> Geometry:
    """Draw lattices of small images: two sizes, overlapping patches, wide pooling, radius or none."""
    gamma = draw(st.sampled_from([1, 2]))
    delta = gamma * draw(st.sampled_from([4, 8]))
    alpha = draw(st.sampled_from([delta, delta // 2]))
    beta = delta // 2 + gamma * draw(st.integers(0, 1))
    eta = gamma * draw(st.sampled_from([1, 1, 1, 2, 3]))
    radius = draw(st.none() | st.integers(1, 9).map(lambda cells: gamma * cells))
    sides = st.integers(2, 7).map(lambda patches: patches * delta + gamma)
    size0, size1 = (draw(st.tuples(sides, sides)) for _ in range(2))
    try:
        geometry = Geometry(size0, size1, alpha, beta, gamma, delta, eta, radius, draw(st.none() | st.integers(1, 3)))
    except DeepMatchingError:
        assume(False)
    assume(smallest_level <= geometry.L and geometry.cells(0) < 300_000)
    return geometry


def two_levels(size0: tuple[int, int], size1: tuple[int, int], radius: int | None, levels: int = 2) -> Geometry:
    """Return the geometry of the default downscale."""
    return Geometry.for_downscale(size0, size1, 1, radius, levels)


GEOMETRIES = {
    "relative, even R": two_levels((16, 16), (16, 16), 8),
    "relative, odd R, two sizes": two_levels((17, 16), (16, 24), 10),
    "relative, wide reach": Geometry((16, 16), (16, 16), 8, 4, 2, 8, 4, 8, 1),
    "absolute": two_levels((16, 16), (16, 24), None),
    "absolute, one level": two_levels((16, 8), (17, 16), None, levels=1),
}
everywhere = pytest.mark.parametrize("g", GEOMETRIES.values(), ids=GEOMETRIES.keys())

#: For gradients, which take a call per element.
TINY = [
    Geometry((16, 16), (16, 16), radius=4, levels=2),
    Geometry((16, 8), (16, 16), radius=6, levels=2),
    Geometry((16, 16), (16, 8), radius=None, levels=2),
]


def random_volume(
    geometry: Geometry, l: int, pooled: bool = False, ties: bool = False, like: Tensor | None = None
) -> Tensor:
    """Draw scores of shape (1, H_l, W_l, h, w), float64 or as ``like``; with ``ties`` from a few values only."""
    shape = (1, *geometry.grid(l), *geometry.window(l + 1 if pooled else l))
    scores = torch.randint(0, 4, shape).double() / 4 if ties else torch.rand(shape, dtype=torch.float64)
    return scores if like is None else scores.to(like)


def eighths(shape: tuple[int, ...], lowest: int = 0, device: str = "cpu") -> Tensor:
    """Draw scores k/8: sums and means are exact in any order, and many are equal."""
    return (torch.randint(lowest, 9, shape, device=device) / 8).float()


def seeded_volume(seed: int, *shape: int, step: float = 1 / 8) -> Tensor:
    """Draw few different values, all exact in float32: many ties, and sums and means without rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 9, shape, generator=generator).float() * step


def grid_volume(g: Geometry, points: int, cells: int, lowest: int = 0, device: str = "cpu") -> Tensor:
    """Draw eighths on the grid of level ``points`` with the window of level ``cells``; one pair or two."""
    return eighths((2 if g.relative else 1, *g.grid(points), *g.window(cells)), lowest, device)


def with_gaps(scores: Tensor, seed: int = 0) -> Tensor:
    """Set scores to −∞ at a third of the cells, where no path leads, and at all cells of the first point."""
    generator = torch.Generator().manual_seed(seed + 1)
    gaps = (torch.rand(scores.shape, generator=generator) < 1 / 3).to(scores.device)
    gaps[:, 0, 0] = True
    return scores.masked_fill(gaps, -torch.inf)


def pool(scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
    """Pool level l."""
    return max_pooling(scores, geometry.window(l + 1), geometry.pool_offset(l), geometry.pool_reach)


def unpool(scores: Tensor, switches: Tensor, geometry: Geometry, l: int) -> Tensor:
    """Unpool level l."""
    return unpooling(scores, switches, geometry.window(l), geometry.pool_offset(l), geometry.pool_reach)


def pooled_volume(seed: int, batch: int, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
    """Return scores and switches like S_{l+1/2} and m_l."""
    with plain_operators():
        return pool(seeded_volume(seed, batch, *geometry.shape(l)), geometry, l)


def sizes_of_cells(g: Geometry, patch: int) -> list[list[int]]:
    """Return (rows, columns) of both images' descriptors: cells, or for single vectors positions, one more."""
    return [[n // g.gamma + (patch == 1) for n in used] for used in (g.used0, g.used1)]


def tied_cells(g: Geometry, patch: int, channels: int, batch: int = 1, seed: int = 0) -> list[Tensor]:
    """Draw descriptors of two images in quarters, whose scores are exact in float32 and often equal."""
    sizes = sizes_of_cells(g, patch)
    return [seeded_volume(seed + n, batch, channels, *size, step=1 / 4) for n, size in enumerate(sizes)]


def unit_cells(g: Geometry, patch: int, channels: int, batch: int = 2, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Draw descriptors of two images, those of the second a hundred times as long."""
    sizes = sizes_of_cells(g, patch)
    cells0, cells1 = (torch.randn(batch, channels, *size, device=device) for size in sizes)
    return cells0 / (patch * channels**0.5), cells1 * 100


def both(operator: Operator[..., Any], *arguments: Any) -> tuple[Any, Any]:
    """Return the CPU kernel's result and that of the definition."""
    kernel = operator.kernel("cpu")
    assert kernel is not None
    return kernel(*arguments), plainly(operator, *arguments)


def plainly(operator: Operator[..., Any], *arguments: Any) -> Any:
    """Return the result of the definitions."""
    with plain_operators():
        return operator(*arguments)


def assert_identical(results: tuple[Any, Any]) -> None:
    """Assert that all tensors of two tuples are equal to the last bit, and the same ones None."""
    for result, expected in zip(*results, strict=True):
        if result is None or expected is None:
            assert result is expected
            continue
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)


def assert_same_gradients(
    kernel: Callable[..., Any], plain: Operator[..., Any], inputs: Sequence[Tensor], *arguments: Any,
    rtol: float = 0, atol: float = 0,
) -> None:  # fmt: skip
    """Assert the same results and, for a random gradient in eighths, the same gradients; ``atol`` is of the maxima."""
    results = []
    for function in (kernel, plain.definition):
        leaves = [values.clone().requires_grad_() for values in inputs]
        out = function(*leaves, *arguments)
        out = out if isinstance(out, tuple) else (out,)
        out[0].backward(seeded_volume(0, *out[0].shape).to(out[0].device))
        results.append([*(values.detach() for values in out), *(leaf.grad for leaf in leaves)])
    for found, expected in zip(*results, strict=True):
        scale = float(expected.abs().max()) if atol else 0
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol * scale)


def blobs(seed: int, batch: int, channels: int, height: int, width: int) -> Tensor:
    """Draw pictures with blobs of several sizes, values in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(batch, channels, height, width)
    for step in (2, 5, 11):
        noise = torch.rand(batch, channels, -(-height // step) + 1, -(-width // step) + 1, generator=generator)
        image += torch.nn.functional.interpolate(noise, (height, width), mode="bicubic", align_corners=False)
    return (image / 3).clamp(0, 1)
