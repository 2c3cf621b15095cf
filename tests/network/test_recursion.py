"""The network's decoding equals the original's recursion, on both lattices."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.network.descriptors import HOG
from deepmatching.network.network import Network
from helpers.recursion import recursive_decoding

sizes = st.tuples(st.integers(8, 47), st.integers(8, 47))


@torch.no_grad()
def both_decodings(geometry: Geometry, S_0: Tensor, exponent: float = 1.4) -> tuple[Tensor, list[Tensor]]:
    """Q_0 of the network, and S_0 … S_L for the recursion."""
    network = Network(HOG(), geometry.radius, geometry.levels, exponent).double()
    S, switches = network.fine_to_coarse(S_0[None], geometry)
    Q_0 = network.coarse_to_fine(S, switches, geometry)[0]
    return Q_0[0], [scores[0] for scores in S]


def small_geometry(size0: tuple[int, int], size1: tuple[int, int], radius: int | None, levels: int) -> Geometry:
    rule = Geometry(size0, size1, radius=radius, levels=0)
    return Geometry(size0, size1, radius=radius, levels=min(levels, rule._max_levels()))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    size0=sizes,
    size1=sizes,
    radius=st.sampled_from([2, 4, 6, 8, 10, 14, 20]),
    levels=st.integers(0, 3),
    seed=st.integers(0, 9),
)
def test_radius_decoding_equals_the_recursion(
    size0: tuple[int, int], size1: tuple[int, int], radius: int, levels: int, seed: int
) -> None:
    geometry = small_geometry(size0, size1, radius, levels)
    S_0 = torch.rand(geometry.shape(0), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    Q_0, S = both_decodings(geometry, S_0)
    assert torch.equal(Q_0, recursive_decoding(S, geometry))  # to the last bit, and −∞ in the same cells


@settings(max_examples=40, deadline=None)
@given(size0=sizes, size1=sizes, levels=st.integers(0, 3), seed=st.integers(0, 9))
def test_full_decoding_equals_the_recursion(
    size0: tuple[int, int], size1: tuple[int, int], levels: int, seed: int
) -> None:
    geometry = small_geometry(size0, size1, None, levels)
    S_0 = torch.rand(geometry.shape(0), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    Q_0, S = both_decodings(geometry, S_0)
    assert torch.equal(Q_0, recursive_decoding(S, geometry))


@settings(max_examples=20, deadline=None)
@given(size=sizes, radius=st.sampled_from([None, 4, 10]), seed=st.integers(0, 9))
def test_decoding_with_many_equal_scores_equals_the_recursion(
    size: tuple[int, int], radius: int | None, seed: int
) -> None:
    """Ties: both take the first maximum in raster order (powers of 1 keep the values exact)."""
    geometry = small_geometry(size, size, radius, 2)
    generator = torch.Generator().manual_seed(seed)
    S_0 = torch.randint(1, 4, geometry.shape(0), generator=generator).double() / 4
    Q_0, S = both_decodings(geometry, S_0, exponent=1.0)
    assert torch.equal(Q_0, recursive_decoding(S, geometry))


def index_recursion(S: list[Tensor], relative: bool, grid_shifts: list[tuple[int, int]], offsets: list[int]) -> Tensor:
    """A second recursion, in the original's index arithmetic: window centre 2k + offset (relative) or 2(k ± 1)."""
    best = torch.full_like(S[0], -torch.inf)

    def descend(l: int, i: int, j: int, a: int, b: int, total: float) -> None:
        if l == 0:
            best[i, j, a, b] = max(best[i, j, a, b].item(), total)
            return
        H, W, h, w = S[l - 1].shape
        pooled_h, pooled_w = S[l].shape[2:]
        for y in (0, 1):
            for x in (0, 1):
                ci, cj = i + grid_shifts[l - 1][y], j + grid_shifts[l - 1][x]
                a_, b_ = (a, b) if relative else (a + 2 * y - 1, b + 2 * x - 1)
                if not (0 <= ci < H and 0 <= cj < W and 0 <= a_ < pooled_h and 0 <= b_ < pooled_w):
                    continue
                top, left = 2 * a_ + offsets[l - 1] - 1, 2 * b_ + offsets[l - 1] - 1
                cells = [
                    (r, c) for r in range(max(0, top), min(h, top + 3)) for c in range(max(0, left), min(w, left + 3))
                ]
                r, c = max(cells, key=lambda cell: S[l - 1][ci, cj, cell[0], cell[1]].item())
                descend(l - 1, ci, cj, r, c, total + S[l - 1][ci, cj, r, c].item())

    H, W, h, w = S[-1].shape
    for i in range(H):
        for j in range(W):
            for a in range(h):
                for b in range(w):
                    descend(len(S) - 1, i, j, a, b, S[-1][i, j, a, b].item())
    return best


@pytest.mark.slow
def test_the_recursion_over_positions_equals_the_one_over_indices() -> None:
    grid_shifts = [(-1, 0), (-1, 1), (-2, 2)]
    for radius, offsets in ((None, [0, 0, 0]), (8, [0, 0, 0]), (10, [-1, -1, 0])):
        geometry = Geometry((24, 32), (96, 96), radius=radius, levels=2)
        torch.manual_seed(3)
        _, S = both_decodings(geometry, torch.rand(geometry.shape(0), dtype=torch.float64))
        over_indices = index_recursion(S, geometry.relative, grid_shifts, offsets)
        rows, columns = geometry.on_target()
        on = rows[:, None, :, None] & columns[None, :, None, :]
        assert torch.equal(recursive_decoding(S, geometry), over_indices.masked_fill(~on, -torch.inf))


def test_the_two_lattices_agree_at_level_zero_and_may_differ_above() -> None:
    """Same cells, same scores at level 0; above, points that are not multiples of 2^l pool over other windows."""
    torch.manual_seed(0)
    size = (32, 32)
    absolute, relative = (
        Geometry(size, size, radius=None, levels=2),
        Geometry(size, size, radius=32, levels=2),
    )
    image0, image1 = (
        torch.rand(1, 1, *size, dtype=torch.float64),
        torch.rand(1, 1, *size, dtype=torch.float64),
    )
    with torch.no_grad():
        full = Network(HOG(), None, 2).double()(image0, image1)
        window = Network(HOG(), 32, 2).double()(image0, image1)
    differ = 0
    for i in range(4):
        for j in range(4):
            top, left = (
                16 - 2 - 4 * i,
                16 - 2 - 4 * j,
            )  # the cell of the window that lies at the image's corner
            inside = window.S[0][0, i, j, top : top + 17, left : left + 17]
            torch.testing.assert_close(inside, full.S[0][0, i, j])
            differ += not torch.equal(
                torch.isfinite(window.Q[0][0, i, j, top : top + 17, left : left + 17]),
                torch.isfinite(full.Q[0][0, i, j]),
            )
    assert absolute.window(0) == (17, 17) and relative.window(0) == (33, 33)
    assert differ > 0
