"""Sizes, text and layout: what the figures are put together from."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from deepmatching.drawing.colors import Color, displacement_colors
from deepmatching.errors import DeepMatchingError

_INK: Color = (40, 40, 40)
PAPER: Color = (255, 255, 255)
GAP = 12
# Fixed-point bits with which OpenCV takes subpixel coordinates.
SHIFT = 4
# Pictures are drawn with their longer side in this range, whatever the size of the image.
_SMALLEST_SIDE, _LARGEST_SIDE = 560, 1280


def as_matches(
    keypoints0: np.ndarray, keypoints1: np.ndarray, scores: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start (N,2), end (N,2) and score (N) of the finite matches, the most confident last."""
    start = np.asarray(keypoints0, np.float64).reshape(-1, 2)
    end = np.asarray(keypoints1, np.float64).reshape(-1, 2)
    score = np.zeros(len(start)) if scores is None else np.asarray(scores, np.float64).reshape(-1)
    if not len(start) == len(end) == len(score):
        raise DeepMatchingError(
            f"There are {len(start)} and {len(end)} keypoints and {len(score)} scores; each match needs one of each."
        )
    finite = np.isfinite(start).all(axis=1) & np.isfinite(end).all(axis=1)
    start, end, score = start[finite], end[finite], score[finite]
    order = np.argsort(-score, kind="stable")[::-1]
    return start[order], end[order], score[order]


def pick_apart(keys: Sequence[tuple[np.ndarray, float]], count: int) -> np.ndarray:
    """Indices of at most `count` items, the last first, any two of which are far apart in every key.

    A key is the position (N,D) of every item and the distance in it that two must have.
    """
    chosen: list[int] = []
    free = np.ones(len(keys[0][0]), bool)
    while len(chosen) < count and free.any():
        index = len(free) - 1 - int(np.argmax(free[::-1]))
        chosen.append(index)
        free[index] = False
        for position, distance in keys:
            free &= np.square(position - position[index]).sum(axis=1) >= distance**2
    return np.array(chosen, np.int64)


def drawing_scale(height: int, width: int) -> float:
    """The factor at which an image is drawn: large enough for thin lines and text to be legible."""
    longer = max(height, width)
    if longer < _SMALLEST_SIDE:
        return float(np.ceil(_SMALLEST_SIDE / longer))  # whole pixels stay square
    return min(1.0, _LARGEST_SIDE / longer)


def resize(rgb: np.ndarray, scale: float, enlarge: int = cv2.INTER_CUBIC) -> np.ndarray:
    if scale == 1.0:
        return rgb
    size = (max(1, round(rgb.shape[1] * scale)), max(1, round(rgb.shape[0] * scale)))
    return cv2.resize(rgb, size, interpolation=enlarge if scale > 1 else cv2.INTER_AREA)


def scaled(points: np.ndarray, scale: float, offset: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """Points (N,2) of an image in the picture of it; pixel centres are at integers in both."""
    return (points + 0.5) * scale - 0.5 + np.asarray(offset)


def fixed(points: np.ndarray) -> list[tuple[int, int]]:
    """Points (N,2) in the fixed-point form of OpenCV's drawing functions."""
    # Far outside the picture OpenCV's own clipping overflows.
    limited = np.clip(points, -10_000, 30_000)
    return [(int(x), int(y)) for x, y in np.rint(limited * (1 << SHIFT)).astype(np.int64)]


_FONT = cv2.FONT_HERSHEY_SIMPLEX
TEXT_HEIGHT = 26  # of a caption with its margins


def text_size(text: str, scale: float) -> tuple[int, int]:
    (width, height), _ = cv2.getTextSize(text, _FONT, scale, 1)
    return int(width), int(height)


def put_text(rgb: np.ndarray, text: str, x: int, baseline: int, scale: float, color: Color = _INK) -> None:
    cv2.putText(rgb, text, (x, baseline), _FONT, scale, color, 1, cv2.LINE_AA)


def captioned(rgb: np.ndarray, caption: str) -> np.ndarray:
    """The picture with one line of text above it, set smaller if it would not fit."""
    width = rgb.shape[1]
    scale = 0.5
    while scale > 0.25 and text_size(caption, scale)[0] > width - 4:
        scale -= 0.05
    while len(caption) > 1 and text_size(caption, scale)[0] > width - 4:
        caption = caption[:-1]
    bar = np.full((TEXT_HEIGHT, width, 3), PAPER, np.uint8)
    put_text(bar, caption, 2, TEXT_HEIGHT - 9, scale)
    return np.concatenate([bar, rgb])


def beside(pictures: Sequence[np.ndarray], gap: int = GAP) -> np.ndarray:
    """Pictures side by side, aligned at the top, on paper."""
    height = max(picture.shape[0] for picture in pictures)
    width = sum(picture.shape[1] for picture in pictures) + gap * (len(pictures) - 1)
    canvas = np.full((height, width, 3), PAPER, np.uint8)
    x = 0
    for picture in pictures:
        canvas[: picture.shape[0], x : x + picture.shape[1]] = picture
        x += picture.shape[1] + gap
    return canvas


def stacked(pictures: Sequence[np.ndarray], gap: int = GAP) -> np.ndarray:
    """Pictures below each other, aligned at the left, on paper."""
    return beside([picture.transpose(1, 0, 2) for picture in pictures], gap).transpose(1, 0, 2)


def framed(picture: np.ndarray, margin: int = GAP) -> np.ndarray:
    return np.pad(picture, ((margin, margin), (margin, margin), (0, 0)), constant_values=255)


def add_legend(rgb: np.ndarray, max_norm: float) -> None:
    """Put the colour wheel with the displacement of its rim into the lower right corner, in place."""
    height, width = rgb.shape[:2]
    diameter = int(np.clip(min(height, width) // 7, 40, 72))
    label = f"{max_norm:g} px"
    label_width, label_height = text_size(label, 0.42)
    pad = 5
    panel_height = diameter + label_height + 3 * pad + 2
    panel_width = max(diameter, label_width) + 2 * pad
    if panel_height + 2 * pad > height or panel_width + 2 * pad > width:
        return  # it would hide the picture
    panel = np.full((panel_height, panel_width, 3), PAPER, np.uint8)
    axis = (np.arange(diameter) - (diameter - 1) / 2) / (diameter / 2)
    vectors = np.stack(np.meshgrid(axis, axis), axis=2)
    norm = np.hypot(vectors[..., 0], vectors[..., 1])[..., None]
    disc = displacement_colors(vectors / np.maximum(norm, 1.0), 1.0 + 1e-9)
    inside = np.clip((1.0 - norm) * diameter / 2 + 0.5, 0.0, 1.0)  # antialiased rim
    x = (panel_width - diameter) // 2
    panel[pad : pad + diameter, x : x + diameter] = np.rint(inside * disc + (1.0 - inside) * 255.0)
    middle = (x + diameter // 2, pad + diameter // 2)
    cv2.drawMarker(panel, middle, (120, 120, 120), cv2.MARKER_CROSS, 7, 1)
    put_text(panel, label, (panel_width - label_width) // 2, panel_height - pad - 1, 0.42)
    cv2.rectangle(panel, (0, 0), (panel_width - 1, panel_height - 1), (170, 170, 170), 1)
    y, x = height - panel_height - pad, width - panel_width - pad
    rgb[y : y + panel_height, x : x + panel_width] = panel
