"""Edge detection by the shipped network or by OpenCV's structured forest."""

from __future__ import annotations

import os

import cv2
import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges.edge_files import load_edge_network
from deepmatching.flow.edges.edge_network import EdgeNetwork
from deepmatching.flow.edges.forest import check_forest
from deepmatching.io.files import PathLike


def detect_edges(image: Tensor, network: EdgeNetwork | None = None) -> np.ndarray:
    """Object boundaries detected by the edge network.

    Args:
        image: (1 or 3, H, W) in [0, 1].
        network: runs on its own device; None for the shipped network, on the image's device.

    Returns:
        (H, W) float32 in [0, 1], neither thinned nor thresholded, as interpolation needs it.
    """
    return edge_strength(image, network).cpu().numpy()


def edge_strength(image: Tensor, network: EdgeNetwork | None = None) -> Tensor:
    """As :func:`detect_edges`, but a tensor on the network's device."""
    network = load_edge_network(device=str(image.device)) if network is None else network
    with torch.no_grad():
        batch = image.detach().expand(3, -1, -1)[None].to(network.mean.device)
        return network(batch)[0, 0].sigmoid().float()


def structured_forest_edges(image: Tensor, model: PathLike) -> np.ndarray:
    """Edges by OpenCV's structured forest (Dollár and Zitnick), the detector of the original EpicFlow.

    Args:
        image: (1 or 3, H, W) in [0, 1].
        model: OpenCV's model file, ``model.yml.gz`` from its ``opencv_extra`` repository, which we may not ship.

    Returns:
        (H, W) float32 in [0, 1], without non-maximum suppression.
    """
    if not hasattr(cv2, "ximgproc"):
        raise DeepMatchingError("The structured forest needs OpenCV's extra modules: install opencv-contrib-python.")
    if not os.path.isfile(model):
        raise DeepMatchingError(f"There is no structured-forest model '{model}'; check the path.")
    check_forest(model)
    planar = image.detach().cpu().expand(3, -1, -1)
    rgb = np.ascontiguousarray(planar.numpy().transpose(1, 2, 0), np.float32).clip(0, 1)
    try:
        forest = cv2.ximgproc.createStructuredEdgeDetection(os.fspath(model))
        edges = forest.detectEdges(rgb)
    except cv2.error as error:
        raise DeepMatchingError(
            f"OpenCV cannot read '{model}' as a structured-forest model; download it again."
        ) from error
    return np.nan_to_num(edges).clip(0, 1).astype(np.float32)
