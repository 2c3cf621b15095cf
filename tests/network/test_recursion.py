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
@settings(max_examples=100, deadline=None)
@given(sizes, sizes, st.sampled_from([None, None, 2, 4, 6, 8, 10, 14, 20]), st.integers(0, 3), st.integers(0, 9))
def test_decoding_equals_the_recursion(
    size0: tuple[int, int], size1: tuple[int, int], radius: int | None, levels: int, seed: int
) -> None:
    geometry = small_geometry(size0, size1, radius, levels)
    S_0 = torch.rand(geometry.shape(0), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    Q_0, S = both_decodings(geometry, S_0)
    assert torch.equal(Q_0, recursive_decoding(S, geometry))  # to the last bit, and −∞ in the same cells


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


@torch.no_grad()
def test_the_two_lattices_agree_at_level_zero_and_may_differ_above() -> None:
    """Same cells, same scores at level 0; above, points that are not multiples of 2^l pool over other windows."""
    images = torch.rand(2, 1, 1, 32, 32, dtype=torch.float64)
    full, window = (Network(HOG(), radius, 2).double()(*images) for radius in (None, 32))
    assert full.geometry.window(0) == (17, 17) and window.geometry.window(0) == (33, 33)
    differ = 0
    for i in range(4):
        for j in range(4):
            top, left = 14 - 4 * i, 14 - 4 * j  # the cell of the window that lies at the image's corner
            part = (0, i, j, slice(top, top + 17), slice(left, left + 17))
            torch.testing.assert_close(window.S[0][part], full.S[0][0, i, j])
            differ += not torch.equal(torch.isfinite(window.Q[0][part]), torch.isfinite(full.Q[0][0, i, j]))
    assert differ > 0
