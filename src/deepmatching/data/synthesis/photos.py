"""The pictures of the scenes, photographs and drawn outlines, decoded once and kept on the device.

One flat buffer of 32-bit RGBA texels holds every picture at full size and halved three times, so that a batch fetches
all its textures with one gather. Colours are multiplied by alpha, so that they can be filtered like alpha.
"""

import functools
import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import torch

from deepmatching.errors import DeepMatchingError, check_choice
from deepmatching.io.image_files import PICTURE_SUFFIXES, decode_image_file

LEVELS = 4  #: sizes of every picture: 1, 1/2, 1/4, 1/8
_VALIDATION_PERIOD = 16  #: one file in 16 is held out
_MAX_PHOTO = 640  #: longest side of a photograph in texels
_MAX_CUTOUT = 288  #: longest side of a cut-out in texels
_MIN_SIDE = 32  #: shortest side of a picture in texels
_BORDER = 2  #: transparent texels around a cut-out, so that it ends within its picture
LARGEST_CUTOUT = _MAX_CUTOUT + 2 * _BORDER  #: side of the largest cut-out with its border
_SHAPES = 256  #: number of drawn shapes
_SHAPE_SIDE = 224  #: side of a drawn shape in texels
_OVERSAMPLING = 2  # drawn larger and then averaged, for smooth edges


