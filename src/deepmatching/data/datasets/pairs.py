"""Pairs of images with ground truth, their crops and flips, and the base of every data set on disk.

A data set is a list of entries, each with the files of one pair. It checks that they exist when it is opened, and
their contents when a pair is read.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import cv2
import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset

from deepmatching.errors import DeepMatchingError, check_number
from deepmatching.geometry import homographies
from deepmatching.io.files import read_bytes
from deepmatching.io.flow import read_flow
from deepmatching.io.image_files import decode_image_file
from deepmatching.io.images import load_image


class Pair(NamedTuple):
    """Two images and their ground truth; a batch of pairs has one more axis B in front of each tensor.

    ``flow[i, j]`` is the displacement (x, y) of the pixel in row i and column j, in pixels.
    """

    image0: Tensor  #: (3, H, W) float32 in [0, 1]
    image1: Tensor  #: (3, H', W')
    flow: Tensor  #: (H, W, 2) float32, NaN where unknown
    occluded: Tensor  #: (H, W) bool: not visible in image 1; all False if the data set has no masks
    name: str = ""  #: scene and frame, for display

    def map(self, function: Callable[[Tensor], Tensor]) -> "Pair":
        """Return the pair with the function applied to each of its tensors."""
        return Pair._make([*map(function, self[:4]), self.name])


class PairDataset(Protocol):
    """Pairs by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Pair: ...


class Pose(NamedTuple):
    """The cameras of two photographs."""

    K0: np.ndarray  #: (3, 3) camera matrix, in pixels of the file of image 0
    K1: np.ndarray
    T_0to1: np.ndarray  #: (4, 4), takes points in the coordinates of camera 0 to those of camera 1


@dataclass(frozen=True)
class Entry:
    """The files of one pair. Its ground truth is one of ``flow``, ``homography``, ``points`` and ``pose``."""

    group: str  #: the pairs it is averaged with
    name: str  #: scene and frame, for display
    image0: Path
    image1: Path
    flow: Path | None = None
    homography: Path | None = None  #: text, 3 × 3, maps pixels (x, y, 1) of image 0 to image 1
    points: Path | None = None  #: text, corresponding points x0 y0 x1 y1 a line
    pose: Pose | None = field(default=None, compare=False)
    occluded: Path | None = None  #: mask, nonzero where the pixel is not visible in image 1
    visible: Path | None = None  #: mask, zero where the pixel is not visible in image 1
    invalid: Path | None = None  #: mask, nonzero where the ground truth is unreliable
    flow_noc: Path | None = None  #: the flow, unknown where the pixel is not visible in image 1

    @property
    def knows_occlusion(self) -> bool:
        """Tell whether the files say which pixels are occluded."""
        return any((self.occluded, self.visible, self.flow_noc))

    def without_masks(self) -> "Entry":
        """Return the same pair with all of its ground truth, and no occlusion known."""
        return replace(self, occluded=None, visible=None, invalid=None, flow_noc=None)

    def read(self) -> Pair:
        loaded = (load_image(path) for path in (self.image0, self.image1))
        image0, image1 = (image if len(image) == 3 else image.expand(3, -1, -1).contiguous() for image in loaded)
        size0, size1 = (tuple(image.shape[1:]) for image in (image0, image1))

        def sized(path: Path, read: Callable[[Path], np.ndarray]) -> np.ndarray:
            """Read what must have the size of the first image."""
            found = read(path)
            if found.shape[:2] != size0:
                sides, own = (f"{size[1]} x {size[0]}" for size in (found.shape, size0))
                raise DeepMatchingError(f"'{path}' has {sides} pixels, but its image '{self.image0}' has {own}.")
            return found

        if self.flow is not None:
            flow = sized(self.flow, read_flow)
        elif self.homography is not None:
            flow = homography_flow(read_homography(self.homography), *size0, *size1)
        else:
            flow = np.full((*size0, 2), np.nan, np.float32)
        occluded = np.zeros(size0, bool)
        if self.occluded is not None:
            occluded |= sized(self.occluded, _read_mask)
        if self.visible is not None:
            occluded |= ~sized(self.visible, _read_mask)
        if self.flow_noc is not None:
            visible = sized(self.flow_noc, read_flow)
            occluded |= np.isfinite(flow).all(axis=2) & ~np.isfinite(visible).all(axis=2)
        if self.invalid is not None:
            flow[sized(self.invalid, _read_mask)] = np.nan
        return Pair(image0, image1, torch.from_numpy(flow), torch.from_numpy(occluded), self.name)


