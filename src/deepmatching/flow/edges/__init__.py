"""Edge maps: float32 (H, W) in [0, 1], high at the boundaries of objects.

The shipped network detects them, or they are measured as a gradient, or given: as an array or in a file.
"""

import os
from collections.abc import Callable
from typing import TypeAlias

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError, check_size
from deepmatching.flow.edges.edge_network import EdgeNetwork, load_edge_network, save_edge_network
from deepmatching.flow.edges.forest import structured_forest_edges
from deepmatching.io.arrays import read_npy, unmasked
from deepmatching.io.files import PathLike, as_path, read_bytes
from deepmatching.io.image_files import AS_STORED, PICTURE_SUFFIXES, decode_image_file
from deepmatching.io.images import WHITE, load_image

__all__ = [
    "EdgeNetwork",
    "detect_edges",
    "edge_strength",
    "gradient_edges",
    "load_edge_network",
    "load_edges",
    "save_edge_network",
    "structured_forest_edges",
]

#: Where edges come from: the network that ships (None, "network"), "gradient", a file, an array (H, W), or a function
#: from the image (1 or 3, H, W) to such an array.
EdgesLike: TypeAlias = "str | os.PathLike[str] | np.ndarray | Tensor | Callable[[Tensor], np.ndarray] | None"

_GRADIENT_SIGMA = 1.0  #: standard deviation in pixels of the smoothing before the gradient is taken
_GRADIENT_QUANTILE = 0.99  #: the gradient at this quantile becomes 1; stronger ones are clipped
_GRADIENT_FLOOR = 1.0  #: a lower bound for that gradient in ΔE per pixel: noise in a flat picture must not become edges
_OVERSHOOT = 1.5  #: detectors that resample exceed 1 slightly; a map in 0 … 255 exceeds this
_COLOUR = 0.05  #: a picture whose channels differ by more is not an edge map


def edges_of(image: Tensor, edges: EdgesLike = None) -> np.ndarray:
    """Return the edge map of an image (1 or 3, H, W): float32 (H, W) in [0, 1]."""
    size = image.shape[1], image.shape[2]
    if is_detected(edges):
        return detect_edges(image)
    if isinstance(edges, str) and edges == "gradient":
        return gradient_edges(image)
    if isinstance(edges, str | os.PathLike):
        return load_edges(edges, size)
    if isinstance(edges, torch.Tensor):
        edges = edges.detach().cpu()
    return check_edges(unmasked(edges(image) if callable(edges) else edges, "edge map"), size)


def edge_tensor(image: Tensor, edges: EdgesLike = None) -> Tensor:
    """Return :func:`edges_of` on the image's device."""
    return edge_strength(image) if is_detected(edges) else torch.from_numpy(edges_of(image, edges)).to(image.device)


def is_detected(edges: EdgesLike) -> bool:
    """Return whether these are the edges that the network detects."""
    return edges is None or (isinstance(edges, str) and edges == "network")


def is_edge_map(edges: EdgesLike) -> bool:
    """Return whether these are the edges of one image, and not a detector for any."""
    return not (is_detected(edges) or callable(edges) or (isinstance(edges, str) and edges == "gradient"))


def detect_edges(image: Tensor, network: EdgeNetwork | None = None) -> np.ndarray:
    """Detect the boundaries of objects in an image (1 or 3, H, W) in [0, 1] with the edge network.

    The network runs on its own device; without one, the shipped network runs on the image's device. The result is
    (H, W) float32 in [0, 1], neither thinned nor thresholded, as interpolation needs it.
    """
    return edge_strength(load_image(image), network).cpu().numpy()


def edge_strength(image: Tensor, network: EdgeNetwork | None = None) -> Tensor:
    """Return :func:`detect_edges` as a tensor on the network's device."""
    network = load_edge_network(device=str(image.device)) if network is None else network
    with torch.no_grad():
        batch = image.detach().expand(3, -1, -1)[None].to(network.mean.device)
        return network(batch)[0, 0].sigmoid().float()


