"""The Numba kernels against the plain operators that define them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.geometry import Geometry
from deepmatching.operators import cpu, fused, max_pooling
from deepmatching.operators.decoding import best_pooled, decode_pooled
from deepmatching.operators.kernels import plain_operators

quick = settings(max_examples=60, deadline=None)


@st.composite
def geometries(draw: st.DrawFn, smallest_level: int = 1) -> Geometry:
    """All kinds of lattices of small images: two sizes, overlapping patches, wide pooling, radius or none."""
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


seeds = st.integers(0, 2**31)
batches = st.integers(1, 2)


def volume(seed: int, *shape: int, step: float = 1 / 8) -> Tensor:
    """Few different values, all exact in float32: many ties, and sums and means without rounding."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 9, shape, generator=generator).float() * step


def with_gaps(scores: Tensor, seed: int) -> Tensor:
    """The same with −∞ at a third of the cells, as where no path leads, and at all of the first point's."""
    generator = torch.Generator().manual_seed(seed + 1)
    scores[torch.rand(scores.shape, generator=generator) < 1 / 3] = -torch.inf
    scores[:, 0, 0] = -torch.inf
    return scores


def pooled_volume(seed: int, batch: int, geometry: Geometry, l: int) -> tuple[Tensor, Tensor]:
    """Something like S_{l+1/2} and m_l."""
    with plain_operators():
        return max_pooling(
            volume(seed, batch, *geometry.shape(l)),
            geometry.window(l + 1),
            geometry.pool_offset(l),
            geometry.pool_reach,
        )


def both(operator: Any, *arguments: Any) -> tuple[Any, Any]:
    """The kernel's result and that of the definition."""
    with plain_operators():
        expected = operator(*arguments)
    return getattr(cpu, operator.__name__)(*arguments), expected


def assert_identical(results: tuple[Any, Any]) -> None:
    for result, expected in zip(*results, strict=True):
        assert result.dtype == expected.dtype
        assert torch.equal(result, expected)


