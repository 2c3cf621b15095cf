"""Colours of displacements: the Middlebury wheel. The hue is the direction, white is no motion."""

from __future__ import annotations

import numpy as np

from deepmatching.errors import DeepMatchingError

Color = tuple[int, int, int]

BLACK: Color = (0, 0, 0)
LIGHT_GREY: Color = (222, 222, 222)

# Six runs from one primary or secondary colour to the next, their lengths chosen to look even.
_RUNS = [
    ((1, 0, 0), (1, 1, 0), 15),
    ((1, 1, 0), (0, 1, 0), 6),
    ((0, 1, 0), (0, 1, 1), 4),
    ((0, 1, 1), (0, 0, 1), 11),
    ((0, 0, 1), (1, 0, 1), 13),
    ((1, 0, 1), (1, 0, 0), 6),
]
#: The 55 hues of Baker et al., "A Database and Evaluation Methodology for Optical Flow": (55,3) in [0,1].
WHEEL = np.concatenate([np.linspace(first, last, length, endpoint=False) for first, last, length in _RUNS])


def displacement_colors(displacement: np.ndarray, max_norm: float, unknown: Color = BLACK) -> np.ndarray:
    """Colour displacements (...,2): uint8 (...,3); those that are not finite get the colour `unknown`.

    From `max_norm` on the colour is full. It is not darkened further out, as Middlebury's is: darker patches would look
    like another kind of motion.
    """
    known = np.isfinite(displacement).all(axis=-1)
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
    flow = np.asarray(flow)
    if flow.ndim != 3 or flow.shape[2] != 2:
        raise DeepMatchingError(f"A flow must be (H,W,2), but this one is {flow.shape}.")
    return displacement_colors(flow, flow_range(flow) if max_norm is None else max_norm, unknown)


def flow_range(flow: np.ndarray) -> float:
    """Return the displacement in px that gets full colour in a flow (H,W,2): nearly the largest of the known ones."""
    return range_of(flow[np.isfinite(flow).all(axis=2)])


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
