"""Sub-pixel matches."""

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.targets import Decoded, positions
from deepmatching.models import build_network
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators import correlation, subpixel
from deepmatching.network.operators.subpixel import (
    correlation_around,
    refine_to_subpixel,
    scores_around,
    soft_offsets,
    surroundings,
)


def test_the_offset_is_the_mean_position() -> None:
    around = torch.full((5, 5), -torch.inf)
    around[2, 2] = around[2, 3] = 0.0
    assert soft_offsets(around, 3.0).tolist() == pytest.approx([0.0, 0.5])
    around[2, 3] = 1.0
    weight = float(torch.sigmoid(torch.tensor(3.0)))
    assert soft_offsets(around, 3.0).tolist() == pytest.approx([0.0, weight])
    assert soft_offsets(torch.full((5, 5), -torch.inf), 3.0).tolist() == [0.0, 0.0]


def test_surroundings_are_the_cells_around() -> None:
    scores = torch.arange(42.0).view(1, 1, 1, 6, 7)
    around = surroundings(scores, torch.tensor([[[3 * 7 + 5]]]))[0, 0, 0]
    assert torch.equal(around[:, :4], scores[0, 0, 0, 1:6, 3:7])
    assert torch.isinf(around[:, 4]).all()


def test_gradients_of_the_offset_through_the_surroundings() -> None:
    torch.manual_seed(0)
    scores = torch.rand(2, 1, 2, 4, 6, dtype=torch.float64, requires_grad=True)
    cells = torch.tensor([[[0, 23]], [[8, 14]]])  # corners of the map, and cells inside
    sharpness = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s, k: soft_offsets(surroundings(s, cells), k), (scores, sharpness))


sizes = st.tuples(st.integers(2, 4), st.integers(2, 5))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 1000), patch=st.sampled_from([1, 2, 4]), batch=st.integers(1, 2), size0=sizes, size1=sizes,
    alpha=st.sampled_from([4, 8]), beta=st.sampled_from([4, 6, 10]), chunk=st.sampled_from([1, 2**13, 2**22]),
)  # fmt: skip
def test_scores_around_a_target_are_those_of_the_volume(
    seed: int, patch: int, batch: int, size0: tuple[int, int], size1: tuple[int, int], alpha: int, beta: int,
    chunk: int,
) -> None:  # fmt: skip
    """On any grid of reference points, for images of two sizes, all at once or in parts."""
    torch.manual_seed(seed)
    pixels0, pixels1 = ((8 * rows, 8 * columns) for rows, columns in (size0, size1))
    geometry = Geometry(pixels0, pixels1, alpha=alpha, beta=beta, radius=None, levels=0)
    extra = 1 if patch == 1 else 0
    shapes = ((batch, 3, 4 * rows + extra, 4 * columns + extra) for rows, columns in (size0, size1))
    cells = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    volume = correlation(cells[0], cells[1], geometry, patch)  # the absolute lattice: its cells are target positions
    targets = torch.randint(0, volume.shape[3] * volume.shape[4], volume.shape[:3])
    rows, columns = targets // volume.shape[4], targets % volume.shape[4]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subpixel, "chunk", lambda _: chunk)
        around = correlation_around(cells[0], cells[1], rows, columns, geometry, patch)
    torch.testing.assert_close(around, surroundings(volume, targets))


def test_a_shift_of_half_a_cell_is_found_between_the_cells() -> None:
    """A smooth picture moved by 3 pixels: matches on cells are 1 pixel off, refined ones are closer."""
    torch.manual_seed(0)
    coarse = torch.rand(1, 3, 20, 20)
    big = torch.nn.functional.interpolate(coarse, scale_factor=8, mode="bicubic").clamp(0, 1)
    image0, image1 = big[:, :, 16:112, 16:112], big[:, :, 16:112, 13:109]
    network = build_network("hog", radius=16, sharpness=60.0)
    refined, on_cells = (network.decode(image0, image1, Decoding(subpixel=on)) for on in (True, False))
    errors = [(d.points1 - d.points0)[d.verified][:, 0].sub(3).abs().median() for d in (refined, on_cells)]
    assert errors[1] == 1
    assert errors[0] < 0.6
    assert torch.equal(refined.scores, on_cells.scores)


