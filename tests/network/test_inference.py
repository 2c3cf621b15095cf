from contextlib import nullcontext

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import Tiling
from deepmatching.kernels.registry import plain_operators
from deepmatching.network.descriptors import HOG
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.progress import listening


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@example((48, 16), (16, 16), 6, Tiling(2, 1), "bins", True)  # a strip beyond the target
@example((42, 42), (42, 59), 20, Tiling(4, 1), "bins", True)  # other rounding in float32
@given(
    st.tuples(st.integers(16, 90), st.integers(16, 60)),
    st.tuples(st.integers(16, 90), st.integers(16, 60)),
    st.sampled_from([None, 6, 10, 20]),
    st.builds(Tiling, st.integers(2, 12), st.integers(1, 4)),
    st.sampled_from(["bins", "exact", "none"]),
    st.booleans(),
)
def test_strips_do_not_change_the_matches(
    size0: tuple[int, int], size1: tuple[int, int], radius: int | None, strips: Tiling, reciprocal: str, plain: bool
) -> None:
    """Kernels give the same bits. The rounding of the definitions depends on the shapes, so they run in float64."""
    told: list[tuple[str, int, int]] = []
    dtype = torch.float64 if plain else torch.float32
    images = [torch.rand(2, 3, *size, dtype=dtype) for size in (size0, size1)]
    network = Network(HOG(), radius).to(dtype)
    with plain_operators() if plain else nullcontext(), listening(lambda *strip: told.append(strip)):
        whole, cut = (network.decode(*images, Decoding(reciprocal, tiling=own)) for own in (Tiling(), strips))  # type: ignore[arg-type]
    tolerance = 1e-12 if plain else 0
    for name in whole._fields:
        torch.testing.assert_close(getattr(whole, name), getattr(cut, name), rtol=tolerance, atol=tolerance, msg=name)
    assert told == [("strip", number, len(told)) for number in range(1, len(told) + 1)]
    assert bool(told) == strips.is_split(network.geometry(size0, size1))


@pytest.mark.parametrize("alpha", [4, 8])
def test_a_strip_is_a_part_of_the_geometry(alpha: int) -> None:
    geometry = Geometry((64, 40), (64, 40), alpha=alpha, radius=12, levels=2)
    strip = geometry.strip((2, 5), (2, 6))
    assert strip.grid(0) == (3, geometry.grid(0)[1])
    assert strip.grid(1) == (4, geometry.grid(1)[1])
    assert torch.equal(strip.reference_points(0)[0], geometry.reference_points(0)[0][2:5])
    assert torch.equal(strip.target_points(0)[0], geometry.target_points(0)[0][2:5])
    assert strip.first_cell == (2 + 2 * alpha // 2, 2)
    assert strip.links(0) == geometry.links(0)  # both start at row 2
    assert geometry.strip((1, 5), (2, 6)).links(0)[0][0] == geometry.links(0)[0][0] + 1