def gradient_edges(image: Tensor) -> np.ndarray:
    """Return ‖∇(G_σ * Lab)‖ of an image (1 or 3, H, W) in [0, 1], divided by its 99th percentile and clipped at 1.

    The magnitude is sqrt(Σ_c |∇c|²) over the three channels, in units of CIE Lab: one unit is about the smallest
    visible difference. The result is (H, W) float32 in [0, 1].
    """
    rgb = np.ascontiguousarray(load_image(image).detach().cpu().expand(3, -1, -1).permute(1, 2, 0)).clip(0, 1)
    lab = cv2.cvtColor(rgb, cv2.COLOR_RGB2Lab)
    lab = cv2.GaussianBlur(lab, (0, 0), _GRADIENT_SIGMA, borderType=cv2.BORDER_REPLICATE)
    squared = np.zeros(lab.shape[:2], np.float32)
    for x, y in ((1, 0), (0, 1)):  # Sobel's kernel gives 8 for a slope of 1
        slope = cv2.Sobel(lab, cv2.CV_32F, x, y, scale=1 / 8, borderType=cv2.BORDER_REPLICATE)
        squared += np.square(slope).sum(axis=2)
    magnitude = np.sqrt(squared)
    strongest = np.quantile(magnitude, _GRADIENT_QUANTILE)
    return np.minimum(magnitude / np.float32(max(strongest, _GRADIENT_FLOOR)), np.float32(1))


def load_edges(path: PathLike, size: tuple[int, int]) -> np.ndarray:
    """Read the edge map of an image of this size (H, W), in the format that the suffix names: float32 in [0, 1].

    * A picture (.png, .jpg, .tif, …), 8 or 16 bits: white is 1.
    * ``.npy``: an array (H, W), either floating-point in [0, 1], or bool, uint8 or uint16, whose largest value is 1.
    * Any other suffix: H·W little-endian float32, row by row, without a header: the original EpicFlow's format.
    """
    suffix, name, (rows, columns) = as_path(path).suffix.lower(), f"edge map '{path}'", check_size("The size", size)
    if suffix in (*PICTURE_SUFFIXES, ".exr"):
        edges = decode_image_file(path, AS_STORED, "edge map")
        if edges.ndim == 3:
            spread = (edges.max(axis=2).astype(np.float64) - edges.min(axis=2)).max()
            if spread / WHITE.get(edges.dtype.name, 1.0) > _COLOUR:
                raise DeepMatchingError(f"The {name} is a colour picture; give a grey picture that is bright at edges.")
            edges = edges[:, :, 1]
    elif suffix == ".npy":
        edges = read_npy(path, "edge map")
        edges = edges[:, :, 0] if edges.ndim == 3 and edges.shape[2] == 1 else edges
    else:
        data = read_bytes(path, "edge map")
        if len(data) != (expected := 4 * rows * columns):
            needed = f"raw float32 for an image of {columns} x {rows} pixels takes {expected}"
            raise DeepMatchingError(f"The {name} has {len(data)} bytes, but {needed}; is its suffix right?")
        edges = np.frombuffer(data, "<f4").reshape(rows, columns)
    return check_edges(edges, size, name)


def check_edges(edges: np.ndarray, size: tuple[int, int], name: str = "edge map") -> np.ndarray:
    """Convert an array to float32 (H, W) in [0, 1]; raise if it cannot be the edge map of an image of ``size``."""
    edges = unmasked(edges, name)
    if (white := WHITE.get(edges.dtype.name)) is None:
        raise DeepMatchingError(f"The {name} has dtype {edges.dtype}; convert it to float32 in [0, 1].")
    if edges.shape != tuple(size):
        hint = "is it transposed?" if edges.shape == tuple(size)[::-1] else "make it from that image, rows first."
        raise DeepMatchingError(f"The {name} has shape {edges.shape}, but its image has {tuple(size)}; {hint}")
    with np.errstate(invalid="ignore", over="ignore"):  # reported below
        edges = edges.astype(np.float32) / np.float32(white)
    low, high = float(edges.min()), float(edges.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise DeepMatchingError(f"The {name} contains NaN or infinite values; replace them first.")
    if low < 0 or high > _OVERSHOOT:
        raise DeepMatchingError(f"The {name} has values from {low:g} to {high:g}; rescale it to [0, 1].")
    return np.minimum(edges, np.float32(1))
