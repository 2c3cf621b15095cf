"""Every rotation and scale at a reduced size: which of them make neighbouring matches agree, and where."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry
from deepmatching.geometry.homographies import Size, apply, centre, inside, resizing, similarity
from deepmatching.geometry.targets import pair_of
from deepmatching.network.inference import Decoding
from deepmatching.network.network import Network
from deepmatching.network.operators.decoding import Decoded
from deepmatching.search.settings import SETTINGS
from deepmatching.search.transformations import resized, tensor_of, warped

#: Matches on the cells, without a confidence.
_ON_CELLS = Decoding(subpixel=False, confidence=False)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A rotation and a scale, and the matches that agree with their neighbours.

    Attributes:
        rotation: degrees by which the second image shows things turned.
        zoom: how much larger the second image shows them.
        points0: (N, 2), in pixels of the first image.
        points1: (N, 2), in pixels of the second.
        weights: (N,), their confidence, or 1.
        agreement: sum of the weights, as a fraction of the points of the smaller of the reduced images.
        spacing: of the points, in pixels of the second image.
    """

    rotation: float
    zoom: float
    points0: np.ndarray
    points1: np.ndarray
    weights: np.ndarray
    agreement: float
    spacing: float


@dataclass(frozen=True, eq=False)
class _Trial:
    """A rotation and a scale, and their matches on the cells.

    Attributes:
        rotation, zoom: as those of a candidate.
        decoded: the matches of one pair: from the image that is turned to the other one.
        cells0, cells1: the pair's descriptors.
        geometry: of the pair.
        turn: from the image before it is turned to the turned one.
        size: (rows, columns) of the image before it is turned.
        back: from that image and from the other one, at their reduced sizes, to the two images.
        swapped: whether the second image is the one that is turned.
        spacing: as that of a candidate.
    """

    rotation: float
    zoom: float
    decoded: Decoded
    cells0: Tensor
    cells1: Tensor
    geometry: Geometry
    turn: np.ndarray
    size: Size
    back: tuple[np.ndarray, np.ndarray]
    swapped: bool
    spacing: float

    def of_original(self, side: int, back: np.ndarray) -> "_Trial":
        """Return the trial of the pair before image ``side`` was transformed; ``back`` leads to that."""
        ends = list(self.back)
        ends[side ^ self.swapped] = back @ ends[side ^ self.swapped]
        return replace(self, back=(ends[0], ends[1]))

    def candidate(self, decoded: Decoded) -> Candidate:
        """Return the candidate of these matches, which may have a confidence."""
        start, end, weights, total = agreeing(decoded, np.linalg.inv(self.turn), self.size)
        ends = apply(self.back[0], start), apply(self.back[1], end)
        points0, points1 = ends[::-1] if self.swapped else ends
        agreement = float(weights.sum()) / max(total, 1)
        return Candidate(self.rotation, self.zoom, points0, points1, weights, agreement, self.spacing)


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
    area = reduced_area(images)
    trials = (_at_zoom(images, network, zoom, rotations, area) for zoom, rotations in zooms.items())
    return sorted(_scored(network, trials, SETTINGS.num_scored), key=lambda candidate: -candidate.agreement)


@torch.no_grad()
def try_tilted(images: tuple[np.ndarray, np.ndarray], network: Network, rotations: Sequence[float]) -> list[Candidate]:
    """Return the candidates of planes that one of the two images shows from the side, best first.

    Seen from the side, a plane is squeezed along one direction. So each image in turn is squeezed along four directions
    and then turned.
    """
    network = for_small_images(network, None)
    found = _scored(network, _tilted(images, network, rotations), SETTINGS.num_scored_tilted)
    return sorted(found, key=lambda candidate: -candidate.agreement)


def _tilted(
    images: tuple[np.ndarray, np.ndarray], network: Network, rotations: Sequence[float]
) -> Iterator[list[_Trial]]:
    area = SETTINGS.tilted_area / SETTINGS.area * reduced_area(images)
    for side, image in enumerate(images):
        small, frame = resized(image, min(1.0, math.sqrt(8 * SETTINGS.area / image[..., 0].size)))
        zoom = math.sqrt(abs(np.linalg.det(frame[:2, :2])))
        for direction in (0.0, 45.0, 90.0, 135.0):
            squeezed, squeeze = _squeezed(small, direction)
            pair = (squeezed, images[1]) if side == 0 else (images[0], squeezed)
            back = np.linalg.inv(squeeze @ frame)
            turns = [rotation + (direction if side == 0 else -direction) for rotation in rotations]
            trials = _at_zoom(pair, network, 1 / zoom if side == 0 else zoom, turns, area)
            yield [trial.of_original(side, back) for trial in trials]


def _scored(network: Network, trials: Iterable[Iterable[_Trial]], count: int) -> Iterator[Candidate]:
    """Yield the candidates, with confidence, of the ``count`` trials with the highest agreement."""
    best: list[tuple[float, _Trial]] = []
    for some in trials:
        best += [(trial.candidate(trial.decoded).agreement, trial) for trial in some]
        best = sorted(best, key=lambda entry: -entry[0])[:count]  # the others' descriptors are freed
    for _, trial in best:
        yield trial.candidate(network.finish_matches(trial.decoded, trial.cells0, trial.cells1, trial.geometry))


def _squeezed(pixels: np.ndarray, direction: float) -> tuple[np.ndarray, np.ndarray]:
    """Turn an image back by ``direction`` degrees and squeeze its rows; return it and the transformation to it."""
    size = pixels.shape[0], pixels.shape[1]
    bounds = _bounding(size, direction)
    turn = similarity(-direction, 1, centre(size), centre(bounds))
    turned = pixels if direction == 0 else warped(pixels, turn, bounds)
    narrow = bounds[0], max(SETTINGS.min_side, round(bounds[1] / SETTINGS.tilt))
    squeezed = cv2.resize(turned, narrow[::-1], interpolation=cv2.INTER_AREA).reshape(*narrow, -1)
    return squeezed, resizing(bounds, narrow) @ turn


def for_small_images(network: Network, radius: int | None) -> Network:
    """Return the network with another radius, and as many levels as small images allow."""
    other = network.at_radius(radius)
    other.levels = None
    return other


def _at_zoom(
    images: tuple[np.ndarray, np.ndarray], network: Network, zoom: float, rotations: list[float], area: float
) -> Iterator[_Trial]:
    factor = math.sqrt(area / _mean_area(images))
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
        decoded = network.decode_descriptors(cells0, cells1.expand(len(batch), -1, -1, -1), geometry, _ON_CELLS)
        spacing = geometry.alpha / factors[1]
        for b, (rotation, turn) in enumerate(zip(members, turns, strict=True)):
            own = pair_of(decoded, b)
            cells = cells0[b : b + 1].clone(), cells1
            yield _Trial(rotation, zoom, own, *cells, geometry, turn, size, back, turned == 1, spacing)


def reduced_area(images: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the pixels of these images (H, W, C) when they are reduced."""
    return min(SETTINGS.area, max(SETTINGS.min_area, SETTINGS.area_fraction * _mean_area(images)))


def _mean_area(images: tuple[np.ndarray, np.ndarray]) -> float:
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
