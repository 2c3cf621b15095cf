"""Pictures of points and of where they go: each point keeps its colour, and a hidden one is a ring."""

from itertools import pairwise

import cv2
import numpy as np

from deepmatching.drawing.pictures import BLACK, LIGHT_GREY, Image, drawing_scale, resize, to_uint8_rgb

_GOLDEN_RATIO = 0.61803398875  #: its multiples, modulo 1, are spread evenly
_SHIFT = 4  #: OpenCV takes positions in units of 2^−4 pixels
_RADIUS = 5  #: of a point, in pixels of the picture
_FARTHEST = 2**14  #: positions further away are clipped: OpenCV's would overflow


def draw_points(
    image0: Image, image1: Image, points0: np.ndarray, points1: np.ndarray, visible: np.ndarray
) -> np.ndarray:
    """Draw two images beside each other, uint8 RGB, with points (N, 2); ``visible``, (N,), are those of the second."""
    pictures = [draw_tracks(image0, points0[None], np.ones_like(visible)), draw_tracks(image1, points1[None], visible)]
    rows = max(len(picture) for picture in pictures)
    width = sum(picture.shape[1] for picture in pictures)
    both, left = np.full((rows, width, 3), LIGHT_GREY, np.uint8), 0
    for picture in pictures:
        both[: len(picture), left : left + picture.shape[1]] = picture
        left += picture.shape[1]
    return both


def draw_tracks(image: Image, trails: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Draw points on an image, uint8 RGB, and where they came from: trails (T, N, 2), the present last; NaN is a gap.

    ``visible``, (N,), is about the present.
    """
    rgb = to_uint8_rgb(image)
    scale = drawing_scale(*rgb.shape[:2])
    canvas = resize(rgb, scale).copy()
    with np.errstate(invalid="ignore"):
        places = np.clip((trails + 0.5) * scale - 0.5, -_FARTHEST, _FARTHEST) * 2**_SHIFT
    hues = np.uint8(np.round(179 * (_GOLDEN_RATIO * np.arange(trails.shape[1]) % 1)))
    hsv = np.stack([hues, np.full_like(hues, 190), np.full_like(hues, 255)], axis=1)
    colors = cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0].tolist()
    for color, steps in zip(colors, np.moveaxis(places, 1, 0), strict=True):
        for start, end in pairwise(steps):
            if np.isfinite([start, end]).all():
                cv2.line(canvas, _whole(start), _whole(end), color, 2, cv2.LINE_AA, _SHIFT)
    for color, place, is_visible in zip(colors, places[-1], visible, strict=True):
        if np.isfinite(place).all():
            if is_visible:
                cv2.circle(canvas, _whole(place), _RADIUS << _SHIFT, color, cv2.FILLED, cv2.LINE_AA, _SHIFT)
            edge, width = (BLACK, 1) if is_visible else (color, 2)
            cv2.circle(canvas, _whole(place), _RADIUS << _SHIFT, edge, width, cv2.LINE_AA, _SHIFT)
    return canvas


def _whole(place: np.ndarray) -> tuple[int, int]:
    x, y = np.rint(place).astype(int).tolist()
    return x, y
