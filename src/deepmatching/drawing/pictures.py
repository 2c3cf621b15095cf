"""Pictures as arrays, uint8 RGB (H,W,3): from images, to files, and of displacements as colours.

Displacements have the colours of the Middlebury wheel: the hue is the direction, white is no motion.
"""

import base64
import html
import os
from itertools import pairwise

import cv2
import numpy as np
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import unmasked
from deepmatching.io.files import check_suffix, check_writable, signed, write_file
from deepmatching.io.image_files import PICTURE_SUFFIXES
from deepmatching.io.images import check_dense

Color = tuple[int, int, int]
Image = np.ndarray | torch.Tensor  #: see :func:`to_uint8_rgb`

BLACK: Color = (0, 0, 0)
LIGHT_GREY: Color = (222, 222, 222)
#: Primary and secondary colours, and how many hues there are from each to the next: as many as look even.
_RUNS = (((1, 0, 0), 15), ((1, 1, 0), 6), ((0, 1, 0), 4), ((0, 1, 1), 11), ((0, 0, 1), 13), ((1, 0, 1), 6))
#: The 55 hues of Baker et al., "A Database and Evaluation Methodology for Optical Flow": (55,3) in [0,1].
WHEEL = np.concatenate([np.linspace(a, b, n, endpoint=False) for (a, n), (b, _) in pairwise([*_RUNS, _RUNS[0]])])
_ENCODERS = tuple(suffix for suffix in PICTURE_SUFFIXES if suffix != ".pgm")  # which is grey
_TRANSPARENT = (".png", ".tif", ".tiff", ".webp")
_SMALLEST_SIDE = 560  #: an image with a shorter longer side is enlarged when it is drawn
_LARGEST_SIDE = 1280  #: one with a longer side is reduced, in px


def to_uint8_rgb(image: Image) -> np.ndarray:
    """Copy a uint8 (H,W), (H,W,1) or (H,W,3), or a tensor (C,H,W) from `load_image`, to uint8 RGB (H,W,3)."""
    if isinstance(image, torch.Tensor):
        check_dense(image, "image")
        planar = image.detach().to("cpu", torch.float32).numpy()
        if planar.ndim != 3 or planar.shape[0] not in (1, 3):
            raise DeepMatchingError(f"To be drawn, an image must be (1 or 3,H,W), not {planar.shape}.")
        pixels = np.rint(np.clip(planar.transpose(1, 2, 0), 0.0, 1.0) * 255.0).astype(np.uint8)
    else:
        image = unmasked(image, "image")
        pixels = image[:, :, None] if image.ndim == 2 else image
        if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or pixels.dtype != np.uint8:
            kind = f"{image.dtype} {image.shape}"
            raise DeepMatchingError(f"To be drawn, an array must be uint8 (H,W,3), not {kind}; use load_image first.")
    return np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def drawing_scale(height: int, width: int) -> float:
    """Return the factor by which an image is enlarged or reduced for thin lines and text on it to be legible."""
    longer = max(height, width)
    if longer < _SMALLEST_SIDE:
        return float(np.ceil(_SMALLEST_SIDE / longer))  # whole pixels stay square
    return min(1.0, _LARGEST_SIDE / longer)


def resize(rgb: np.ndarray, scale: float, enlarge: int = cv2.INTER_CUBIC) -> np.ndarray:
    """Resize a picture by a factor, to no less than one pixel."""
    if scale == 1.0:
        return rgb
    rows, columns = (max(1, round(side * scale)) for side in rgb.shape[:2])
    return cv2.resize(rgb, (columns, rows), interpolation=enlarge if scale > 1 else cv2.INTER_AREA)


def html_picture(caption: str, rgb: np.ndarray | None = None, longest: int = 480) -> str:
    """Return HTML of a caption and, below it, a uint8 RGB picture (H,W,3), at most `longest` px on a side."""
    text = f"<div>{html.escape(caption)}</div>"
    if rgb is None:
        return text
    small = resize(rgb, min(1.0, longest / max(rgb.shape[:2])))
    data = cv2.imencode(".png", np.ascontiguousarray(small[:, :, ::-1]))[1].tobytes()
    return f'{text}<img src="data:image/png;base64,{base64.b64encode(data).decode()}">'


