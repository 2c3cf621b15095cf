"""Pictures of a dense flow and of its confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np
import torch

from deepmatching.drawing.colors import flow_range, flow_to_color
from deepmatching.drawing.figure import add_color_bar, add_legend, panel_figure, picture, show
from deepmatching.drawing.pictures import resize, to_uint8_rgb
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_confidence", "draw_flow", "draw_flow_figure", "draw_frame", "flow_range", "warped"]


def draw_flow(flow: np.ndarray, max_norm: float | None = None, legend: bool = True) -> np.ndarray:
    """A flow (H,W,2) in the colours of the Middlebury wheel: uint8 (H,W,3), of the flow's own size.

    `max_norm` is the displacement in px from which on a colour is full; by default nearly the largest.
    """
    rgb = flow_to_color(flow, max_norm)
    if legend:
        add_legend(rgb, flow_range(flow) if max_norm is None else max_norm)
    return rgb


def draw_confidence(confidence: np.ndarray) -> np.ndarray:
    """A confidence (H,W) in [0,1] as uint8 (H,W,3): dark violet is 0, yellow is 1."""
    levels = np.rint(255 * np.clip(confidence, 0, 1)).astype(np.uint8)
    return cv2.applyColorMap(levels, cv2.COLORMAP_VIRIDIS)[:, :, ::-1]


def draw_frame(image: np.ndarray | torch.Tensor, flow: np.ndarray, max_norm: float) -> np.ndarray:
    """One frame of a video: the image above its flow, with even sides because codecs need them."""
    stacked = np.concatenate([to_uint8_rgb(image), draw_flow(flow, max_norm)])
    rows, columns = (side - side % 2 for side in stacked.shape[:2])
    return stacked[:rows, :columns]


def warped(image1: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """Image 1 (H,W,3) warped to image 0 by the flow (H,W,2): sampled where it leads, grey where that is outside."""
    rows, columns = np.indices(flow.shape[:2], dtype=np.float32)
    x, y = columns + flow[..., 0], rows + flow[..., 1]
    return cv2.remap(image1, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=(128, 128, 128))


@picture
def draw_flow_figure(
    image0: np.ndarray | torch.Tensor,
    flow: np.ndarray,
    confidence: np.ndarray,
    image1: np.ndarray | torch.Tensor | None = None,
) -> Figure:
    """Image 0, the flow (H,W,2), its confidence (H,W) and, if image 1 is given, that image warped by the flow."""
    from matplotlib.cm import ScalarMappable

    rgb = to_uint8_rgb(image0)
    if not rgb.shape[:2] == flow.shape[:2] == confidence.shape:
        raise DeepMatchingError(
            f"The image, its flow and the confidence must be of one size, but they are {rgb.shape[:2]}, "
            f"{flow.shape[:2]} and {confidence.shape}."
        )
    mosaic = [["image0"], ["flow"], ["confidence"]]
    if image1 is not None:
        mosaic = [["image0", "warped"], ["flow", "confidence"]]
    figure, axes, scale = panel_figure(mosaic, [rgb], bar=True)
    show(axes["image0"], resize(rgb, scale), scale, "Image 0")
    if image1 is not None:
        second = resize(warped(to_uint8_rgb(image1), flow), scale)
        show(axes["warped"], second, scale, "Image 1 warped by the flow")
    colored = resize(flow_to_color(flow), scale, cv2.INTER_NEAREST)
    add_legend(colored, flow_range(flow))
    show(axes["flow"], colored, scale, "Flow")
    show(axes["confidence"], resize(draw_confidence(confidence), scale, cv2.INTER_NEAREST), scale, "Confidence")
    ticks = (0, 0.25, 0.5, 0.75, 1)
    add_color_bar(axes["confidence"], mappable=ScalarMappable(cmap="viridis"), ticks=ticks, format="{x:g}")
    return figure
