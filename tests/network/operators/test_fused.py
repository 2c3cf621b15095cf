"""The fused operators of inference: their kernels against their definitions."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import target_bands, target_pitch
from deepmatching.kernels import cpu
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.operators import correlation, fused, max_pooling, power, unpooling
from deepmatching.network.operators.decoding import best_pooled
from deepmatching.network.operators.pooling import HARD
from helpers.volumes import (
    GEOMETRIES,
    assert_identical,
    batches,
    both,
    eighths,
    everywhere,
    grid_volume,
    lattices,
    plainly,
    pooled_volume,
    seeded_volume,
    seeds,
    sizes_of_cells,
    tied_cells,
    two_levels,
    unit_cells,
    with_gaps,
)

quick = settings(max_examples=60)
CHUNKS = "deepmatching.kernels.gpu.matching.correlation"


@pytest.mark.slow
@quick
@given(lattices(), seeds, batches, st.sampled_from([1, 4]), st.sampled_from([1, 3, 9]))
def test_correlation_and_pooling_with_many_ties(
    geometry: Geometry, seed: int, batch: int, patch: int, channels: int
) -> None:
    """Signed scores, exact in float32 except for the rectification of borders, which is the same in both."""
    cells = tied_cells(geometry, patch, channels, batch, seed)
    assert_identical(both(fused.correlate_and_pool, *cells, geometry, patch, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("patch", [1, 4])
@pytest.mark.parametrize("size1", [(160, 96), (24, 200), (320, 16)])
def test_bands_of_the_target_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, patch: int, size1: tuple[int, int]
) -> None:
    """The target's cells are copied for some reference rows at a time; some of these see nothing of the target."""
    geometry = Geometry((160, 96), size1, radius=12)
    cells = tied_cells(geometry, patch, 3, batch=2)
    whole = fused.correlate_and_pool(*cells, geometry, patch, 1.4)
    monkeypatch.setattr("deepmatching.geometry.strips.TARGET_BYTES", 1)
    assert target_bands(geometry, patch, 3, target_pitch(geometry, patch, 100))[0] < geometry.grid(0)[0] / 2
    cells = [c.contiguous(memory_format=torch.channels_last) for c in cells]
    assert_identical((whole, fused.correlate_and_pool(*cells, geometry, patch, 1.4)))


@quick
@given(lattices(), seeds, batches, st.sampled_from([(1, 40), (2, 5), (4, 9), (6, 2)]))
def test_correlation_and_pooling_of_unit_vectors(
    geometry: Geometry, seed: int, batch: int, sizes: tuple[int, int]
) -> None:
    patch, channels = sizes
    assume(patch <= geometry.patch)
    generator = torch.Generator().manual_seed(seed)
    shapes = ((batch, channels, *size) for size in sizes_of_cells(geometry, patch))
    cells = [F.normalize(torch.randn(shape, generator=generator), dim=1) / patch for shape in shapes]
    (pooled, switches), (expected, expected_switches) = both(fused.correlate_and_pool, *cells, geometry, patch, 1.4)
    assert torch.allclose(pooled, expected, rtol=1e-5, atol=1e-6)
    # Scores that differ by rounding only may change places.
    assert (switches != expected_switches).float().mean() < 1e-3


@quick
@given(lattices(), seeds, batches, st.data())
def test_aggregation_and_disaggregation(geometry: Geometry, seed: int, batch: int, data: st.DataObject) -> None:
    l = data.draw(st.integers(0, geometry.L - 1))
    pooled = seeded_volume(seed, batch, *geometry.grid(l), *geometry.window(l + 1))
    result, expected = both(fused.aggregate, pooled, geometry, l, 1.0)
    assert torch.equal(result, expected)
    result, expected = both(fused.aggregate, pooled, geometry, l, 0.7)
    assert torch.allclose(result, expected, rtol=1e-6, atol=0)
    scores = with_gaps(seeded_volume(seed, batch, *geometry.shape(l + 1)), seed)
    assert torch.equal(*both(fused.disaggregate, scores, geometry, l))


