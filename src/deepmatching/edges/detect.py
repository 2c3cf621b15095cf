"""Edges from an image: by the network that ships, or by OpenCV's structured forest."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import torch

from deepmatching.edges.models import load_edge_network
from deepmatching.edges.network import EdgeNetwork
from deepmatching.errors import DeepMatchingError
from deepmatching.io.images import ImageLike, load_image


def detect_edges(image: ImageLike, network: EdgeNetwork | None = None) -> np.ndarray:
    """Where objects end, as the network sees it.

    Args:
        image: anything :func:`~deepmatching.io.images.load_image` takes, grey or RGB.
        network: run on the device on which it lies; by default the one that ships with the package, on the device of
            the image if that is a tensor.

    Returns:
        (H, W) float32 in [0, 1]. Soft: neither thinned nor cut, as the interpolation of flow wants it.
    """
    planar = load_image(image).detach()
    network = load_edge_network(device=str(planar.device)) if network is None else network
    with torch.inference_mode():
        batch = planar.expand(3, -1, -1)[None].to(network.mean.device)
        logits = network(batch)
        return logits[0, 0].sigmoid().float().cpu().numpy()


def structured_forest_edges(image: ImageLike, model: str | os.PathLike[str]) -> np.ndarray:
    """Edges by OpenCV's structured forest (Dollár and Zitnick), the detector that the original EpicFlow was run with.

    Args:
        image: anything :func:`~deepmatching.io.images.load_image` takes, grey or RGB.
        model: OpenCV's model file, ``model.yml.gz`` (from its ``opencv_extra`` repository), which cannot ship with us.

    Returns:
        (H, W) float32 in [0, 1], without non-maximum suppression.
    """
    if not hasattr(cv2, "ximgproc"):
        raise DeepMatchingError("The structured forest needs OpenCV's extra modules: install opencv-contrib-python.")
    if not Path(model).is_file():
        raise DeepMatchingError(f"There is no structured-forest model '{model}'; check the path.")
    planar = load_image(image).detach().cpu().expand(3, -1, -1)
    rgb = np.ascontiguousarray(planar.numpy().transpose(1, 2, 0), np.float32).clip(0, 1)
    try:
        forest = cv2.ximgproc.createStructuredEdgeDetection(os.fspath(model))
        edges = forest.detectEdges(rgb)
    except cv2.error as error:
        raise DeepMatchingError(
            f"OpenCV cannot use '{model}' as a structured-forest model; download it again."
        ) from error
    return np.nan_to_num(edges).clip(0, 1).astype(np.float32)