MASKS = ("occluded", "visible", "invalid", "flow_noc")  #: fields of :class:`Entry` that a data set may lack
FILES = ("image0", "image1", "flow", "homography", "points", *MASKS)  #: all fields of :class:`Entry` that hold a file


def _read_mask(path: Path) -> np.ndarray:
    return decode_image_file(path, cv2.IMREAD_ANYDEPTH, "mask") != 0  # grey, of any bit depth


class FilePairs(Dataset[Pair]):
    """Pairs in files, by index; ``incomplete`` is the number of pairs that were left out because they lack files."""

    def __init__(self, name: str, entries: Sequence[Entry], incomplete: int = 0) -> None:
        self.name, self.entries, self.incomplete = name, tuple(entries), incomplete

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Pair:
        return self.entries[index].read()

    @property
    def contents_hash(self) -> str:
        """Return a text that changes with the names and the order of the pairs."""
        names = "\n".join(f"{entry.group} {entry.name}" for entry in self.entries)
        return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()[:16]

    def only(self, groups: Iterable[str]) -> "FilePairs":
        """Return the pairs of these groups."""
        wanted, existing = set(groups), sorted({entry.group for entry in self.entries})
        if unknown := sorted(wanted.difference(existing)):
            known = ", ".join(existing)
            raise DeepMatchingError(f"There are no pairs of '{unknown[0]}' in {self.name}: choose from {known}.")
        return FilePairs(self.name, [entry for entry in self.entries if entry.group in wanted])

    def with_motion(self) -> "FilePairs":
        """Return the pairs whose files tell where pixels move."""
        entries = [entry for entry in self.entries if entry.flow or entry.homography]
        if not entries:
            raise DeepMatchingError(f"No pair of {self.name} has a flow or a homography, which training needs.")
        return self if len(entries) == len(self) else FilePairs(self.name, entries, self.incomplete)

    def thinned(self, count: int) -> "FilePairs":
        """Return at most ``count`` pairs, evenly spaced in the data set."""
        return self if count >= len(self) else FilePairs(self.name, evenly_spaced(self.entries, count))


