"""Masks: the scores without the masked points and targets, by explicit sums."""

import itertools

import pytest
import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.strips import Tiling
from deepmatching.geometry.targets import Decoded
from deepmatching.network.descriptors import HOG
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators.aggregation import aggregation
from deepmatching.network.operators.masking import Visible, mask_cells, visible_positions

SIZE = (72, 88)


def mask(rows: slice, columns: slice, size: tuple[int, int] = SIZE) -> Tensor:
    """Return a mask (1, 1, H, W), 0 in a rectangle."""
    usable = torch.ones(1, 1, *size)
    usable[..., rows, columns] = 0
    return usable


MASKS = mask(slice(20, 45), slice(30, 61)), mask(slice(0, 33), slice(50, 88))


def pictures() -> tuple[Tensor, Tensor]:
    noise = torch.nn.functional.avg_pool2d(torch.rand(1, 1, 100, 120), 3, 1, 1)
    return noise[..., 10:82, 10:98].contiguous(), noise[..., 13:85, 4:92].contiguous()


def decode(network: Network, images: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor], **options: object) -> Decoded:
    """Match images with masks."""
    masked = [torch.cat(each, dim=1) for each in zip(images, masks, strict=True)]
    return network.decode(*masked, Decoding(**options), network.geometry(SIZE, SIZE))  # type: ignore[arg-type]


def test_cells_and_positions_are_masked_if_a_pixel_of_theirs_is() -> None:
    one = mask(slice(5, 6), slice(8, 9), (8, 12))
    cells = mask_cells(torch.ones(1, 3, 4, 6), one, 2, 4)
    assert torch.argwhere(cells[0, 1] == 0).tolist() == [[2, 4]]
    at_corners = mask_cells(torch.ones(1, 3, 5, 7), one, 2, 1)
    assert torch.argwhere(at_corners[0, 1] == 0).tolist() == [[3, 4]]  # pixel 5 touches the corner 6, not 4
    visible = visible_positions(cells, 4)
    assert visible.shape == (1, 5, 7)
    assert torch.argwhere(~visible[0]).tolist() == [[2, 4], [2, 5], [3, 4], [3, 5]]
    assert torch.equal(visible_positions(at_corners, 1), at_corners[:, 0] != 0)


@pytest.mark.parametrize("radius", [16, None])
def test_masked_children_are_left_out_of_the_mean(radius: int | None) -> None:
    """The weights make the mean over all children that over the visible ones."""
    network, nu = Network(HOG(), radius), 1.4
    geometry = network.geometry(SIZE, SIZE)
    cells0, cells1 = (mask_cells(torch.rand(1, 9, 36, 44) + 0.1, usable, 2, 4) for usable in MASKS)
    visible = Visible.of(cells0, cells1, geometry, 4, [nu])
    known = visible.weights[0] > 0
    assert 0 < known.sum() < known.numel()
    scores = torch.rand(1, *geometry.grid(0), 2, 2) * known[..., None, None]
    links = [(down, right, 0, 0) for down, right, *_ in geometry.links(0)]
    weighted = visible.weigh(aggregation(scores, geometry.grid(1), links) ** nu, geometry, 1)
    for i, j in itertools.product(*map(range, geometry.grid(1))):
        children = [
            scores[0, i + y, j + x]
            for y, x, *_ in links
            if 0 <= i + y < known.shape[1] and 0 <= j + x < known.shape[2] and known[0, i + y, j + x]
        ]
        expected = torch.stack(children).mean(dim=0) ** nu if children else torch.zeros(2, 2)
        torch.testing.assert_close(weighted[0, i, j], expected)
        assert (visible.weights[1][0, i, j] > 0) == bool(children)


def test_a_reference_patch_is_rectified_by_its_visible_part() -> None:
    geometry = Network(HOG(), 16).geometry(SIZE, SIZE)
    cells = mask_cells(torch.ones(1, 9, 36, 44), mask(slice(8, 10), slice(0, 88)), 2, 4)  # the row of cells 4
    weights = Visible.of(cells, cells, geometry, 4, [2.0]).weights[0][0]
    assert (weights[0] == 1).all()  # cells 0 to 3
    torch.testing.assert_close(weights[1], torch.full((11,), (16 / 12) ** 2))  # cells 4 to 7, centred at 6


@pytest.mark.parametrize("radius", [16, None])
@pytest.mark.parametrize("pooling", ["hard", "soft"])
@pytest.mark.parametrize("levels", [0, 1, None])
def test_no_match_starts_or_ends_in_a_mask(radius: int | None, pooling: str, levels: int | None) -> None:
    network = Network(HOG(), radius, levels, pooling=pooling)  # type: ignore[arg-type]
    found = decode(network, pictures(), MASKS)
    kept = found.verified[0]
    assert kept.sum() > 20
    for points, usable in zip((found.points0, found.points1[0]), MASKS, strict=True):
        x, y = points[kept].long().unbind(dim=-1)
        around = itertools.product((-1, 0), (-1, 0))
        assert all(usable[0, 0, (y + i).clamp(min=0), (x + j).clamp(min=0)].all() for i, j in around)
    x, y = found.points0.long().unbind(dim=-1)
    hidden = torch.stack([MASKS[0][0, 0, y + i, x + j] for i in (-1, 0) for j in (-1, 0)]).amin(dim=0) == 0
    assert (found.scores[0][hidden] == -torch.inf).all()
    assert radius is not None or found.scores[0][~hidden].isfinite().all()  # within a radius, all may be masked


@pytest.mark.parametrize("radius", [16, None])
def test_the_volumes_and_inference_without_them_agree(radius: int | None) -> None:
    class Plain(Network):
        """Decodes from all volumes, as every network does that differs from the paper's."""

        def first_scores(self, cells0: Tensor, cells1: Tensor, geometry: Geometry) -> Tensor:
            return super().first_scores(cells0, cells1, geometry)

    images = pictures()
    fused, plain = (decode(kind(HOG(), radius), images, MASKS) for kind in (Network, Plain))
    assert torch.equal(fused.verified, plain.verified)
    assert torch.equal(fused.points1[fused.verified], plain.points1[fused.verified])
    torch.testing.assert_close(fused.scores, plain.scores)


@pytest.mark.parametrize("radius", [16, None])
def test_strips_give_the_same_matches(radius: int | None) -> None:
    network, images = Network(HOG(), radius), pictures()
    whole, cut = (decode(network, images, MASKS, tiling=tiling) for tiling in (Tiling(1, 0), Tiling(3, 2)))
    assert torch.equal(whole.scores, cut.scores) and torch.equal(whole.verified, cut.verified)
    assert torch.equal(whole.points1, cut.points1)


@pytest.mark.parametrize("radius", [16, None])
def test_masks_that_hide_nothing_change_nothing(radius: int | None) -> None:
    network, images = Network(HOG(), radius), pictures()
    plain = network.decode(*images)
    ones = decode(network, images, (torch.ones(1, 1, *SIZE),) * 2)
    assert torch.equal(plain.scores, ones.scores) and torch.equal(plain.points1, ones.points1)


def test_masked_targets_do_not_compete() -> None:
    """A target bin that the mask covers in part belongs to a match that ends in the other part of it."""
    network, (first, second) = Network(HOG(), None, 0), pictures()
    all_usable = torch.ones(1, 1, *SIZE)
    half = mask(slice(0, 72), slice(44, 88))  # cuts the bin of pixels 40 to 48
    hidden = decode(network, (first, second), (all_usable, half))
    x = hidden.points1[0, ..., 0][hidden.verified[0]]
    assert ((x >= 40) & (x < 44)).any() and (x < 44).all()