@quick
@given(lattices(2), seeds, batches, st.data())
def test_pooling_with_it(geometry: Geometry, seed: int, batch: int, data: st.DataObject) -> None:
    l = data.draw(st.integers(0, geometry.L - 2))
    pooled = seeded_volume(seed, batch, *geometry.grid(l), *geometry.window(l + 1))
    assert_identical(both(fused.aggregate_and_pool, pooled, geometry, l, 1.0))
    # Switches are not compared here: the kernel pools before the power, and torch.pow may round equal numbers
    # differently in the last digit, depending on their place in memory, which breaks ties.
    (result, _), (expected, _) = both(fused.aggregate_and_pool, pooled, geometry, l, 1.4)
    assert torch.allclose(result, expected, rtol=1e-6, atol=0)
    pooled, switches = pooled_volume(seed, batch, geometry, l + 1)
    coarse = with_gaps(seeded_volume(seed + 1, *pooled.shape), seed)
    assert torch.equal(*both(fused.unpool_and_disaggregate, coarse, pooled, switches, geometry, l))


def test_tensors_need_not_be_contiguous_nor_without_gradient() -> None:
    geometry = Geometry((40, 56), (48, 40), radius=12, levels=2)
    cells0 = seeded_volume(0, 1, 20, 28, 9).permute(0, 3, 1, 2).requires_grad_()
    cells1 = seeded_volume(1, 1, 24, 20, 9).permute(0, 3, 1, 2).requires_grad_()
    assert_identical(both(fused.correlate_and_pool, cells0, cells1, geometry, 4, 1.0))


@pytest.mark.parametrize("exponent", [0.3, 1.4, 2.0, 3.7])
def test_the_cpu_power_is_precise_over_the_whole_range(exponent: float) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True])
def test_half_precision_rounds_the_pooled_scores_alone(plain: bool, gpu: ModuleType, gpu_device: str) -> None:
    """Definition and CPU kernel compute in float32; a GPU correlates with one product of halves."""
    g = two_levels((24, 16), (24, 24), 6)
    cells = unit_cells(g, 4, 3)
    function = fused.correlate_and_pool.definition if plain else cpu.correlate_and_pool
    (exact, choices), (rounded, switches) = (function(*cells, g, 4, 1.4, half) for half in (False, True))
    assert rounded.dtype == torch.float16 and torch.equal(rounded, exact.half())
    assert torch.equal(switches, choices)
    near, _ = gpu.correlate_and_pool(*(c.to(gpu_device) for c in cells), g, 4, 1.4, half=True)
    assert near.dtype == torch.float16
    assert float((near.float().cpu() - exact).norm() / exact.norm()) < 2e-3


