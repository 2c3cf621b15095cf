"""Pictures of how far matches or a flow are from the truth."""

from __future__ import annotations

import cv2
import numpy as np
import torch

from deepmatching.drawing.canvas import (
    GAP,
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
from deepmatching.drawing.colors import Color, displacement_colors, range_of
from deepmatching.drawing.matches import NO_MATCH, draw_match_figure
from deepmatching.drawing.pictures import to_uint8_rgb
from deepmatching.errors import DeepMatchingError

#: Errors in px at which the colour changes: nearly a logarithmic scale, with the paper's thresholds 2, 5 and 10.
STEPS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
#: Blue up to 2 px, yellow up to 10, red beyond (ColorBrewer's RdYlBu).
_COLORS: tuple[Color, ...] = (
    (49, 54, 149),
    (69, 117, 180),
    (145, 191, 219),
    (254, 224, 144),
    (253, 174, 97),
    (244, 109, 67),
    (215, 48, 39),
    (125, 0, 30),
)
UNMATCHED: Color = (95, 95, 95)
NO_TRUTH: Color = NO_MATCH


def error_colors(field: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """uint8 (H,W,3): the error of displacements (H,W,2) by :data:`STEPS`; dark grey where they are unknown (NaN).

    Light grey is where the truth (H,W,2) is unknown.
    """
    if field.shape != truth.shape or field.ndim != 3 or field.shape[2] != 2:
        raise DeepMatchingError(
            f"The field and its truth must be (H,W,2) of one size, but they are {field.shape} and {truth.shape}."
        )
    error = np.hypot(*np.moveaxis(field.astype(np.float64) - truth, 2, 0))
    rgb = np.array(_COLORS, np.uint8)[np.searchsorted(STEPS, error)]
    rgb[np.isnan(error)] = UNMATCHED
    rgb[~np.isfinite(truth).all(axis=2)] = NO_TRUTH
    return rgb


def draw_match_errors(
    image0: np.ndarray | torch.Tensor,
    image1: np.ndarray | torch.Tensor,
    matches: tuple[np.ndarray, np.ndarray, np.ndarray],
    field: np.ndarray,
    truth: np.ndarray,
    caption: str = "",
) -> np.ndarray:
    """The figure of the matches, and below it the true displacement and the error of every pixel.

    `matches` are keypoints0 (N,2), keypoints1 (N,2) and scores (N); `field` (H,W,2) is what the pixels take from them.
    """
    first, second = to_uint8_rgb(image0), to_uint8_rgb(image1)
    scale = drawing_scale(max(len(first), len(second)), max(first.shape[1], second.shape[1]))
    figure = draw_match_figure(first, second, *matches)
    below = beside([_truth_panel(truth, scale), _error_panel(field, truth, scale)])
    picture = stacked([figure[GAP:-GAP, GAP:-GAP], below])
    return framed(captioned(picture, caption) if caption else picture)


def draw_flow_errors(
    image0: np.ndarray | torch.Tensor, flow: np.ndarray, truth: np.ndarray, caption: str = ""
) -> np.ndarray:
    """Image 0 beside the true displacement, and below them a dense flow (H,W,2) and its error."""
    rgb = to_uint8_rgb(image0)
    scale = drawing_scale(*rgb.shape[:2])
    known = truth[np.isfinite(truth).all(axis=2)]
    above = beside([captioned(resize(rgb, scale), "Image 0"), _truth_panel(truth, scale)])
    found = captioned(_field_picture(flow, range_of(known), scale), "Flow")
    picture = stacked([above, beside([found, _error_panel(flow, truth, scale)])])
    return framed(captioned(picture, caption) if caption else picture)


def _truth_panel(truth: np.ndarray, scale: float) -> np.ndarray:
    known = truth[np.isfinite(truth).all(axis=2)]
    return captioned(_field_picture(truth, range_of(known), scale), "True displacement, grey: unknown")


def _thickened(rgb: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Points of a laser scanner are thin: let each also paint its unknown neighbours, if most pixels are unknown."""
    if known.mean() > 0.5:
        return rgb
    thick, painted = rgb.copy(), known.copy()
    for axis, step in ((0, 1), (0, -1), (1, 1), (1, -1)):
        source, reached = np.roll(rgb, step, axis), np.roll(known, step, axis)
        new = reached & ~painted
        thick[new] = source[new]
        painted |= new
    return thick


def _field_picture(field: np.ndarray, max_norm: float, scale: float) -> np.ndarray:
    """Displacements (H,W,2) by colour, full from `max_norm` on, with the legend."""
    known = np.isfinite(field).all(axis=2)
    norm = np.hypot(field[..., 0], field[..., 1])[..., None]
    limited = field * (max_norm / np.maximum(norm, max_norm))
    rgb = np.where(known[..., None], displacement_colors(limited, max_norm * (1 + 1e-6)), np.uint8(NO_TRUTH[0]))
    picture = resize(_thickened(rgb.astype(np.uint8), known), scale, cv2.INTER_NEAREST)
    add_legend(picture, max_norm)
    return picture


def _error_panel(field: np.ndarray, truth: np.ndarray, scale: float) -> np.ndarray:
    known = np.isfinite(truth).all(axis=2)
    picture = resize(_thickened(error_colors(field, truth), known), scale, cv2.INTER_NEAREST)
    has_gaps = bool((known & ~np.isfinite(field).all(axis=2)).any())
    words = "Error, dark: no match, light: truth unknown" if has_gaps else "Error, light grey: truth unknown"
    return stacked([captioned(picture, words), _scale_bar(picture.shape[1])], gap=4)


def _scale_bar(width: int) -> np.ndarray:
    """The colours of the error map in a row, with the errors in px between them."""
    bar = np.full((12 + TEXT_HEIGHT, width, 3), PAPER, np.uint8)
    edges = np.linspace(0, width, len(_COLORS) + 1).astype(int)
    for color, left, right in zip(_COLORS, edges[:-1], edges[1:], strict=True):
        bar[:12, left:right] = color
    for step, x in zip(STEPS, edges[1:-1], strict=True):
        label = f"{step:g}" + (" px" if step == STEPS[-1] else "")
        put_text(bar, label, int(x) - text_size(f"{step:g}", 0.42)[0] // 2, 12 + TEXT_HEIGHT - 9, 0.42)
    return bar