@pytest.mark.parametrize("radius", [2, 6, 16])
def test_refined_matches_stay_inside_the_image_and_within_the_radius(radius: int) -> None:
    torch.manual_seed(1)
    image0, image1 = torch.rand(2, 2, 3, 40, 48)
    network = build_network("compact", radius=radius, levels=1, sharpness=1.0)
    decoded = network.decode(image0, image1, Decoding("none"))
    assert (decoded.points1 >= 0).all() and (decoded.points1 <= torch.tensor([47.5, 39.5])).all()
    moves = (decoded.points1 - decoded.points0)[decoded.scores.isfinite()].abs()
    assert radius - 1 < moves.max() <= radius


def test_a_network_without_sharpness_is_not_refined() -> None:
    network = build_network("hog", radius=16)
    assert isinstance(network, Network) and network.sharpness is None
    decoded = network.decode(*torch.rand(2, 1, 3, 32, 32))
    assert torch.equal(decoded.points1 % 2, torch.zeros_like(decoded.points1))
    geometry = network.geometry((32, 32), (32, 32))
    cells0, cells1 = network.describe(*torch.rand(2, 1, 3, 32, 32), geometry)
    around = scores_around(decoded, cells0, cells1, geometry, 4, 1.4)
    moved = refine_to_subpixel(decoded, around, geometry, torch.tensor(5.0))
    assert (moved.points1 - decoded.points1).abs().max() <= 4


@pytest.mark.parametrize("name", ["hog", "compact", "vgg"])
@pytest.mark.parametrize(("size0", "size1"), [((40, 64), (40, 64)), ((32, 24), (48, 40))])
@pytest.mark.parametrize("radius", [10, None])
@pytest.mark.parametrize("exponent", [1.4, torch.tensor(2.5)])
def test_the_kernels_agree(
    name: str, size0: tuple[int, int], size1: tuple[int, int], radius: int | None, exponent: torch.Tensor | float,
    gpu: ModuleType, gpu_device: str,
) -> None:  # fmt: skip
    """Matches anywhere in their windows, so some at the border of the image, and some off it."""
    torch.manual_seed(4)
    network = build_network(name, radius=radius, levels=2)
    geometry, patch = network.geometry(size0, size1), network.descriptor.patch
    with torch.no_grad():
        cells = network.describe(torch.rand(2, 3, *size0), torch.rand(2, 3, *size1), geometry)
    shape, window = (2, *geometry.grid(0)), geometry.window(0)
    where = torch.randint(0, window[0] * window[1], shape)
    matches = Decoded(*positions(where, geometry), torch.rand(shape), where, torch.ones(shape, dtype=torch.bool))
    around = scores_around.definition(matches, *cells, geometry, patch, exponent)
    assert torch.isinf(around).any() and (around > 0).any()
    there = Decoded._make(None if value is None else value.to(gpu_device) for value in matches)
    nu = exponent.to(gpu_device) if isinstance(exponent, torch.Tensor) else exponent
    found = gpu.scores_around(there, *(c.to(gpu_device) for c in cells), geometry, patch, nu)
    torch.testing.assert_close(found.cpu(), around, atol=2e-5, rtol=1e-4)

    around[0, 0, 0] = -torch.inf
    sharpness = torch.tensor(7.0)
    expected = refine_to_subpixel.definition(matches, around, geometry, sharpness)
    moved = gpu.refine_to_subpixel(there, around.to(gpu_device), geometry, sharpness.to(gpu_device))
    torch.testing.assert_close(moved.points1.cpu(), expected.points1, atol=1e-4, rtol=0)
    assert moved.scores is there.scores
