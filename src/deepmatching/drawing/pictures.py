"""Pictures as arrays: uint8 RGB (H,W,3), from the images that the library loads, and to files."""

from __future__ import annotations

import base64
import html
import os

import cv2
import numpy as np
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import atomic_write, check_suffix, check_writable, signed
from deepmatching.io.image_files import PICTURE_SUFFIXES

_ENCODERS = tuple(suffix for suffix in PICTURE_SUFFIXES if suffix != ".pgm")  # which is grey
_SMALLEST_SIDE = 560  #: an image with a shorter longer side is enlarged when it is drawn
_LARGEST_SIDE = 1280  #: one with a longer side is reduced, in px


def to_uint8_rgb(image: np.ndarray | torch.Tensor) -> np.ndarray:
    """Copy a uint8 (H,W), (H,W,1) or (H,W,3), or a tensor (C,H,W) from `load_image`, to uint8 RGB (H,W,3)."""
    if isinstance(image, torch.Tensor):
        planar = image.detach().to("cpu", torch.float32).numpy()
        if planar.ndim != 3 or planar.shape[0] not in (1, 3):
            raise DeepMatchingError(f"To be drawn, an image must be (1 or 3,H,W), not {planar.shape}.")
        pixels = np.rint(np.clip(planar.transpose(1, 2, 0), 0.0, 1.0) * 255.0).astype(np.uint8)
    else:
        pixels = image[:, :, None] if image.ndim == 2 else image
        if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or pixels.dtype != np.uint8:
            raise DeepMatchingError(
                f"To be drawn, an array must be uint8 (H,W,3), not {image.dtype} {image.shape}; "
                "pass it through load_image first."
            )
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
    """Write uint8 RGB (H,W,3) in the format that the suffix names."""
    suffix = check_suffix(path, _ENCODERS, "image")
    pixels = np.ascontiguousarray(to_uint8_rgb(rgb)[:, :, ::-1])
    try:
        encoded, data = cv2.imencode(suffix, pixels)
    except cv2.error:
        encoded = False
    if not encoded:
        raise DeepMatchingError(
            f"OpenCV cannot write {pixels.shape[1]} x {pixels.shape[0]} pixels as '{path}'; use .png instead."
        )
    with atomic_write(path) as temporary:
        temporary.write_bytes(signed(data.tobytes()))
