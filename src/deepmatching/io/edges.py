"""Edge maps from files: pictures, NumPy arrays, and the raw floats of the original EpicFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.arrays import read_npy, unmasked
from deepmatching.io.files import PathLike, read_bytes
from deepmatching.io.image_files import AS_STORED, PICTURE_SUFFIXES, decode_image_file
from deepmatching.io.images import WHITE

_OVERSHOOT = 1.5  # detectors that resample exceed 1 slightly; a map in 0 … 255 exceeds this
_COLOUR = 0.05  # a picture whose channels differ by more is not an edge map


def load_edges(path: PathLike, size: tuple[int, int]) -> np.ndarray:
    """Read an edge map in the format that the suffix names.

    * A picture (.png, .jpg, .tif, …), 8 or 16 bits: white is 1.
    * ``.npy``: an array (H, W), either floating-point in [0, 1], or bool, uint8 or uint16, whose largest value is 1.
    * Any other suffix: H·W little-endian float32, row by row, without a header: the original EpicFlow's format.

    Args:
        path: the file.
        size: (H, W) of the image that the edges belong to.

    Returns:
        (H, W) float32 in [0, 1].
    """
    suffix = Path(path).suffix.lower()
    if suffix in (*PICTURE_SUFFIXES, ".exr"):
        edges = _decode_picture(path)
    elif suffix == ".npy":
        edges = read_npy(path, "edge map")
        edges = edges[:, :, 0] if edges.ndim == 3 and edges.shape[2] == 1 else edges
    else:
        edges = _decode_raw(read_bytes(path, "edge map"), size, path)
    return check_edges(edges, size, f"edge map '{path}'")


def check_edges(edges: np.ndarray, size: tuple[int, int], name: str = "edge map") -> np.ndarray:
    """Convert an array to float32 (H, W) in [0, 1]; raise if it cannot be the edge map of an image of ``size``."""
    edges = unmasked(edges, name)
    if (white := WHITE.get(edges.dtype.name)) is None:
        raise DeepMatchingError(f"The {name} has dtype {edges.dtype}; convert it to float32 in [0, 1].")
    if edges.shape != tuple(size):
        hint = " (is it transposed?)" if edges.shape == tuple(size)[::-1] else ""
        raise DeepMatchingError(
            f"The {name} has shape {edges.shape}, but its image has {tuple(size)}{hint}; "
            "make it from that image, rows first."
        )
    with np.errstate(invalid="ignore", over="ignore"):  # reported below
        edges = edges.astype(np.float32) / np.float32(white)
    low, high = float(edges.min()), float(edges.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DeepMatchingError(f"The {name} contains NaN or infinite values; replace them first.")
    if low < 0 or high > _OVERSHOOT:
        raise DeepMatchingError(
            f"The {name} has values from {low:g} to {high:g}, but edges must be in [0, 1]; rescale it."
        )
    return np.minimum(edges, np.float32(1))


def _decode_picture(path: PathLike) -> np.ndarray:
    picture = decode_image_file(path, AS_STORED, "edge map")
    if picture.ndim == 2:
        return picture
    white = WHITE.get(picture.dtype.name, 1.0)
    spread = (picture.max(axis=2).astype(np.float64) - picture.min(axis=2)).max() / white
    if spread > _COLOUR:
        raise DeepMatchingError(
            f"The edge map '{path}' is a colour picture; give a grey picture that is bright at edges."
        )
    return picture[:, :, 1]


def _decode_raw(data: bytes, size: tuple[int, int], path: PathLike) -> np.ndarray:
    rows, columns = size
    if len(data) != 4 * rows * columns:
        raise DeepMatchingError(
            f"The edge map '{path}' has {len(data)} bytes, but raw float32 for an image of {columns} x {rows} pixels "
            f"takes {4 * rows * columns}; give the map of this image, or use the suffix of a picture or .npy."
        )
    return np.frombuffer(data, "<f4").reshape(rows, columns)