def check_picture_path(path: str | os.PathLike[str]) -> None:
    """Raise now, before the work, if :func:`write_image` could not write `path`."""
    check_suffix(path, _ENCODERS, "image")
    check_writable(path)


def write_image(path: str | os.PathLike[str], rgb: np.ndarray) -> None:
    """Write uint8 RGB (H,W,3) or RGBA (H,W,4) in the format that the suffix names; some have no transparency."""
    suffix = check_suffix(path, _ENCODERS, "image")
    pixels = np.ascontiguousarray(to_uint8_rgb(rgb[..., :3])[:, :, ::-1])
    if rgb.ndim == 3 and rgb.shape[2] == 4 and suffix in _TRANSPARENT:
        pixels = np.dstack([pixels, rgb[..., 3]])
    try:
        encoded, data = cv2.imencode(suffix, pixels)
    except cv2.error:
        encoded = False
    if not encoded:
        size = f"{pixels.shape[1]} x {pixels.shape[0]}"
        raise DeepMatchingError(f"OpenCV cannot write {size} pixels as '{path}'; use .png instead.")
    write_file(path, signed(data.tobytes()))


def displacement_colors(displacement: np.ndarray, max_norm: float, unknown: Color = BLACK) -> np.ndarray:
    """Colour displacements (...,2): uint8 (...,3); those that are not finite get the colour `unknown`.

    From `max_norm` on the colour is full. It is not darkened further out, as Middlebury's is: darker patches would look
    like another kind of motion.
    """
    known = is_known(displacement)
    u, v = np.moveaxis(np.where(known[..., None], displacement, 0.0).astype(np.float64), -1, 0)
    saturation = np.minimum(np.hypot(u, v) / max_norm, 1.0)[..., None]
    position = (np.arctan2(-v, -u) / np.pi + 1.0) / 2.0 * (len(WHEEL) - 1)
    lower = np.floor(position).astype(np.int64)
    weight = (position - lower)[..., None]
    hue = (1.0 - weight) * WHEEL[lower] + weight * WHEEL[(lower + 1) % len(WHEEL)]
    color = np.floor(255.0 * (1.0 - saturation * (1.0 - hue)))
    return np.where(known[..., None], color, unknown).astype(np.uint8)


def flow_to_color(flow: np.ndarray, max_norm: float | None = None, unknown: Color = BLACK) -> np.ndarray:
    """Colour a flow (H,W,2), fully from `max_norm` px on, :func:`flow_range` by default: uint8 (H,W,3)."""
    flow = unmasked(flow, "flow")
    if flow.ndim != 3 or flow.shape[2] != 2:
        raise DeepMatchingError(f"A flow must be (H,W,2), but this one is {flow.shape}.")
    return displacement_colors(flow, flow_range(flow) if max_norm is None else max_norm, unknown)


def flow_range(flow: np.ndarray) -> float:
    """Return the displacement in px that gets full colour in a flow (H,W,2): nearly the largest of the known ones."""
    return range_of(flow[is_known(flow)])


def is_known(displacement: np.ndarray) -> np.ndarray:
    """Return which displacements (...,2) are finite."""
    return np.isfinite(displacement).all(axis=-1)


def range_of(displacement: np.ndarray) -> float:
    """Return the norm in px that gets full colour among displacements (N,2), at least 1.

    It is the 98th percentile, so that a few wrong matches do not bleach all others, rounded up to two digits for the
    legend.
    """
    if not len(displacement):
        return 1.0
    largest = max(float(np.percentile(np.hypot(*displacement.T), 98)), 1.0)
    step = 10.0 ** (np.floor(np.log10(largest)) - 1)
    return float(np.ceil(np.round(largest / step, 6)) * step)
