"""Every rotation and scale at a reduced size: which of them make neighbouring matches agree, and where."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.homographies import Size, apply, centre, inside, similarity
from deepmatching.geometry.targets import pair_of
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import Decoded
from deepmatching.progress import tell
from deepmatching.search.settings import SETTINGS
from deepmatching.search.threads import one_thread_each
from deepmatching.search.transformations import resized, tensor_of, warped

#: Matches on the cells, without a confidence.
_ON_CELLS = Decoding(subpixel=False, confidence=False)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Matches that agree, such as those of one rotation and scale.

    Attributes:
        points0: (N, 2), in pixels of the first image.
        points1: (N, 2), in pixels of the second.
        weights: (N,), their confidence, or 1.
        agreement: sum of the weights, as a fraction of the points of the smaller of the reduced images.
        spacing: of the points, in pixels of the second image.
    """

    points0: np.ndarray
    points1: np.ndarray
    weights: np.ndarray
    agreement: float
    spacing: float


#: Matches on the cells, what makes them a candidate, and what gives them a confidence: both descriptors, the geometry.
_Trial = tuple[Decoded, Callable[[Decoded], Candidate], tuple[Tensor, Tensor], Geometry]


@torch.no_grad()
def try_all(
    images: tuple[np.ndarray, np.ndarray], network: Network, transformations: Sequence[tuple[float, float]]
) -> list[Candidate]:
    """Return the candidates of the rotations and zooms whose matches agree most, best first.

    For each zoom, both images (H, W, C) are reduced so that they show things equally large. The one that then has fewer
    pixels is turned and matched, without a limit on the displacement, to the other one.
    """
    network = for_small_images(network, None)
    zooms: dict[float, list[float]] = {}
    for rotation, zoom in transformations:
        zooms.setdefault(zoom, []).append(rotation)
    best: list[tuple[float, _Trial]] = []

    @torch.no_grad()
    def scored(zoom: float) -> list[tuple[float, _Trial]]:
        return [(trial[1](trial[0]).agreement, trial) for trial in _at_zoom(images, network, zoom, zooms[zoom])]

    trials = one_thread_each(scored, list(zooms)) if network.exponents.device.type == "cpu" else map(scored, zooms)
    for number in range(1, len(zooms) + 1):
        tell("zoom", number, len(zooms))
        best += next(trials)
        best = sorted(best, key=lambda entry: -entry[0])[: SETTINGS.num_scored]  # the others' descriptors are freed
    masked, finish = Decoding(masked=_is_masked(images)), network.finish_matches
    found = [read(finish(decoded, *cells, geometry, masked)) for _, (decoded, read, cells, geometry) in best]
    return sorted(found, key=lambda candidate: -candidate.agreement)


def _candidate(
    decoded: Decoded, turn: np.ndarray, size: Size, back: tuple[np.ndarray, np.ndarray], swapped: bool, spacing: float
) -> Candidate:
    """Return the candidate of matches from an image of this size, which ``turn`` takes to the turned one, to another.

    ``back`` leads from that image and from the other one, at their reduced sizes, to the two images.
    """
    start, end, weights, total = agreeing(decoded, np.linalg.inv(turn), size)
    ends = apply(back[0], start), apply(back[1], end)
    points0, points1 = ends[::-1] if swapped else ends
    return Candidate(points0, points1, weights, float(weights.sum()) / max(total, 1), spacing)


def _is_masked(images: tuple[np.ndarray, np.ndarray]) -> bool:
    return any(image.shape[2] % 2 == 0 for image in images)


def for_small_images(network: Network, radius: int | None) -> Network:
    """Return the network with another radius, and as many levels as small images allow."""
    other = network.at_radius(radius)
    other.levels = None
    return other


