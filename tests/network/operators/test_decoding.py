"""Decoding against the original's tables, and its kernels against the definitions."""

import math
from itertools import product
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels import cpu
from deepmatching.network.operators import fused, max_pooling
from deepmatching.network.operators.decoding import best_pooled, decode, decode_pooled
from deepmatching.settings import Reciprocal
from helpers.threads import threads
from helpers.volumes import (
    assert_identical,
    batches,
    both,
    everywhere,
    grid_volume,
    lattices,
    plainly,
    pooled_volume,
    seeded_volume,
    seeds,
    tied_cells,
    with_gaps,
)


def brute_decode(Q_0: torch.Tensor, geometry: Geometry, reciprocal: str) -> dict[tuple[float, float], tuple]:
    """{(x0, y0): (x1, y1, score)} by a loop over all pairs, as the original's two tables do it."""
    ys, xs = (p.tolist() for p in geometry.reference_points(0))
    rows, columns = geometry.target_points(0)
    best0: dict = {}
    best1: dict = {}
    at_target: dict = {}
    none = (0,) * 4 + (-math.inf,)
    for i, j, a, b in product(*map(range, Q_0.shape)):
        y1, x1 = (float(q[n if geometry.relative else 0][k]) for q, n, k in ((rows, i, a), (columns, j, b)))
        score = Q_0[i, j, a, b].item()
        if score == -math.inf or not (0 <= y1 < geometry.used1[0] and 0 <= x1 < geometry.used1[1]):
            continue
        record = (xs[j], ys[i], x1, y1, score)
        for table, key in ((best0, (xs[j], ys[i])), (best1, (x1 // geometry.alpha, y1 // geometry.alpha))):
            if score > table.get(key, none)[4]:
                table[key] = record
        at_target[x1, y1] = max(score, at_target.get((x1, y1), -math.inf))
    if reciprocal == "bins":
        kept = [r for r in best0.values() if r in best1.values()]
    elif reciprocal == "exact":
        kept = [r for r in best0.values() if r[4] >= at_target[r[2], r[3]]]
    else:
        kept = list(best0.values())
    return {r[:2]: r[2:] for r in kept}


@pytest.mark.slow
@settings(max_examples=60)
@given(
    size0=st.tuples(st.integers(8, 40), st.integers(8, 40)), size1=st.tuples(st.integers(8, 40), st.integers(8, 40)),
    downscale=st.integers(0, 1), cells=st.one_of(st.none(), st.integers(1, 9)),
    reciprocal=st.sampled_from(["bins", "exact", "none"]), reachable=st.floats(0.02, 1.0), seed=st.integers(0, 100),
)  # fmt: skip
def test_decoding_equals_the_originals_tables(
    size0: tuple[int, int], size1: tuple[int, int], downscale: int, cells: int | None, reciprocal: str,
    reachable: float, seed: int,
) -> None:  # fmt: skip
    geometry = Geometry.for_downscale(size0, size1, downscale, cells and cells * 2**downscale, levels=0)
    generator = torch.Generator().manual_seed(seed)
    Q_0 = torch.rand(geometry.shape(0), generator=generator, dtype=torch.float64)
    Q_0[torch.rand(Q_0.shape, generator=generator) > reachable] = -math.inf
    expected = brute_decode(Q_0, geometry, reciprocal)
    decoded = decode(Q_0[None].clone(), geometry, reciprocal)  # type: ignore[arg-type]
    kept = decoded.verified[0]
    columns = (values[kept].tolist() for values in (decoded.points0, decoded.points1[0], decoded.scores[0]))
    assert {tuple(p): (*q, s) for p, q, s in zip(*columns, strict=True)} == expected


def test_a_bin_is_given_to_the_first_of_equal_claims() -> None:
    geometry = Geometry((8, 16), (8, 16), radius=8, levels=0)
    Q_0 = torch.full((1, *geometry.shape(0)), -math.inf)
    Q_0[0, 0, 0, 4, 6] = Q_0[0, 0, 1, 4, 4] = 1.0  # from x = 4 to 8, and from x = 12 to 12: the same bin
    assert decode(Q_0.clone(), geometry, "bins").verified.flatten().tolist() == [True, False]
    assert decode(Q_0.clone(), geometry, "exact").verified.flatten().tolist() == [True, True]


@pytest.mark.parametrize("reciprocal", ["bins", "exact", "none"])
@pytest.mark.parametrize("radius", [None, 8])
def test_points_without_a_path_have_no_match(reciprocal: str, radius: int | None) -> None:
    geometry = Geometry((16, 16), (16, 16), radius=radius, levels=0)
    decoded = decode(torch.full((1, *geometry.shape(0)), -math.inf), geometry, reciprocal)  # type: ignore[arg-type]
    assert not decoded.verified.any()


@pytest.mark.slow
@settings(max_examples=60)
@given(lattices(), seeds, batches, st.sampled_from(["bins", "exact", "none"]), st.booleans())
def test_the_cpu_kernel_agrees(geometry: Geometry, seed: int, batch: int, reciprocal: Any, few_ties: bool) -> None:
    pooled, switches = pooled_volume(seed, batch, geometry, 0)
    coarse = with_gaps(seeded_volume(seed + 1, *pooled.shape), seed)
    if few_ties:
        coarse += torch.rand(coarse.shape, generator=torch.Generator().manual_seed(seed))
    tables = 2 if reciprocal == "none" else 3
    result, expected = both(best_pooled, coarse, pooled, switches, geometry, reciprocal)
    assert_identical((result[:tables], expected[:tables]))
    given = (coarse, pooled, switches, geometry, reciprocal)
    assert_identical((decode_pooled(*given), plainly(decode_pooled, *given)))


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("radius", [4, None])
@pytest.mark.parametrize(
    "sizes", [((40, 56), (48, 40)), ((16, 24), (24, 600)), ((24, 600), (16, 16)), ((200, 16), (16, 24))]
)
def test_any_number_of_threads_and_images_of_very_different_sizes(sizes: Any, radius: int | None, number: int) -> None:
    geometry = Geometry(*sizes, radius=radius, levels=1)
    with threads(number):
        results = both(fused.correlate_and_pool, *tied_cells(geometry, 4, 9), geometry, 4, 1.0)
        assert_identical(results)
        given = (results[1][0], *results[1], geometry, "bins")
        assert cpu.best_pooled(*given).cells.dtype == torch.int64
        assert_identical((decode_pooled(*given), plainly(decode_pooled, *given)))


@everywhere
@pytest.mark.parametrize("reciprocal", ["bins", "exact", "none"])
def test_the_gpu_kernel_agrees(g: Geometry, reciprocal: Reciprocal, gpu: ModuleType, gpu_device: str) -> None:
    scores = grid_volume(g, 0, 0, device=gpu_device)
    pooled, switches = max_pooling.definition(scores, g.window(1), g.pool_offset(0), g.pool_reach)
    coarse = grid_volume(g, 0, 1, device=gpu_device)
    for some in (with_gaps(coarse), coarse - torch.inf):
        decoded = gpu.decode_pooled(some, pooled, switches, g, reciprocal)
        plain = plainly(decode_pooled, some, pooled, switches, g, reciprocal)
        torch.testing.assert_close(decoded.scores, plain.scores, rtol=0, atol=0)
        reached = torch.isfinite(decoded.scores)
        torch.testing.assert_close(decoded.cells[reached], plain.cells[reached])
        torch.testing.assert_close(decoded.points1[reached], plain.points1[reached])
        torch.testing.assert_close((decoded.points0, decoded.verified), (plain.points0, plain.verified))