class Photos:
    """Photographs, cut-outs and drawn shapes as textures on a device.

    ``texels`` is (T,) int32, four bytes RGBA each. Picture i at level l begins at ``table[i, l, 0]`` and has
    ``table[i, l, 1]`` rows and ``table[i, l, 2]`` columns. Photographs come first, then cut-outs, then shapes.
    """

    def __init__(
        self, photographs: Sequence[np.ndarray], cutouts: Sequence[np.ndarray] = (), device: str | torch.device = "cpu"
    ) -> None:
        """Take photographs: uint8 RGB (H, W, 3) each; cutouts: uint8 RGBA (H, W, 4) each."""
        if not photographs:
            raise DeepMatchingError("Scenes need at least one photograph as their background; add some.")
        self.photograph_count, self.cutout_count, self.shape_count = len(photographs), len(cutouts), _SHAPES
        with ThreadPoolExecutor() as pool:
            pyramids = [*pool.map(_pyramid, photographs), *pool.map(_cutout_pyramid, cutouts), *_masks()]
        sizes = np.array([[level.shape[:2] for level in pyramid] for pyramid in pyramids])  # (N, LEVELS, 2)
        ends = sizes.prod(-1).cumsum().reshape(sizes.shape[:2])
        self.table = np.concatenate([(ends - sizes.prod(-1))[..., None], sizes], axis=-1)
        buffer = np.concatenate([level.reshape(-1) for pyramid in pyramids for level in pyramid])
        self.texels = torch.from_numpy(buffer.view(np.int32)).to(device)
        self.device = self.texels.device
        self.first_shape = self.photograph_count + self.cutout_count
        self.white = len(self.table) - 2  #: index of the mask that is opaque everywhere
        self.box = len(self.table) - 1  #: index of the mask of 3 × 3 texels, the middle one opaque

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], device: str | torch.device = "cpu", split: str = "train", most: int = 2000
    ) -> "Photos":
        """Load the pictures under `folder`: those with transparency are cut-outs, other colour pictures photographs.

        One picture in 16, chosen by its name, belongs to ``val`` and the others to ``train``; ``all`` takes both. Grey
        pictures are skipped, because folders of photographs often hold masks and labels too. At most `most` evenly
        spaced pictures are read; each takes up to 2.2 MB.
        """
        check_choice("The split", split, ("train", "val", "all"))
        paths = [path for path in find_pictures(folder) if split in ("all", _split_of(path))]
        paths = paths[:: -(-len(paths) // most) or 1]
        with ThreadPoolExecutor() as pool:
            pictures = [picture for picture in pool.map(_read, paths) if picture is not None]
        photographs = [picture for picture in pictures if picture.shape[2] == 3]
        if not photographs:
            part = "" if split == "all" else f" for the split '{split}'"
            raise DeepMatchingError(f"There are no colour photographs{part} in '{folder}'; add some.")
        return cls(photographs, [picture for picture in pictures if picture.shape[2] == 4], device)


def find_pictures(folder: str | os.PathLike[str]) -> list[Path]:
    """Return all files under `folder` with the suffix of a picture."""
    if not os.path.isdir(folder):
        raise DeepMatchingError(f"There is no folder of photographs '{folder}'; check the path.")
    paths = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in PICTURE_SUFFIXES and os.path.isfile(p))
    if not paths:
        raise DeepMatchingError(f"There are no pictures in '{folder}'; give a folder of photographs.")
    return paths


def _split_of(path: Path) -> str:
    """Return the split of a name without its suffix, so that a copy in another format belongs to the same."""
    return "val" if zlib.crc32(path.stem.encode()) % _VALIDATION_PERIOD == 0 else "train"


def _read(path: Path) -> np.ndarray | None:
    """Return RGB (H, W, 3) or RGBA (H, W, 4) uint8 of limited size; None if it is neither, or too small."""
    picture = decode_image_file(path, cv2.IMREAD_UNCHANGED, "photograph")
    if picture.dtype != np.uint8 or picture.ndim != 3 or min(picture.shape[:2]) < _MIN_SIDE:
        return None
    if picture.shape[2] == 4 and picture[:, :, 3].min() > 250:
        picture = picture[:, :, :3]
    scale = (_MAX_CUTOUT if picture.shape[2] == 4 else _MAX_PHOTO) / max(picture.shape[:2])
    if scale < 1:
        size = [max(_MIN_SIDE // 2, round(side * scale)) for side in picture.shape[1::-1]]
        picture = cv2.resize(picture, size, interpolation=cv2.INTER_AREA)
    return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB if picture.shape[2] == 3 else cv2.COLOR_BGRA2RGBA)


def _cutout_pyramid(cutout: np.ndarray) -> list[np.ndarray]:
    colours = cutout[:, :, :3].astype(np.float32) * (cutout[:, :, 3:].astype(np.float32) / 255)
    picture = np.dstack([np.rint(colours).astype(np.uint8), cutout[:, :, 3]])
    return _pyramid(np.pad(picture, ((_BORDER, _BORDER), (_BORDER, _BORDER), (0, 0))))


@functools.cache
def _masks() -> list[list[np.ndarray]]:
    """Return pyramids of the drawn shapes, of one white texel, and of 3 × 3 texels with a white one in the middle."""
    white, box = np.full((1, 1), 255, np.uint8), np.zeros((3, 3), np.uint8)
    box[1, 1] = 255
    masks = (*draw_shapes(_SHAPES, _SHAPE_SIDE), white, box)
    return [_pyramid(np.repeat(mask[:, :, None], 4, axis=2)) for mask in masks]


def _pyramid(picture: np.ndarray) -> list[np.ndarray]:
    """Return RGBA, halved three times, of a photograph or of a picture whose colours are multiplied by alpha."""
    if picture.shape[2] == 3:
        picture = np.dstack([picture, np.full(picture.shape[:2], 255, np.uint8)])
    levels = [picture]
    while len(levels) < LEVELS:
        height, width = levels[-1].shape[:2]
        levels.append(cv2.resize(levels[-1], (max(1, width // 2), max(1, height // 2)), interpolation=cv2.INTER_AREA))
        if not picture[0].any():  # a transparent border stays transparent, since it continues beyond the picture
            levels[-1][[0, -1]] = 0
            levels[-1][:, [0, -1]] = 0
    return levels


def draw_shapes(count: int, side: int, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Draw `count` masks (side, side) uint8, transparent at their borders; the same for the same seed."""
    rng = np.random.default_rng(seed)
    kinds = (_blob, _blob, _polygon, _limb, _branches, _fence, _ring)
    drawn = (kinds[index % len(kinds)](rng, side * _OVERSAMPLING) for index in range(count))
    masks = tuple(cv2.resize(mask, (side, side), interpolation=cv2.INTER_AREA) for mask in drawn)
    margin = side // 18  # a mipmap of the mask must be empty at its border too
    for mask in masks:
        mask[:margin], mask[-margin:], mask[:, :margin], mask[:, -margin:] = 0, 0, 0, 0
    return masks


def _fill(outline: np.ndarray, side: int) -> np.ndarray:
    mask = np.zeros((side, side), np.uint8)
    cv2.fillPoly(mask, [np.rint(outline).astype(np.int32)], 255)
    return mask


def _blob(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw a closed curve r(θ) = Σ a_k cos(kθ + φ_k) with amplitudes that fall with k."""
    angle = np.linspace(0, 2 * np.pi, 256, endpoint=False)
    order = np.arange(1, 9)
    amplitude = rng.normal(size=8) * rng.uniform(0.1, 0.5) / order ** rng.uniform(0.6, 1.5)
    radius = 1 + (amplitude[:, None] * np.cos(order[:, None] * angle + rng.uniform(0, 6.3, (8, 1)))).sum(0)
    radius = np.clip(radius, 0.15, None)
    radius *= 0.44 * side / radius.max()
    return _fill(side / 2 + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1), side)


def _polygon(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw a polygon with corners at sorted angles: three to nine of them, some pulled inwards."""
    corners = rng.integers(3, 10)
    angle = (np.arange(corners) + rng.uniform(0.1, 0.9, corners)) * 2 * np.pi / corners
    radius = 0.44 * side * rng.uniform(0.4, 1, corners)
    return _fill(side / 2 + radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1), side)


def _path(rng: np.random.Generator, side: int, turns: int, bend: float) -> np.ndarray:
    """Return points of a smooth curve from one edge of the mask to the opposite one, (64, 2)."""
    knots = np.stack([np.linspace(0.05, 0.95, turns), 0.5 + bend * rng.uniform(-1, 1, turns)], 1)
    position = np.linspace(0, 1, 64)
    curve = np.stack([np.interp(position, np.linspace(0, 1, turns), knots[:, axis]) for axis in (0, 1)], 1)
    curve[:, 1] = cv2.GaussianBlur(curve[:, 1:], (1, 15), 4)[:, 0]
    return curve * side


def _stroke(mask: np.ndarray, curve: np.ndarray, width: np.ndarray) -> None:
    for start, end, size in zip(curve[:-1], curve[1:], width, strict=False):
        ends = [tuple(int(value) for value in np.rint(point)) for point in (start, end)]
        cv2.line(mask, ends[0], ends[1], 255, max(2, round(float(size))), cv2.LINE_8)


def _limb(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw one bent bar whose width changes along it, like an arm, a pole or a lance."""
    mask = np.zeros((side, side), np.uint8)
    width = side * np.linspace(rng.uniform(0.02, 0.2), rng.uniform(0.02, 0.2), 64)
    _stroke(mask, _path(rng, side, int(rng.integers(2, 6)), rng.uniform(0, 0.35)), width)
    return mask


def _branches(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw a trunk and thinner twigs that leave it."""
    mask = np.zeros((side, side), np.uint8)
    trunk = _path(rng, side, 4, 0.2)
    thickness = side * rng.uniform(0.02, 0.08)
    _stroke(mask, trunk, np.linspace(thickness, 0.4 * thickness, 64))
    for start in rng.integers(4, 56, rng.integers(3, 9)):
        angle = rng.choice([-1, 1]) * rng.uniform(0.4, 1.3)
        steps = np.linspace(0, rng.uniform(0.15, 0.45) * side, 16)[:, None]
        twig = trunk[start] + steps * np.array([np.cos(angle), np.sin(angle)])
        twig += cv2.GaussianBlur(rng.normal(size=(16, 2)) * 0.03 * side, (1, 7), 2)
        _stroke(mask, twig, np.linspace(0.6 * thickness, 0.2 * thickness, 16))
    return mask


def _fence(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw parallel bars, some with bars across them."""
    mask = np.zeros((side, side), np.uint8)
    low, high = int(0.08 * side), int(0.92 * side)
    for vertical in (True, False):
        if not vertical and rng.uniform() < 0.5:
            break
        bars = rng.integers(2, 7)
        width = side * rng.uniform(0.015, 0.4 / bars)
        for place in (np.arange(bars) + rng.uniform(0.3, 0.7, bars)) / bars * 0.84 * side + 0.08 * side:
            (mask if vertical else mask.T)[low:high, int(place - width / 2) : int(place + width / 2) + 2] = 255
    return mask


def _ring(rng: np.random.Generator, side: int) -> np.ndarray:
    """Draw an outline with a hole, through which the background shows."""
    outer = _blob(rng, side) if rng.uniform() < 0.5 else _polygon(rng, side)
    scale, shift = rng.uniform(0.4, 0.85), rng.uniform(-0.05, 0.05, 2) * side
    move = np.array([[scale, 0, (1 - scale) * side / 2 + shift[0]], [0, scale, (1 - scale) * side / 2 + shift[1]]])
    return cv2.subtract(outer, cv2.warpAffine(outer, move, (side, side)))
