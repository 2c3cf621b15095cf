"""Pictures of a dense flow and of its confidence."""

from __future__ import annotations

import cv2
import numpy as np
import torch

from deepmatching.drawing.canvas import (
    PAPER,
    TEXT_HEIGHT,
    add_legend,
    beside,
    captioned,
    drawing_scale,
    framed,
    put_text,
    resize,
    stacked,
    text_size,
)
from deepmatching.drawing.colors import displacement_colors, range_of
from deepmatching.drawing.pictures import to_uint8_rgb
from deepmatching.errors import DeepMatchingError

_BAR = 12  # height in px of the scale under the confidence


def draw_flow(flow: np.ndarray, max_norm: float | None = None, legend: bool = True) -> np.ndarray:
    """A flow (H,W,2) by the colours of the Middlebury wheel: uint8 (H,W,3), of the flow's own size.

    `max_norm` is the displacement in px from which on a colour is full; by default nearly the largest.
    """
    flow = np.asarray(flow)
    if flow.ndim != 3 or flow.shape[2] != 2:
        raise DeepMatchingError(f"A flow must be (H,W,2), but this one is {flow.shape}.")
    if max_norm is None:
        max_norm = flow_range(flow)
    norm = np.hypot(flow[..., 0], flow[..., 1])[..., None]
    limited = flow * (max_norm / np.maximum(norm, max_norm))
    picture = displacement_colors(limited, max_norm * (1 + 1e-6))
    if legend:
        add_legend(picture, max_norm)
    return picture


def flow_range(flow: np.ndarray) -> float:
    """The displacement in px that gets full colour: nearly the largest of the known ones."""
    return range_of(flow[np.isfinite(flow).all(axis=2)])


def draw_confidence(confidence: np.ndarray) -> np.ndarray:
    """A confidence (H,W) in [0,1] as uint8 (H,W,3): dark violet is 0, yellow is 1."""
    return _heat(np.rint(255 * np.clip(confidence, 0, 1)).astype(np.uint8))


def draw_flow_figure(
    image0: np.ndarray | torch.Tensor,
    flow: np.ndarray,
    confidence: np.ndarray,
    image1: np.ndarray | torch.Tensor | None = None,
) -> np.ndarray:
    """Image 0, the flow (H,W,2), its confidence (H,W) and, if image 1 is given, that taken back by the flow."""
    rgb = to_uint8_rgb(image0)
    if not rgb.shape[:2] == flow.shape[:2] == confidence.shape:
        raise DeepMatchingError(
            f"The image, its flow and the confidence must be of one size, but they are {rgb.shape[:2]}, "
            f"{flow.shape[:2]} and {confidence.shape}."
        )
    scale = drawing_scale(*rgb.shape[:2])
    coloured = resize(draw_flow(flow, legend=False), scale, cv2.INTER_NEAREST)
    add_legend(coloured, flow_range(flow))
    sure = resize(draw_confidence(confidence), scale, cv2.INTER_NEAREST)
    first = captioned(resize(rgb, scale), "Image 0")
    motion = captioned(coloured, "Flow")
    trust = stacked([captioned(sure, "Confidence"), _scale_bar(sure.shape[1])], gap=4)
    if image1 is None:
        return framed(stacked([first, motion, trust]))
    back = resize(taken_back(to_uint8_rgb(image1), flow), scale)
    return framed(
        stacked([beside([first, captioned(back, "Image 1 taken back by the flow")]), beside([motion, trust])])
    )


def taken_back(image1: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """Image 1 (H,W,3) sampled where the flow (H,W,2) leads: it looks like image 0. Grey where that is outside."""
    rows, columns = np.indices(flow.shape[:2], dtype=np.float32)
    x, y = columns + flow[..., 0], rows + flow[..., 1]
    return cv2.remap(image1, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=(128, 128, 128))


def draw_frame(image: np.ndarray | torch.Tensor, flow: np.ndarray, max_norm: float) -> np.ndarray:
    """One picture of a video: the frame above its flow, both sides even as codecs want them."""
    rgb = to_uint8_rgb(image)
    picture = np.concatenate([rgb, draw_flow(flow, max_norm)])
    rows, columns = (side - side % 2 for side in picture.shape[:2])
    return picture[:rows, :columns]


def _heat(values: np.ndarray) -> np.ndarray:
    """uint8 (H,W) to the colours of viridis, uint8 (H,W,3)."""
    return cv2.applyColorMap(values, cv2.COLORMAP_VIRIDIS)[:, :, ::-1]


def _scale_bar(width: int) -> np.ndarray:
    """The colours of the confidence in a row, from 0 to 1."""
    bar = np.full((_BAR + TEXT_HEIGHT, width, 3), PAPER, np.uint8)
    bar[:_BAR] = _heat(np.linspace(0, 255, width).astype(np.uint8)[None])
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        label = f"{value:g}"
        length = text_size(label, 0.42)[0]
        x = int(np.clip(value * width - length // 2, 0, width - length))
        put_text(bar, label, x, _BAR + TEXT_HEIGHT - 9, 0.42)
    return bar