@quick
@given(geometries(), seeds, batches, st.sampled_from([1, 4]), st.sampled_from([1, 3, 9]))
def test_correlation_and_pooling_with_many_ties(
    geometry: Geometry, seed: int, batch: int, patch: int, channels: int
) -> None:
    """Signed scores, exact in float32 except for the rectification of borders, which is the same in both."""
    extra = 1 if patch == 1 else 0
    cells = [
        volume(seed + n, batch, channels, *(side // geometry.gamma + extra for side in used), step=1 / 4)
        for n, used in enumerate((geometry.used0, geometry.used1))
    ]
    assert_identical(both(fused.correlate_and_pool, *cells, geometry, patch, 1.0))


@quick
@given(geometries(), seeds, batches, st.sampled_from([(1, 40), (2, 5), (4, 9), (6, 2)]))
def test_correlation_and_pooling_of_unit_vectors(
    geometry: Geometry, seed: int, batch: int, sizes: tuple[int, int]
) -> None:
    patch, channels = sizes
    assume(patch <= geometry.patch)
    extra = 1 if patch == 1 else 0
    generator = torch.Generator().manual_seed(seed)
    cells = []
    for used in (geometry.used0, geometry.used1):
        shape = (batch, channels, *(side // geometry.gamma + extra for side in used))
        cells.append(torch.nn.functional.normalize(torch.randn(shape, generator=generator), dim=1) / patch)
    (pooled, switches), (expected, expected_switches) = both(fused.correlate_and_pool, *cells, geometry, patch, 1.4)
    assert torch.allclose(pooled, expected, rtol=1e-5, atol=1e-6)
    # Scores that differ by rounding only may change places.
    assert (switches != expected_switches).float().mean() < 1e-3


@quick
@given(geometries(2), seeds, batches, st.data())
def test_aggregation_and_pooling(geometry: Geometry, seed: int, batch: int, data: st.DataObject) -> None:
    l = data.draw(st.integers(0, geometry.L - 2))
    pooled = volume(seed, batch, *geometry.grid(l), *geometry.window(l + 1))
    assert_identical(both(fused.aggregate_and_pool, pooled, geometry, l, 1.0))
    # Switches are not compared here: the kernel pools before the power, and torch.pow may round equal numbers
    # differently in the last digit, depending on their place in memory, which breaks ties.
    (result, _), (expected, _) = both(fused.aggregate_and_pool, pooled, geometry, l, 1.4)
    assert torch.allclose(result, expected, rtol=1e-6, atol=0)


@quick
@given(geometries(), seeds, batches, st.data())
def test_aggregation(geometry: Geometry, seed: int, batch: int, data: st.DataObject) -> None:
    l = data.draw(st.integers(0, geometry.L - 1))
    pooled = volume(seed, batch, *geometry.grid(l), *geometry.window(l + 1))
    result, expected = both(fused.aggregate, pooled, geometry, l, 1.0)
    assert torch.equal(result, expected)
    result, expected = both(fused.aggregate, pooled, geometry, l, 0.7)
    assert torch.allclose(result, expected, rtol=1e-6, atol=0)


@quick
@given(geometries(), seeds, batches, st.data())
def test_disaggregation(geometry: Geometry, seed: int, batch: int, data: st.DataObject) -> None:
    l = data.draw(st.integers(0, geometry.L - 1))
    scores = with_gaps(volume(seed, batch, *geometry.shape(l + 1)), seed)
    result, expected = both(fused.disaggregate, scores, geometry, l)
    assert torch.equal(result, expected)


@quick
@given(geometries(2), seeds, batches, st.data())
def test_unpooling_and_disaggregation(geometry: Geometry, seed: int, batch: int, data: st.DataObject) -> None:
    l = data.draw(st.integers(0, geometry.L - 2))
    pooled, switches = pooled_volume(seed, batch, geometry, l + 1)
    coarse = with_gaps(volume(seed + 1, *pooled.shape), seed)
    result, expected = both(fused.unpool_and_disaggregate, coarse, pooled, switches, geometry, l)
    assert torch.equal(result, expected)


@quick
@given(geometries(), seeds, batches, st.sampled_from(["bins", "exact", "none"]), st.booleans())
def test_decoding(geometry: Geometry, seed: int, batch: int, reciprocal: Any, few_ties: bool) -> None:
    pooled, switches = pooled_volume(seed, batch, geometry, 0)
    coarse = with_gaps(volume(seed + 1, *pooled.shape), seed)
    if few_ties:
        coarse += torch.rand(coarse.shape, generator=torch.Generator().manual_seed(seed))
    with plain_operators():
        expected = decode_pooled(coarse, pooled, switches, geometry, reciprocal)
        best = best_pooled(coarse, pooled, switches, geometry, reciprocal)
    tables = 2 if reciprocal == "none" else 3
    assert_identical((cpu.best_pooled(coarse, pooled, switches, geometry, reciprocal)[:tables], best[:tables]))
    result = decode_pooled(coarse, pooled, switches, geometry, reciprocal)
    assert_identical((result, expected))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int) -> None:
    geometry = Geometry((40, 56), (48, 40), radius=12, levels=2)
    cells = [volume(n, 1, 9, used[0] // 2, used[1] // 2) for n, used in enumerate((geometry.used0, geometry.used1))]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_identical(both(fused.correlate_and_pool, *cells, geometry, 4, 1.0))
        pooled, switches = pooled_volume(0, 1, geometry, 0)
        with plain_operators():
            expected = decode_pooled(pooled, pooled, switches, geometry)
        result = decode_pooled(pooled, pooled, switches, geometry, "bins")
    finally:
        torch.set_num_threads(before)
    assert_identical((result, expected))


@pytest.mark.parametrize("radius", [4, None])
@pytest.mark.parametrize("sizes", [((16, 24), (24, 600)), ((24, 600), (16, 16)), ((200, 16), (16, 24))])
def test_images_of_very_different_sizes(sizes: Any, radius: int | None) -> None:
    geometry = Geometry(*sizes, radius=radius, levels=1)
    cells = [volume(n, 1, 9, used[0] // 2, used[1] // 2) for n, used in enumerate((geometry.used0, geometry.used1))]
    results = both(fused.correlate_and_pool, *cells, geometry, 4, 1.0)
    assert_identical(results)
    with plain_operators():
        expected = decode_pooled(results[1][0], *results[1], geometry)
    result = decode_pooled(results[1][0], *results[1], geometry, "bins")
    assert_identical((result, expected))


def test_tensors_need_not_be_contiguous_nor_without_gradient() -> None:
    geometry = Geometry((40, 56), (48, 40), radius=12, levels=2)
    cells0 = volume(0, 1, 20, 28, 9).permute(0, 3, 1, 2).requires_grad_()
    cells1 = volume(1, 1, 24, 20, 9).permute(0, 3, 1, 2).requires_grad_()
    assert_identical(both(fused.correlate_and_pool, cells0, cells1, geometry, 4, 1.0))


@pytest.mark.parametrize("exponent", [0.3, 1.4, 2.0, 3.7])
def test_power_is_precise_over_the_whole_range(exponent: float) -> None:
    geometry = Geometry((16, 16), (16, 16), radius=2, levels=1)
    rows, columns = geometry.grid(0)
    children = torch.logspace(-20, 4, rows * columns * 9, dtype=torch.float32).view(1, rows, columns, 3, 3)
    children[0, 0, 0, 0, 0] = 0
    mean = cpu.aggregate(children, geometry, 0, 1.0).numpy().astype(np.float64)
    result = cpu.aggregate(children, geometry, 0, exponent).numpy()
    expected = mean ** np.float64(np.float32(exponent))
    representable = expected > 1e-37
    np.testing.assert_allclose(result[representable], expected[representable], rtol=1e-6)
    np.testing.assert_allclose(result[~representable], 0, atol=1e-36)
