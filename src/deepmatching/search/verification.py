"""The transformations that a pair needs: candidates, fitted, checked, and compared with no transformation at all."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from deepmatching.geometry.homographies import apply, centre, inside, jacobians, resizing
from deepmatching.network.network import Network
from deepmatching.progress import tell
from deepmatching.search.candidates import Candidate, agreeing, for_small_images, reduced_area, try_all
from deepmatching.search.planes import planes, sparse_matches
from deepmatching.search.settings import SETTINGS
from deepmatching.search.transformations import Transformation, fit, resized, seen_through, tensor_of, visible_box


@torch.no_grad()
def find_transformations(
    images: tuple[np.ndarray, np.ndarray],
    network: Network,
    transformations: Sequence[tuple[float, float]],
    radius: int | None,
    originals: tuple[np.ndarray, np.ndarray] | None = None,
) -> list[Transformation]:
    """Return the transformations that the pair needs, the one that explains most first; the identity may be among them.

    A transformation that explains little more than the identity does not count.

    Args:
        images: (H, W, C) each.
        transformations: rotations and zooms to try.
        radius: of plain matching.
        originals: the images before they were reduced; they have more sparse features.
    """
    identity = check(images, network, np.eye(3), radius)
    found = [] if identity is None else [identity]
    is_one_size = images[0].shape[:2] == images[1].shape[:2]
    if identity is not None and is_one_size and identity.support >= 1 - SETTINGS.min_new_area:
        return found  # no transformation can explain as much more as it must
    upright = len(found)
    _add(found, on_planes(images, originals or images), images, network, planar=True)
    if all(known.support < SETTINGS.high_support for known in found[upright:]):
        _add(found, try_all(images, network, transformations), images, network, planar=False)
    return choose(found, images[0][..., 0].size, radius)


def on_planes(images: tuple[np.ndarray, np.ndarray], originals: tuple[np.ndarray, np.ndarray]) -> list[Candidate]:
    """Return the candidates of the planes in which sparse features match, those of the images before reduction."""
    if min(min(image.shape[:2]) for image in images) < SETTINGS.min_checked_side:
        return []
    frames = [resizing(old.shape[:2], new.shape[:2]) for old, new in zip(originals, images, strict=True)]
    points0, points1 = (apply(*each) for each in zip(frames, sparse_matches(originals), strict=True))
    chosen = [each for _, each in planes(points0, points1, SETTINGS.features_within)]
    return [Candidate(points0[n], points1[n], np.ones(len(n)), 1.0, SETTINGS.features_within) for n in chosen]


def _add(
    found: list[Transformation],
    candidates: list[Candidate],
    images: tuple[np.ndarray, np.ndarray],
    network: Network,
    planar: bool,
) -> None:
    """Append the transformations of the best candidates that the ones before do not explain."""
    failed = 0
    for number, candidate in enumerate(candidates[: SETTINGS.max_candidates], 1):
        tell("candidate", number, min(len(candidates), SETTINGS.max_candidates))
        is_found = any(known.support >= SETTINGS.min_support_found for known in found)
        if candidate.agreement < (SETTINGS.min_later_agreement if is_found else SETTINGS.min_agreement):
            break
        unexplained = np.ones(len(candidate.points0))
        for known in found:
            unexplained = np.minimum(unexplained, 1 - explained(candidate, known))
        least = SETTINGS.min_unexplained_fraction * candidate.weights.sum()
        if (candidate.weights * unexplained).sum() < least:
            continue
        new = unexplained >= 0.5
        matrix = fit(candidate.points0[new], candidate.points1[new], candidate.spacing, planar)
        least_support = SETTINGS.min_plane_support if planar else SETTINGS.min_support
        refined = None if matrix is None else refine(images, network, matrix, least_support)
        if refined is not None:
            found.append(refined)
        else:
            failed += 1
        if failed == SETTINGS.max_failed_candidates:
            break


def refine(
    images: tuple[np.ndarray, np.ndarray], network: Network, matrix: np.ndarray, min_support: float
) -> Transformation | None:
    """Look at a transformation, fit it to the matches that it gives, and so on while they become more.

    None if it has less than ``min_support`` in the end.
    """
    look = check(images, network, matrix, times=SETTINGS.first_area)
    if look is None or not _is_supported(look, SETTINGS.min_first_support, SETTINGS.min_first_confidence):
        return None
    fitted = fit(look.points0, look.points1, max(1.0, look.within))
    best = None
    for _ in range(SETTINGS.max_rounds):
        transformation = check(images, network, matrix if fitted is None else fitted)
        if transformation is None or (best is not None and transformation.area <= best.area):
            break
        grown = best is None or transformation.area > SETTINGS.min_growth * best.area
        best = transformation
        fitted = fit(transformation.points0, transformation.points1, max(1.0, transformation.within))
        if fitted is not None and transformation.support >= SETTINGS.high_support:  # another round would find no more
            best = replace(transformation, matrix=fitted)
            break
        if fitted is None or not grown or transformation.weights.sum() < SETTINGS.min_confidence / 2:
            break
    is_found = best is not None and _is_supported(best, min_support, SETTINGS.min_confidence)
    return best if is_found else None


def _is_supported(found: Transformation, min_support: float, min_confidence: float) -> bool:
    return found.support >= min_support and bool(found.weights.sum() >= min_confidence)


@torch.no_grad()
def check(
    images: tuple[np.ndarray, np.ndarray],
    network: Network,
    matrix: np.ndarray,
    radius: int | None = None,
    times: float = SETTINGS.checked_area,
) -> Transformation | None:
    """Match again at a reduced size, with the second image seen through a transformation; None if it shows nothing.

    Args:
        radius: largest displacement in pixels of the first image, if it is smaller than that at the reduced size.
        times: pixels of the reduced images, as a multiple of those on which all transformations are tried.
    """
    size0, size1 = images[0].shape[:2], images[1].shape[:2]
    box = visible_box(matrix, size0, size1)
    if box is None or min(box[2] - box[0], box[3] - box[1]) < SETTINGS.min_checked_side:
        return None
    area = times * reduced_area(images)
    part = images[0][box[0] : box[2], box[1] : box[3]]
    factor = min(1.0, math.sqrt(area / part[..., 0].size))
    reduced, frame = resized(part, factor, SETTINGS.min_checked_side)
    size = reduced.shape[:2]
    shift = np.array([[1, 0, -box[1]], [0, 1, -box[0]], [0, 0, 1.0]])
    back = np.linalg.inv(frame @ shift)  # from the reduced part to the first image
    other = seen_through(images[1], matrix @ back, size, centre(size))
    largest = SETTINGS.radius * math.sqrt(area / SETTINGS.radius_area)
    limit = largest if radius is None else min(largest, radius * factor)
    network = for_small_images(network, max(1, round(limit / 8)) * 8)  # whole cells of any descriptor
    device = network.exponents.device
    first, second = (tensor_of(pixels)[None].to(device) for pixels in (reduced, other))
    geometry = network.geometry(size, size)
    decoded = network.decode(first, second, geometry=geometry)
    start, end, weights, _ = agreeing(decoded, np.eye(3), size)
    starts = decoded.points0.cpu().numpy().reshape(-1, 2) - 0.5
    visible = int(inside(apply(matrix @ back, starts), size1).sum())
    points1 = apply(matrix @ back, end)
    seen = inside(points1, size1)
    return Transformation(
        matrix, apply(back, start)[seen], points1[seen], weights[seen], geometry.alpha / factor, visible
    )


def explained(candidate: Candidate, transformation: Transformation) -> np.ndarray:
    """Return how confident the matches are that agree with those of a candidate nearby, (N,); 0 without any."""
    near, distance = _nearest(candidate.points0, transformation.points0)
    if not len(transformation.points0):
        return np.zeros(len(candidate.points0))
    steps = candidate.points0 - transformation.points0[near]
    expected = (
        transformation.points1[near]
        + (jacobians(transformation.matrix, transformation.points0[near]) @ steps[..., None])[..., 0]
    )
    off = np.hypot(*(expected - candidate.points1).T)
    return np.where(
        (distance <= 2 * transformation.spacing) & (off <= candidate.spacing), transformation.weights[near], 0
    )


def choose(found: list[Transformation], pixels: int, radius: int | None) -> list[Transformation]:
    """Choose the transformations that are needed, the one that explains most first.

    Those that plain matching copes with count as the identity.
    """
    plain = [known for known in found if is_plain(known, radius)]
    others = sorted((known for known in found if not is_plain(known, radius)), key=lambda known: -known.area)
    identity = found[:1] if found and np.array_equal(found[0].matrix, np.eye(3)) else []
    chosen: list[Transformation] = []
    ranked = others + identity
    if identity and (not others or not _adds_enough(others[0], plain + identity, pixels)):
        ranked = identity + others
    for transformation in ranked[: SETTINGS.max_transformations + 1]:
        if not chosen or _adds_enough(transformation, chosen, pixels):
            chosen.append(transformation)
    return chosen[: SETTINGS.max_transformations]


def _adds_enough(transformation: Transformation, others: list[Transformation], pixels: int) -> bool:
    """Return whether a transformation explains enough of the first image that others do not."""
    least = max(SETTINGS.min_new_area * pixels, SETTINGS.min_new_area_of_own * transformation.area)
    return gain(transformation, others) >= least


def is_plain(transformation: Transformation, radius: int | None) -> bool:
    """Return whether plain matching copes with a transformation."""
    if not len(transformation.points0):
        return True
    tilts = np.linalg.norm(jacobians(transformation.matrix, transformation.points0) - np.eye(2), ord=2, axis=(1, 2))
    moved = np.abs(transformation.points1 - transformation.points0).max(axis=1)
    is_near = radius is None or np.median(moved) <= SETTINGS.max_plain_displacement * radius
    return bool(np.median(tilts) <= SETTINGS.max_plain_tilt and is_near)


def gain(transformation: Transformation, others: list[Transformation]) -> float:
    """Return the pixels of the first image that a transformation explains and others do not."""
    weights = transformation.weights.copy()
    for other in others:
        if len(other.points0):
            near, distance = _nearest(transformation.points0, other.points0)
            there = np.where(distance <= other.spacing, other.weights[near], 0)
            weights = np.minimum(weights, np.maximum(transformation.weights - there, 0))
    return float(weights.sum()) * transformation.spacing**2


def _nearest(points: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each point, the index of the nearest of others, and the largest coordinate difference to it."""
    if not len(among):
        return np.zeros(len(points), int), np.full(len(points), np.inf)
    apart = np.abs(points[:, None] - among[None]).max(axis=2)
    near = apart.argmin(axis=1)
    return near, apart[np.arange(len(points)), near]