def _at_zoom(
    images: tuple[np.ndarray, np.ndarray], network: Network, zoom: float, rotations: list[float]
) -> Iterator[_Trial]:
    factor = math.sqrt(reduced_area(images) / mean_area(images))
    factor = min(factor, math.sqrt(min(zoom, 1 / zoom)))  # the larger one of the two is not enlarged
    factors = factor * math.sqrt(zoom), factor / math.sqrt(zoom)
    areas = [image[..., 0].size * factor**2 for image, factor in zip(images, factors, strict=True)]
    turned = 0 if areas[0] <= areas[1] * (1 + 1e-9) else 1
    moving, frame = resized(images[turned], factors[turned], SETTINGS.min_side)
    still, still_frame = resized(images[1 - turned], factors[1 - turned], SETTINGS.min_side)
    size, still_size = moving.shape[:2], still.shape[:2]
    groups: dict[Size, list[float]] = {}
    for rotation in rotations:
        groups.setdefault(_bounding(size, rotation, SETTINGS.border_crop), []).append(rotation)
    back = np.linalg.inv(frame), np.linalg.inv(still_frame)
    device = network.exponents.device
    cells1 = None
    for bounds, members in groups.items():
        turns = [similarity(-r if turned else r, 1, centre(size), centre(bounds)) for r in members]
        batch = torch.stack([tensor_of(warped(moving, turn, bounds)) for turn in turns]).to(device)
        geometry = network.geometry(bounds, still_size)
        if cells1 is None:
            cells1 = network.describe_image(tensor_of(still)[None].to(device), geometry.used1)
        cells0 = network.describe_image(batch, geometry.used0)
        on_cells = replace(_ON_CELLS, masked=_is_masked(images))
        decoded = network.decode_descriptors(cells0, cells1.expand(len(batch), -1, -1, -1), geometry, on_cells)
        spacing = geometry.alpha / factors[1]
        for b, turn in enumerate(turns):
            candidate = partial(_candidate, turn=turn, size=size, back=back, swapped=turned == 1, spacing=spacing)
            yield pair_of(decoded, b), candidate, (cells0[b : b + 1].clone(), cells1), geometry


def reduced_area(images: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the pixels of these images (H, W, C) when they are reduced."""
    return min(SETTINGS.area, max(SETTINGS.min_area, SETTINGS.area_fraction * mean_area(images)))


def mean_area(images: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the pixels of these images (H, W, C): the geometric mean of both."""
    return math.sqrt(images[0][..., 0].size * images[1][..., 0].size)


def _bounding(size: Size, rotation: float, crop: float = 0.0) -> Size:
    """Return (rows, columns) of the frame of the turned image, less a fraction ``crop`` of its sides at 45 degrees."""
    cos, sin = abs(math.cos(math.radians(rotation))), abs(math.sin(math.radians(rotation)))
    rows, columns = size
    left = 1 - crop * 2 * sin * cos
    return math.ceil((rows * cos + columns * sin) * left - 1e-6), math.ceil((columns * cos + rows * sin) * left - 1e-6)


def agreeing(decoded: Decoded, back: np.ndarray, size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Select the matches of a pair that agree with three of their eight neighbours.

    Returns:
        Their starts, taken back to the image before it was turned, and their ends, both at pixel centres; their
        weights; and the number of reference points in the image.
    """
    start = decoded.points0.cpu().numpy().astype(np.float64) - 0.5
    end = decoded.points1[0].cpu().numpy().astype(np.float64) - 0.5
    rows, columns = start.shape[:2]
    origin = apply(back, start.reshape(-1, 2))
    within = inside(origin, size).reshape(rows, columns)
    kept = within & decoded.verified[0].cpu().numpy()
    moved = np.full((rows + 2, columns + 2, 2), np.nan)
    moved[1:-1, 1:-1][kept] = (end - start)[kept]
    spacing = float(start[0, 1, 0] - start[0, 0, 0]) if columns > 1 else 1.0
    votes = np.zeros((rows, columns), int)
    for i, j in np.ndindex(3, 3):
        if (i, j) != (1, 1):
            difference = moved[i : i + rows, j : j + columns] - moved[1:-1, 1:-1]
            with np.errstate(invalid="ignore"):
                largest = SETTINGS.max_difference * spacing * math.hypot(i - 1, j - 1)
                votes += np.hypot(*difference.transpose(2, 0, 1)) <= largest
    chosen = kept & (votes >= SETTINGS.min_neighbours)
    confidence = decoded.confidence
    weights = np.ones((rows, columns)) if confidence is None else confidence[0].cpu().numpy().astype(np.float64)
    return origin[chosen.ravel()], end[chosen], weights[chosen], int(within.sum())
