"""Warps: the second image as the first one would show it, and both in one picture."""

from typing import Literal, get_args

import cv2
import numpy as np

from deepmatching.drawing.pictures import Image, to_uint8_rgb
from deepmatching.errors import DeepMatchingError, check_choice
from deepmatching.geometry.homographies import inside

View = Literal["warp", "blend", "checkerboard", "difference"]
GREY = 128  #: every channel of a pixel that a warp cannot show
HIDDEN = 0.5  #: a pixel counts as hidden from this probability on
_SQUARES = 8  #: squares of a checkerboard along the longer side
_LONGEST = 2**15 - 2  #: of the sides that OpenCV warps, in px


def sampled(pixels: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """Return an image (H',W',C) where a flow (H,W,2) leads, bilinearly; its border is repeated."""
    if max(*pixels.shape, *flow.shape) > _LONGEST:
        raise DeepMatchingError(f"Images of more than {_LONGEST} pixels on a side cannot be warped: resize them.")
    y, x = np.indices(flow.shape[:2], np.float32)
    columns, rows = ((axis + moved).astype(np.float32) for axis, moved in ((x, flow[..., 0]), (y, flow[..., 1])))
    return cv2.remap(pixels, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def warp(image1: Image, flow: np.ndarray, hidden: np.ndarray | None = None) -> np.ndarray:
    """Sample the second image where a flow (H,W,2) leads: uint8 RGBA (H,W,4).

    A pixel is transparent, and grey, where the flow is unknown (NaN) or leads out of that image, and where it is
    ``hidden``, (H,W) bool.
    """
    pixels, size = to_uint8_rgb(image1), flow.shape[:2]
    ends = flow + np.indices(size, np.float32)[::-1].transpose(1, 2, 0)
    seen = inside(ends.reshape(-1, 2), (pixels.shape[0], pixels.shape[1])).reshape(size)
    if hidden is not None:
        seen &= ~hidden
    colors = sampled(pixels, np.where(seen[..., None], flow, 0))
    return np.dstack([np.where(seen[..., None], colors, GREY), 255 * seen]).astype(np.uint8)


def view_warp(image0: Image, warped: np.ndarray, view: View) -> np.ndarray:
    """Show a warp (H,W,4) together with the first image, uint8 RGB (H,W,3), or alone and unchanged.

    ``blend`` is their mean, ``checkerboard`` has them in alternate squares, and both show the first image where the
    warp is transparent. ``difference`` is the absolute difference, and grey there.
    """
    check_choice("view", view, get_args(View))
    if view == "warp":
        return warped
    first, second, seen = to_uint8_rgb(image0), warped[..., :3], warped[..., 3:] > 0
    if first.shape[:2] != warped.shape[:2]:
        raise DeepMatchingError(f"The image must have the size of the warp, {warped.shape[:2]}, not {first.shape[:2]}.")
    if view == "difference":
        return np.where(seen, cv2.absdiff(first, second), np.uint8(GREY))
    if view == "blend":
        return np.where(seen, cv2.addWeighted(first, 0.5, second, 0.5, 0), first)
    row, column = np.indices(first.shape[:2]) * _SQUARES // max(first.shape)
    return np.where(seen & ((row + column) % 2 == 1)[..., None], second, first)
