"""Colours of displacements: the Middlebury wheel. The hue is the direction, white is no motion."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from deepmatching.errors import DeepMatchingError

Color = tuple[int, int, int]

_UNKNOWN_FLOW: Color = (0, 0, 0)


@lru_cache(maxsize=1)
def color_wheel() -> np.ndarray:
    """The 55 hues of Baker et al., "A Database and Evaluation Methodology for Optical Flow": (55,3) in [0,1].

    Six runs from one primary or secondary colour to the next, their lengths chosen to look even.
    """
    runs = [  # from, to, length
        ((1, 0, 0), (1, 1, 0), 15),
        ((1, 1, 0), (0, 1, 0), 6),
        ((0, 1, 0), (0, 1, 1), 4),
        ((0, 1, 1), (0, 0, 1), 11),
        ((0, 0, 1), (1, 0, 1), 13),
        ((1, 0, 1), (1, 0, 0), 6),
    ]
    return np.concatenate([np.linspace(first, last, length, endpoint=False) for first, last, length in runs])


def displacement_colors(displacement: np.ndarray, max_norm: float) -> np.ndarray:
    """(...,2) displacements to uint8 (...,3); beyond `max_norm` a colour is darkened, NaN is black."""
    wheel = color_wheel()
    known = np.isfinite(displacement).all(axis=-1)
    u, v = np.moveaxis(np.where(known[..., None], displacement, 0.0).astype(np.float64), -1, 0)
    norm = (np.hypot(u, v) / max_norm)[..., None]
    position = (np.arctan2(-v, -u) / np.pi + 1.0) / 2.0 * (len(wheel) - 1)
    lower = np.floor(position).astype(np.int64)
    weight = (position - lower)[..., None]
    hue = (1.0 - weight) * wheel[lower] + weight * wheel[(lower + 1) % len(wheel)]
    color = np.where(norm <= 1.0, 1.0 - norm * (1.0 - hue), 0.75 * hue)
    color = np.where(known[..., None], color, np.asarray(_UNKNOWN_FLOW) / 255.0)
    return np.floor(255.0 * color).astype(np.uint8)


def flow_to_color(flow: np.ndarray, max_norm: float | None = None) -> np.ndarray:
    """Paint a flow (H,W,2) with the Middlebury colour wheel; NaN is black.

    `max_norm` is the displacement in px that gets full colour; by default the largest of the flow.
    """
    flow = np.asarray(flow)
    if flow.ndim != 3 or flow.shape[2] != 2:
        raise DeepMatchingError(f"A flow must be (H,W,2), but this one is {flow.shape}.")
    if max_norm is None:
        norm = np.hypot(flow[..., 0].astype(np.float64), flow[..., 1])
        norm = norm[np.isfinite(norm)]
        max_norm = float(norm.max()) if norm.size else 0.0
    return displacement_colors(flow, max_norm if max_norm > 0 else 1.0)


def range_of(displacement: np.ndarray) -> float:
    """The norm of displacements (N,2) to give full colour, in px.

    It is nearly the largest, so that a few wrong matches do not bleach all others, and is rounded up to two
    digits for the legend.
    """
    if not len(displacement):
        return 1.0
    largest = max(float(np.percentile(np.hypot(*displacement.T), 98)), 1.0)
    step = 10.0 ** (np.floor(np.log10(largest)) - 1)
    return float(np.ceil(np.round(largest / step, 6)) * step)


def match_colors(displacement: np.ndarray) -> tuple[np.ndarray, float]:
    """uint8 (N,3) colours of the displacements (N,2) of matches, and the norm of full colour in px.

    Beyond it the colour stays full: darker patches would look like another kind of motion.
    """
    max_norm = range_of(displacement)
    norm = np.hypot(*displacement.T)[:, None]
    return displacement_colors(displacement * (max_norm / np.maximum(norm, max_norm)), max_norm * (1 + 1e-9)), max_norm


def distinct_colors(count: int) -> np.ndarray:
    """uint8 (count,3): bright hues of which successive ones are far apart (golden ratio)."""
    hue = (np.arange(count) * 0.61803398875 + 0.05) % 1.0
    hsv = np.stack([hue * 179, np.full(count, 190), np.full(count, 255)], axis=1).astype(np.uint8)
    return cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0] if count else np.zeros((0, 3), np.uint8)


def as_color(values: np.ndarray) -> Color:
    red, green, blue = (int(value) for value in values)
    return red, green, blue
