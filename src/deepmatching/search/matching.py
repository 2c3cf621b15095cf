"""Full resolution: each transformation's matches, in pixels of both images, and the best of them at every point."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import failed_allocations
from deepmatching.geometry.homographies import apply, inside
from deepmatching.matches import Matches
from deepmatching.network.network import Network
from deepmatching.search.settings import SETTINGS
from deepmatching.search.transformations import Box, Transformation, pixels_of, seen_through, tensor_of, visible_box
from deepmatching.search.verification import find_transformations

Match = Callable[[Tensor, Tensor], Matches]

#: Fields that matches have one by one.
_FIELDS = ("keypoints0", "keypoints1", "scores", "confidence", "transformation")


@failed_allocations()
def find(
    image0: Tensor, image1: Tensor, network: Network, transformations: Sequence[tuple[float, float]]
) -> list[Transformation]:
    """Find the transformations that two images (C, H, W) need, at reduced sizes; empty if plain matching is best.

    Args:
        network: the radius is that of plain matching.
        transformations: rotations in degrees and zooms to try.
    """
    images = pixels_of(image0), pixels_of(image1)
    found = find_transformations(images, network, transformations, network.radius)
    return [] if all(_is_identity(each) for each in found) else found


def search(
    image0: Tensor, image1: Tensor, network: Network, match: Match, transformations: Sequence[tuple[float, float]]
) -> Matches:
    """Match two images (C, H, W): :func:`match_through` with what :func:`find` finds."""
    return match_through(image0, image1, find(image0, image1, network, transformations), match)


@failed_allocations()
def match_through(image0: Tensor, image1: Tensor, transformations: Sequence[Transformation], match: Match) -> Matches:
    """Match two images (C, H, W) with the best transformation at every point.

    Args:
        transformations: what :func:`find` has found. Without any, the result is that of ``match(image0, image1)``.
        match: plain matching.
    """
    images = pixels_of(image0), pixels_of(image1)
    matrices = [transformation.matrix for transformation in transformations]
    results = [
        _through(transformation, n, images, (image0, image1), match) for n, transformation in enumerate(transformations)
    ]
    found = [(n, matches) for n, matches in enumerate(results) if matches is not None]
    if not found:
        found, matrices = [(0, match(image0, image1))], [np.eye(3)]
    table = torch.from_numpy(np.stack(matrices).astype(np.float32))
    size0, size1 = ((int(image.shape[1]), int(image.shape[2])) for image in (image0, image1))
    numbered = [
        replace(
            matches,
            size0=size0,
            size1=size1,
            transformation=torch.full((len(matches),), n, device=matches.scores.device),
            transformations=table.to(matches.scores.device),
        )
        for n, matches in found
    ]
    filled = [matches for matches in numbered if len(matches)]
    return merge(filled) if len(filled) > 1 else (filled or numbered)[0]


def _is_identity(transformation: Transformation) -> bool:
    return np.array_equal(transformation.matrix, np.eye(3))


def _through(
    transformation: Transformation,
    number: int,
    images: tuple[np.ndarray, np.ndarray],
    tensors: tuple[Tensor, Tensor],
    match: Match,
) -> Matches | None:
    """Match the part of the first image that a transformation needs; None if there is none."""
    if _is_identity(transformation):
        return match(*tensors)
    size0, size1 = images[0].shape[:2], images[1].shape[:2]
    box = _part(transformation, number, size0, size1)
    if box is None:
        return None
    top, left, bottom, right = box
    size = bottom - top, right - left
    shift = np.array([[1, 0, left], [0, 1, top], [0, 0, 1.0]])
    middle = transformation.points0.mean(axis=0) - (left, top)
    other = seen_through(images[1], transformation.matrix @ shift, size, middle)
    matches = match(tensors[0][:, top:bottom, left:right], tensor_of(other).to(tensors[1].device))
    start = matches.keypoints0 + matches.keypoints0.new_tensor([left, top])
    end = apply(transformation.matrix @ shift, matches.keypoints1.detach().cpu().numpy())
    kept = torch.from_numpy(inside(end, size1))
    ends = torch.from_numpy(end).to(start)
    return replace(matches, keypoints0=start, keypoints1=ends)[kept.to(start.device)]


def _part(transformation: Transformation, number: int, size0: tuple[int, int], size1: tuple[int, int]) -> Box | None:
    """Return where to match: the first transformation wherever it sees the second image, others near their matches."""
    box = visible_box(transformation.matrix, size0, size1, SETTINGS.part_step)
    if number == 0 or box is None:
        return box
    (left, top), (right, bottom) = transformation.points0.min(axis=0), transformation.points0.max(axis=0)
    step, reach = SETTINGS.part_step, 2 * transformation.spacing
    first = [int((side - reach) // step) * step for side in (top, left)]
    last = [int((side + reach) // step + 1) * step for side in (bottom, right)]
    return max(box[0], first[0]), max(box[1], first[1]), min(box[2], last[0]), min(box[3], last[1])


def merge(found: list[Matches]) -> Matches:
    """Keep the best match of every reference point, in raster order.

    The transformation of a point is the one whose matches around it are most confident, the first among equals.
    """
    starts = torch.cat([matches.keypoints0 for matches in found]).detach().cpu().numpy()
    places, group = np.unique(starts[:, ::-1].round(2), axis=0, return_inverse=True)  # by y, then x
    best = np.full(len(places), -np.inf)
    owner = np.full(len(places), -1)
    first = 0
    for matches in found:
        confidence = np.ones(len(matches)) if matches.confidence is None else matches.confidence.detach().cpu().numpy()
        own = np.zeros(len(places))
        numbers = group.ravel()[first : first + len(matches)]
        own[numbers] = confidence
        total = _sums_around(places, own)
        rows = np.full(len(places), -1)
        rows[numbers] = first + np.arange(len(matches))
        better = (total > best + 1e-9) & (rows >= 0)
        best[better], owner[better] = total[better], rows[better]
        first += len(matches)
    order = torch.from_numpy(owner[owner >= 0])
    fields: dict[str, Any] = {
        name: torch.cat([getattr(matches, name) for matches in found])
        for name in _FIELDS
        if getattr(found[0], name) is not None
    }
    return replace(found[0], **fields)[order]


def _sums_around(places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return, for each place (y, x), the sum of the values of places within the window around it."""
    cell = 8.0
    index = np.floor((places - places.min(axis=0)) / cell).astype(int)
    grid = np.zeros(index.max(axis=0) + 1)
    np.add.at(grid, tuple(index.T), values)
    reach = int(SETTINGS.window // cell)
    padded = np.pad(grid, reach)
    sums = sum(
        padded[i : i + grid.shape[0], j : j + grid.shape[1]] for i in range(2 * reach + 1) for j in range(2 * reach + 1)
    )
    return np.asarray(sums)[tuple(index.T)]
