"""Flow of images that are turned or zoomed: what is left of the motion after the transformations of a search.

Filters, motion models and smoothness expect displacements that hardly change from pixel to pixel. So each match is
taken back through its own transformation T. What is left of its motion is interpolated and refined to r, with the
second image seen through T. A pixel p then moves to T(p + r(p)), with T of the match that it belongs to.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepmatching.flow.refinement import refine_finite
from deepmatching.flow.settings import RefinementSettings
from deepmatching.geometry.homographies import apply, inside
from deepmatching.matches import Matches
from deepmatching.search.transformations import pixels_of, seen_through, tensor_of

_LARGEST_ZOOM = 20.0  #: how much a pixel beyond the matches may be zoomed further than they are; a horizon has no end


class Views(NamedTuple):
    """The second image as the first one would show it, for each of K transformations, on the images' device."""

    images: Tensor  #: (K, C, H, W); the first image where the second has nothing to show
    covered: Tensor  #: (K, H, W) bool, where it has
    matrices: Tensor  #: (K, 3, 3) float64, from the first image to the second
    numbers: Tensor  #: (N,) int64, the transformation of each match
    ends: Tensor  #: (N, 2) float32, where each match ends in the view of its transformation


def is_upright(matches: Matches) -> bool:
    """Return whether no search found these matches, or one that found no transformation."""
    if matches.transformation is None or matches.transformations is None:
        return True
    used = matches.transformations[matches.transformation.unique()]
    return bool((used == torch.eye(3, device=used.device)).all())


def views_of(matches: Matches, image0: Tensor, image1: Tensor) -> Views | None:
    """Return the views that the flow of these matches needs; None if no search found a transformation."""
    if is_upright(matches):
        return None
    assert matches.transformation is not None and matches.transformations is not None
    used, places = np.unique(matches.transformation.detach().cpu().numpy(), return_inverse=True)
    table = matches.transformations.detach().cpu().double().numpy()[used]
    if image0.shape[0] != image1.shape[0]:  # one grey, one in colour
        image0, image1 = (image.expand(3, -1, -1) for image in (image0, image1))
    start, end = (points.astype(np.float64) for points in matches.numpy()[:2])
    ends, images, covered, matrices = np.empty_like(end), [], [], []
    first, second = pixels_of(image0), pixels_of(image1)
    size0, size1 = first.shape[:2], second.shape[:2]
    everywhere = np.stack(np.meshgrid(np.arange(size0[1]), np.arange(size0[0])), axis=2).reshape(-1, 2)
    for number, given in enumerate(table):
        own = places == number
        middle = start[own].mean(axis=0)
        weight = given[2] @ (*middle, 1.0)
        if not np.isfinite(given).all() or weight <= 0 or abs(np.linalg.det(given / weight)) < 1e-9:
            return None  # of no search of ours
        matrix = given / weight
        shown = inside(apply(matrix, everywhere), size1).reshape(size0)
        images.append(np.where(shown[..., None], seen_through(second, matrix, size0, middle), first))
        covered.append(shown)
        matrices.append(matrix)
        ends[own] = apply(np.linalg.inv(matrix), end[own])
    device = image0.device
    return Views(
        torch.stack([tensor_of(image) for image in images]).to(device),
        torch.from_numpy(np.stack(covered)).to(device),
        torch.from_numpy(np.stack(matrices)).to(device),
        torch.from_numpy(places.reshape(-1)).to(device),
        torch.from_numpy(ends.astype(np.float32)).to(device),
    )


@torch.no_grad()
def refine_through(views: Views, left: Tensor, match: Tensor, image0: Tensor, settings: RefinementSettings) -> Tensor:
    """Refine what is left of the motion, r (H, W, 2), and compose it with the transformations: the flow, float32.

    Each pixel belongs to the match of a number in ``match``, (H, W). Never waits for a GPU.
    """
    number = views.numbers[match]
    view = views.images.gather(0, number[None, None].expand(1, views.images.shape[1], -1, -1))[0]
    covered = views.covered.gather(0, number[None])[0]
    refined = refine_finite(left, image0, view, settings)
    return _composed(views, torch.where(covered[..., None], refined, left), number)


def _composed(views: Views, left: Tensor, number: Tensor) -> Tensor:
    """Return T(p + r(p)) − p at every pixel p, float32 (H, W, 2)."""
    rows, columns = (torch.arange(side, device=left.device, dtype=torch.float64) for side in left.shape[:2])
    here = torch.stack([columns.expand(len(rows), -1), rows[:, None].expand(-1, len(columns))], dim=2)
    flow = torch.zeros_like(here)
    for k, matrix in enumerate(views.matrices):
        mapped = (here + left) @ matrix[:, :2].T + matrix[:, 2]
        moved = mapped[..., :2] / mapped[..., 2:].clamp(min=1 / _LARGEST_ZOOM) - here
        flow = torch.where((number == k)[..., None], moved, flow)
    return flow.float()