@pytest.mark.slow
@pytest.mark.parametrize("g", [*GEOMETRIES.values(), two_levels((72, 16), (24, 24), 4, levels=1)])
def test_the_gpu_kernel_of_correlation_and_pooling(
    g: Geometry, gpu: ModuleType, gpu_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair and a few rows of points at a time, strided cells, and ties: descriptors of eighths give exact scores."""
    small_chunks(monkeypatch)
    cells0, cells1 = (
        eighths((2, used[0] // 2, used[1] // 2, 5), device=gpu_device).permute(0, 3, 1, 2)
        for used in (g.used0, g.used1)
    )
    values, switches = gpu.correlate_and_pool(cells0, cells1, g, 4, 1.4)
    with plain_operators():
        expected, choice = fused.correlate_and_pool(cells0, cells1, g, 4, 1.4)
        torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)
        # Rectified scores are rounded, so a tie of two different products may go either way: compare what was chosen.
        scores = power(correlation(cells0, cells1, g, 4), 1.4)
        chosen = unpooling(torch.zeros_like(values), switches, g.window(0), g.pool_offset(0), g.pool_reach)
        again = max_pooling(scores + chosen, g.window(1), g.pool_offset(0), g.pool_reach)[0]
    torch.testing.assert_close(again, expected, rtol=1e-5, atol=1e-6)
    assert float((switches == choice).float().mean()) > 0.99


@pytest.mark.slow
@everywhere
def test_the_gpu_kernels_of_all_levels(g: Geometry, gpu: ModuleType, gpu_device: str) -> None:
    def volume(points: int, cells: int) -> torch.Tensor:
        return grid_volume(g, points, cells, device=gpu_device)

    for l in range(g.L):
        agree(gpu, fused.aggregate, volume(l, l + 1), g, l, 1.4, rtol=1e-5, atol=1e-6)
        agree(gpu, fused.disaggregate, with_gaps(volume(l + 1, l + 1)), g, l)
    for l in range(g.L - 1):
        _, choices = agree(gpu, fused.aggregate_and_pool, volume(l, l + 1), g, l, 1.4, rtol=1e-5, atol=1e-6)
        agree(gpu, fused.unpool_and_disaggregate, volume(l + 1, l + 2), volume(l + 1, l + 2), choices, g, l)


@pytest.mark.slow
@pytest.mark.parametrize("radius", [6, None])
def test_the_gpu_kernels_of_a_strip(radius: int | None, gpu: ModuleType, gpu_device: str) -> None:
    """A part of the rows of reference points, see ``Geometry.strip``."""
    g = two_levels((40, 8), (24, 24), radius)
    minus, plus = g.child_shifts(0)
    part = g.strip((max(0, 2 + minus), 4 + plus), (2, 4))  # two rows of level 1 and all their children
    cells = unit_cells(g, 4, 2, batch=1, device=gpu_device)
    pooled, _ = gpu.correlate_and_pool(*cells, part, 4, 1.4)
    expected, _ = plainly(fused.correlate_and_pool, *cells, part, 4, 1.4)
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-4)
    above, _ = gpu.aggregate_and_pool(pooled, part, 0, 1.4)
    expected, _ = plainly(fused.aggregate_and_pool, pooled, part, 0, 1.4)
    torch.testing.assert_close(above, expected, rtol=1e-5, atol=1e-5)

    part = g.strip((2, 4), (2 - plus, 4 - minus))  # two rows of level 0 and all their parents
    pooled, switches = plainly(HARD.pool, grid_volume(part, 0, 0, device=gpu_device), g, 0)
    coarse = [grid_volume(part, 1, 2, device=gpu_device) for _ in range(2)]
    _, m = plainly(HARD.pool, grid_volume(part, 1, 1, device=gpu_device), g, 1)
    Q = agree(gpu, fused.unpool_and_disaggregate, *coarse, m, part, 0)
    for reciprocal in ("bins", "exact"):
        agree(gpu, best_pooled, Q, pooled, switches, part, reciprocal)


@pytest.mark.slow
@pytest.mark.parametrize("radius", [6, None])
def test_half_precision_is_storage_only(radius: int | None, gpu: ModuleType, gpu_device: str) -> None:
    """Scores rounded to half precision on their way to memory; all arithmetic and the switches in float32."""
    g = two_levels((24, 16), (24, 24), radius)
    pooled = grid_volume(g, 0, 1, device=gpu_device)
    above, switches = gpu.aggregate_and_pool(pooled.half(), g, 0, 1.4)
    expected, choices = gpu.aggregate_and_pool(pooled.half().float(), g, 0, 1.4)
    assert above.dtype == torch.float16
    torch.testing.assert_close(above, expected.half())
    torch.testing.assert_close(switches, choices, rtol=0, atol=0)
    coarse, fine = (grid_volume(g, l, l + 1, device=gpu_device) for l in (1, 0))
    results = [gpu.unpool_and_disaggregate(coarse, volume, switches, g, 0) for volume in (above, above.float())]
    torch.testing.assert_close(*results, rtol=0, atol=0)
    _, m = plainly(HARD.pool, grid_volume(g, 0, 0, device=gpu_device), g, 0)
    results = [tuple(gpu.best_pooled(fine, p, m, g, "bins")) for p in (pooled.half(), pooled.half().float())]
    torch.testing.assert_close(*results, rtol=0, atol=0)


def agree(gpu: ModuleType, operator: Any, *arguments: Any, rtol: float = 0.0, atol: float = 0.0) -> Any:
    """Compare the GPU kernel with the definition; return the definition's result."""
    found, expected = getattr(gpu, operator.name)(*arguments), plainly(operator, *arguments)
    if isinstance(expected, tuple):
        found, expected = tuple(found), tuple(expected)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
    return expected


def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of S_0 of 1 kB."""
    monkeypatch.setattr(sys.modules[CHUNKS], "CHUNK_BYTES", 2**10)
