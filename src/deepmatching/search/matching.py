"""Full resolution: each transformation's matches, in pixels of both images, and the best of them at every point."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import failed_allocations
from deepmatching.geometry.homographies import apply, inside
from deepmatching.io.images import size_of
from deepmatching.io.masks import usable_share
from deepmatching.matches import Matches
from deepmatching.network.network import Network
from deepmatching.search.planes import planes
from deepmatching.search.settings import SETTINGS
from deepmatching.search.transformations import (
    Box,
    Transformation,
    fit,
    pixels_of,
    seen_through,
    tensor_of,
    visible_box,
)
from deepmatching.search.verification import find_transformations

Match = Callable[..., Matches]  #: plain matching of two images, by a ``network`` if one is given
Pair = tuple[Tensor, Tensor]  #: images (C, H, W)
View = tuple[np.ndarray, Matches]  #: a transformation, and the matches that came through it

#: Fields that matches have one by one.
_FIELDS = ("keypoints0", "keypoints1", "scores", "confidence", "transformation")


@failed_allocations()
def find(
    image0: Tensor,
    image1: Tensor,
    network: Network,
    transformations: Sequence[tuple[float, float]],
    originals: Pair | None = None,
) -> list[Transformation]:
    """Find the transformations that two images (C, H, W) need, at reduced sizes; empty if plain matching is best.

    Args:
        network: the radius is that of plain matching.
        transformations: rotations in degrees and zooms to try.
        originals: the images before they were reduced, if they were.
    """
    images = pixels_of(image0), pixels_of(image1)
    first, second = originals or (image0, image1)
    larger = (
        images[0] if first is image0 else pixels_of(first),  # most are not reduced
        images[1] if second is image1 else pixels_of(second),
    )
    found = find_transformations(images, network, transformations, network.radius, larger)
    return [] if all(_is_identity(each.matrix) for each in found) else found


def search(
    image0: Tensor,
    image1: Tensor,
    network: Network,
    match: Match,
    transformations: Sequence[tuple[float, float]],
    originals: Pair | None = None,
) -> Matches:
    """Match two images (C, H, W) with the best transformation at every point, those that :func:`find` finds.

    Where few matches are right, plain ones and those near the planes in which matches lie are among the candidates.
    """
    pair = image0, image1
    views = _views(pair, find(image0, image1, network, transformations, originals), match)
    matches = _joined(views, pair, network)
    if not matches.expected_fraction < SETTINGS.doubtful:
        return matches
    if not any(_is_identity(matrix) for matrix, _ in views):
        views.append((np.eye(3), match(*pair)))
        matches = _joined(views, pair, network)
    points0, points1, _ = matches.numpy()
    least = SETTINGS.min_above_chance * len(matches) * _chance(size_of(image1), network.radius)
    for matrix, chosen in planes(points0, points1, SETTINGS.plane_within):
        view = _looked_closer(pair, matrix, points0[chosen], match, network) if len(chosen) >= least else None
        if view is None:
            break
        views.append(view)
    return _joined(views, pair, network)


def _chance(size1: tuple[int, int], radius: int | None) -> float:
    """Return the probability that a match that may end anywhere within the radius ends near a given point."""
    sides = size1 if radius is None else (min(side, 2 * radius) for side in size1)
    return math.pi * SETTINGS.plane_within**2 / math.prod(sides)


def match_through(image0: Tensor, image1: Tensor, transformations: Sequence[Transformation], match: Match) -> Matches:
    """Match two images (C, H, W) with the best transformation at every point.

    Args:
        transformations: what :func:`find` has found. Without any, the result is that of ``match(image0, image1)``.
        match: plain matching.
    """
    return _joined(_views((image0, image1), transformations, match), (image0, image1))


@failed_allocations()
def _views(pair: Pair, transformations: Sequence[Transformation], match: Match) -> list[View]:
    """Return the matches through each transformation that shows something; plain ones if there is none."""
    views = []
    for number, transformation in enumerate(transformations):
        matrix, points0 = transformation.matrix, transformation.points0
        box = _part(transformation, number, *map(size_of, pair))
        if _is_identity(matrix):
            views.append((matrix, match(*pair)))
        elif box is not None:
            views.append((matrix, _through(matrix, box, points0.mean(axis=0), pair, match)))
    return views or [(np.eye(3), match(*pair))]


@failed_allocations()
def _looked_closer(pair: Pair, matrix: np.ndarray, points0: np.ndarray, match: Match, network: Network) -> View | None:
    """Match near the plane of these points, then near that of the best of these matches, and so on; None if few fit."""
    (size0, size1), view = map(size_of, pair), None
    for radius in SETTINGS.near_radii:
        box = visible_box(matrix, size0, size1, SETTINGS.part_step)
        if box is None:
            return None
        near = partial(match, network=network.at_radius(min(network.radius or radius, radius)))
        matches = _through(matrix, box, points0.mean(axis=0), pair, near)
        view = matrix, matches
        if not _joined([view], pair, network).expected_fraction >= SETTINGS.min_near_expected:
            return None
        sure = int((matches.certainty > SETTINGS.min_sure).sum())
        points0, points1, _ = matches.best(max(sure, SETTINGS.min_sure_matches)).numpy()
        closer = fit(points0, points1, SETTINGS.plane_within)
        if closer is None:
            break
        matrix = closer
    return view


def _joined(views: list[View], pair: Pair, network: Network | None = None) -> Matches:
    """Return the best of the matches at every point, with the transformations that they came through.

    Those of a ``network`` know its number of reference points.
    """
    size0, size1 = map(size_of, pair)
    points = None if network is None else round(math.prod(network.geometry(size0, size1).grid(0)) * usable_share(*pair))
    table = torch.from_numpy(np.stack([matrix for matrix, _ in views]).astype(np.float32))
    numbered = []
    for n, (_, matches) in enumerate(views):
        numbers = torch.full((len(matches),), n, device=matches.scores.device)
        sized = replace(matches, size0=size0, size1=size1, reference_points=points)
        numbered.append(replace(sized, transformation=numbers, transformations=table.to(numbers.device)))
    filled = [matches for matches in numbered if len(matches)]
    joined = merge(filled) if len(filled) > 1 else (filled or numbered)[0]
    assert joined.transformation is not None
    used, numbers = joined.transformation.unique(return_inverse=True)
    return replace(joined, transformation=numbers, transformations=table.to(used.device)[used]) if len(used) else joined


def _is_identity(matrix: np.ndarray) -> bool:
    return np.array_equal(matrix, np.eye(3))


def _through(matrix: np.ndarray, box: Box, middle: np.ndarray, pair: Pair, match: Match) -> Matches:
    """Match this part of the first image to the second one as seen through a transformation; ``middle`` is a point."""
    (top, left, bottom, right), size1 = box, size_of(pair[1])
    matrix = matrix @ np.array([[1, 0, left], [0, 1, top], [0, 0, 1.0]])
    other = seen_through(pixels_of(pair[1]), matrix, (bottom - top, right - left), middle - (left, top))
    matches = match(pair[0][:, top:bottom, left:right], tensor_of(other).to(pair[1].device))
    start = matches.keypoints0 + matches.keypoints0.new_tensor([left, top])
    end = apply(matrix, matches.keypoints1.detach().cpu().numpy())
    kept = torch.from_numpy(inside(end, size1)).to(start.device)
    return replace(matches, keypoints0=start, keypoints1=torch.from_numpy(end).to(start))[kept]


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

    A point takes the transformation whose matches around it are most confident, but leaves that whose matches are most
    confident in all only for one that is clearly better there.
    """
    sure = [torch.ones(len(m)) if m.confidence is None else m.confidence.detach().cpu() for m in found]
    order = sorted(range(len(found)), key=lambda n: -float(sure[n].sum()))
    found, weights = [found[n] for n in order], [sure[n].double().numpy() for n in order]
    starts = torch.cat([matches.keypoints0 for matches in found]).detach().cpu().numpy()
    places, group = np.unique(starts[:, ::-1].round(2), axis=0, return_inverse=True)  # by y, then x
    best, owner, first = np.full(len(places), -np.inf), np.full(len(places), -1), 0
    for own in weights:
        numbers = group.ravel()[first : first + len(own)]
        values, rows = np.zeros(len(places)), np.full(len(places), -1)
        values[numbers], rows[numbers] = own, first + np.arange(len(own))
        total = _sums_around(places, values) * (1.0 if first else SETTINGS.min_advantage)
        better = (total > best + 1e-9) & (rows >= 0)
        best[better], owner[better] = total[better], rows[better]
        first += len(own)
    fields: dict[str, Any] = {
        name: torch.cat([getattr(matches, name) for matches in found])
        for name in _FIELDS
        if getattr(found[0], name) is not None
    }
    return replace(found[0], **fields)[torch.from_numpy(owner[owner >= 0])]


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
