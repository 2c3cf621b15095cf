"""The edge map of an image: detected by the shipped network, measured as a gradient, or given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.flow.edges.edge_network import EdgeNetwork, load_edge_network
from deepmatching.io.edges import check_edges, load_edges

#: Where edges come from: the network that ships (None, "network"), "gradient", a file, an array (H, W), or a function
#: from the image (1 or 3, H, W) to such an array.
EdgesLike: TypeAlias = "str | os.PathLike[str] | np.ndarray | Tensor | Callable[[Tensor], np.ndarray] | None"

_GRADIENT_SIGMA = 1.0  #: standard deviation in pixels of the smoothing before the gradient is taken
_GRADIENT_QUANTILE = 0.99  #: the gradient at this quantile becomes 1; stronger ones are clipped
_GRADIENT_FLOOR = 1.0  #: a lower bound for that gradient in ΔE per pixel: noise in a flat picture must not become edges


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
        edges = edges.detach().cpu().numpy()
    return check_edges(np.asarray(edges(image) if callable(edges) else edges), size)


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

    Args:
        network: runs on its own device; None for the shipped network, on the image's device.

    Returns:
        (H, W) float32 in [0, 1], neither thinned nor thresholded, as interpolation needs it.
    """
    return edge_strength(image, network).cpu().numpy()


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
    rgb = np.ascontiguousarray(image.detach().cpu().expand(3, -1, -1).permute(1, 2, 0)).clip(0, 1)
    lab = cv2.cvtColor(rgb, cv2.COLOR_RGB2Lab)
    lab = cv2.GaussianBlur(lab, (0, 0), _GRADIENT_SIGMA, borderType=cv2.BORDER_REPLICATE)
    squared = np.zeros(lab.shape[:2], np.float32)
    for x, y in ((1, 0), (0, 1)):  # Sobel's kernel gives 8 for a slope of 1
        slope = cv2.Sobel(lab, cv2.CV_32F, x, y, scale=1 / 8, borderType=cv2.BORDER_REPLICATE)
        squared += np.square(slope).sum(axis=2)
    magnitude = np.sqrt(squared)
    strongest = np.quantile(magnitude, _GRADIENT_QUANTILE)
    return np.minimum(magnitude / np.float32(max(strongest, _GRADIENT_FLOOR)), np.float32(1))