def evenly_spaced(entries: Sequence[Entry], count: int | None) -> list[Entry]:
    """Return at most ``count`` of the entries, evenly spaced; all for None."""
    if count is None:
        return list(entries)
    check_number("The number of pairs", count, minimum=1, whole=True)
    count = min(count, len(entries))
    return [entries[i * len(entries) // count] for i in range(count)]


def missing_files(entries: Iterable[Entry]) -> list[tuple[int, str, Path]]:
    """Return the missing files: index of the entry, name of the field, path. Lists every folder only once."""
    names_in = cache(lambda folder: frozenset(list_folder(folder)))
    return [
        (index, name, path)
        for index, entry in enumerate(entries)
        for name in FILES
        if (path := getattr(entry, name)) is not None
        # A case-insensitive file system may find a name that the listing spells differently.
        and path.name not in names_in(path.parent)
        and not os.path.exists(path)
    ]


def list_folder(folder: Path) -> list[str]:
    """Return the sorted names in a folder; none if it does not exist."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DeepMatchingError(f"The folder '{folder}' cannot be read ({reason}); check its permissions.") from error


def read_homography(path: Path) -> np.ndarray:
    """Return the invertible matrix (3, 3) in a text file."""
    matrix = _read_table(path, "homography", "three lines of three numbers")
    if matrix.shape != (3, 3):
        raise DeepMatchingError(f"The homography '{path}' is not a 3 x 3 matrix; write three lines of three numbers.")
    # Scaled, since a homography times a number is the same, and products of large numbers overflow.
    if np.linalg.matrix_rank(matrix / max(1.0, np.abs(matrix).max())) < 3:
        raise DeepMatchingError(f"The homography '{path}' is singular: correct its numbers.")
    return matrix


def read_points(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the corresponding points (N, 2) and (N, 2) in a text file."""
    table = _read_table(path, "list of points", "lines of four numbers, x0 y0 x1 y1")
    if table.shape[1] != 4:
        raise DeepMatchingError(f"The list of points '{path}' needs lines of four numbers, x0 y0 x1 y1.")
    return table[:, :2], table[:, 2:]


def _read_table(path: Path, kind: str, content: str) -> np.ndarray:
    """Return the finite numbers in a text file, a row for each line."""
    text = read_bytes(path, f"{kind} file").decode("utf-8-sig", errors="replace")
    try:
        lines = [line.partition("#")[0] for line in text.splitlines()]
        lines = [line for line in lines if line.strip()]  # NumPy warns if there are none
        table = np.loadtxt(lines, dtype=np.float64, ndmin=2) if lines else np.empty((0, 0))
    except ValueError as error:
        raise DeepMatchingError(f"The {kind} '{path}' cannot be read ({error}); write {content}.") from error
    if not np.isfinite(table).all():
        raise DeepMatchingError(f"The {kind} '{path}' has numbers that are not finite; write {content}.")
    return table


def homography_flow(homography: np.ndarray, height: int, width: int, height1: int, width1: int) -> np.ndarray:
    """Return the flow float32 (H, W, 2) of a homography (3, 3) that maps (x, y, 1) of image 0 to image 1.

    NaN where the point leaves the area [−0.5, W'−0.5] × [−0.5, H'−0.5] that the target's pixels cover, or lies beyond
    the horizon, that is, not on the side of the image's centre.
    """
    x, y = np.meshgrid(np.arange(width, dtype=np.float64), np.arange(height, dtype=np.float64))
    x1, y1, weight = (row[0] * x + row[1] * y + row[2] for row in homography)
    with np.errstate(divide="ignore", invalid="ignore"):
        x1, y1 = x1 / weight, y1 / weight
        # A homography is known up to scale, even a negative one: only the sign relative to the centre counts.
        is_seen = weight * (homography[2] @ (*homographies.centre((height, width)), 1.0)) > 0
        is_seen &= (x1 >= -0.5) & (x1 <= width1 - 0.5) & (y1 >= -0.5) & (y1 <= height1 - 0.5)
        flow = np.stack([x1 - x, y1 - y], axis=2)
    return np.where(is_seen[..., None], flow, np.nan).astype(np.float32)


def crop(pair: Pair, size: Sequence[int], place: Callable[[int], int] = lambda rest: rest // 2) -> Pair:
    """Return the same window of both images, of ``size`` (rows, columns) or what fits; the middle one by default.

    ``place`` chooses its first row and column, given how many rows and columns it leaves over. Displacements do not
    change; some point outside the window, as at the border of an image.
    """
    whole = zip(pair.image0.shape[-2:], pair.image1.shape[-2:], strict=True)
    sides = [(min(part, *both), min(both)) for part, both in zip(size, whole, strict=True)]
    starts = [place(side - part) for part, side in sides]
    rows, columns = (slice(start, start + part) for start, (part, _) in zip(starts, sides, strict=True))
    image0, image1, occluded = (field[..., rows, columns] for field in (pair.image0, pair.image1, pair.occluded))
    return Pair(image0, image1, pair.flow[..., rows, columns, :], occluded, pair.name)


def random_crop(pair: Pair, size: Sequence[int], generator: Generator | None = None) -> Pair:
    """Return a :func:`crop` at a random place."""
    return crop(pair, size, lambda rest: int(torch.randint(rest + 1, (), generator=generator)))


def random_flip(pair: Pair, generator: Generator | None = None, horizontal: float = 0.5, vertical: float = 0.0) -> Pair:
    """Mirror both images left to right and top to bottom with these probabilities."""
    across, down = torch.rand(2, generator=generator).tolist()
    if across < horizontal:
        pair = flip(pair, axis=0)
    return flip(pair, axis=1) if down < vertical else pair


def flip(pair: Pair, axis: int) -> Pair:
    """Mirror both images along x (axis 0) or y (axis 1).

    x ↦ W − 1 − x in either image, so that u ↦ (W₁ − W₀) − u for their widths W₀ and W₁.
    """
    image_axis, field_axis = -1 - axis, -2 - axis
    image0, image1, occluded = (field.flip(image_axis) for field in (pair.image0, pair.image1, pair.occluded))
    flow = pair.flow.flip(field_axis)
    flow[..., axis] = image1.shape[image_axis] - image0.shape[image_axis] - flow[..., axis]
    return Pair(image0, image1, flow, occluded, pair.name)
