"""Pictures of a dense flow, of its confidence, and of the errors of matches or of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import cv2
import numpy as np

from deepmatching.drawing.figure import Panels, add_legend, panel_figure, picture
from deepmatching.drawing.matches import match_panels, show_matches, sorted_matches
from deepmatching.drawing.pictures import (
    BLACK,
    LIGHT_GREY,
    Image,
    flow_range,
    flow_to_color,
    is_known,
    range_of,
    to_uint8_rgb,
)
from deepmatching.drawing.warping import warp
from deepmatching.errors import DeepMatchingError, check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Style = Literal["above", "beside", "colours", "arrows"]  #: how a frame of a video shows the flow
_ARROWS = 32  #: arrows along the longer side of a frame
_SHORTEST = 1.5  #: a motion that is shorter along both axes has no arrow, in px
_CONFIDENT = 0.5  #: arrows of less confidence are left out
_FARTHEST = 2**14  #: longer arrows are cut, in px: OpenCV's positions would overflow
#: Errors in px at which the colour changes: nearly a logarithmic scale, with the paper's thresholds 2, 5 and 10.
STEPS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
#: Blue up to 2 px, yellow up to 10, red beyond (ColorBrewer's RdYlBu).
_COLORS = np.array([*bytes.fromhex("313695 4575b4 91bfdb fee090 fdae61 f46d43 d73027 7d001e")], np.uint8).reshape(-1, 3)
UNMATCHED = (95, 95, 95)
NO_TRUTH = LIGHT_GREY


def draw_flow(flow: np.ndarray, max_norm: float | None = None, legend: bool = True) -> np.ndarray:
    """Draw a flow (H,W,2) in the colours of the Middlebury wheel: uint8 (H,W,3), of the flow's own size.

    `max_norm` is the displacement in px from which on a colour is full; by default nearly the largest.
    """
    rgb = flow_to_color(flow, max_norm)
    if legend:
        add_legend(rgb, flow_range(flow) if max_norm is None else max_norm)
    return rgb


def draw_confidence(confidence: np.ndarray) -> np.ndarray:
    """Draw a confidence (H,W) in [0,1] as uint8 (H,W,3): dark violet is 0, yellow is 1."""
    levels = np.rint(255 * np.clip(confidence, 0, 1)).astype(np.uint8)
    return cv2.applyColorMap(levels, cv2.COLORMAP_VIRIDIS)[:, :, ::-1]


def draw_frame(
    image: Image, flow: np.ndarray, max_norm: float, style: Style = "above", confidence: np.ndarray | None = None
) -> np.ndarray:
    """Draw one frame of a video: the image above its flow or beside it, the flow alone, or arrows on the image.

    Arrows that are short, or whose confidence (H,W) is low, are left out. The sides are even because codecs need them.
    """
    check_choice("style", style, get_args(Style))
    rgb, colors = to_uint8_rgb(image), draw_flow(flow, max_norm)
    if style in ("above", "beside"):
        colors = np.concatenate([rgb, colors], axis=0 if style == "above" else 1)
    elif style == "arrows":
        colors = _draw_arrows(rgb, flow, max_norm, confidence)
    rows, columns = (side - side % 2 for side in colors.shape[:2])
    return colors[:rows, :columns]


def _draw_arrows(rgb: np.ndarray, flow: np.ndarray, max_norm: float, confidence: np.ndarray | None) -> np.ndarray:
    """Draw arrows from the pixels of a grid to where they go, in the colours of the flow on a dark rim."""
    canvas = np.array(rgb, order="C")
    step = max(8, round(max(rgb.shape[:2]) / _ARROWS))
    colors = flow_to_color(flow, max_norm)
    for y, x in np.mgrid[step // 2 : rgb.shape[0] : step, step // 2 : rgb.shape[1] : step].reshape(2, -1).T.tolist():
        u, v = np.clip(flow[y, x], -_FARTHEST, _FARTHEST).tolist()
        if max(abs(u), abs(v)) >= _SHORTEST and (confidence is None or confidence[y, x] >= _CONFIDENT):
            for color, width in ((BLACK, 3), (colors[y, x].tolist(), 1)):
                ends = (x, y), (round(x + u), round(y + v))
                cv2.arrowedLine(canvas, *ends, color, width, cv2.LINE_AA, tipLength=0.25)
    add_legend(canvas, max_norm)
    return canvas


@picture
def draw_flow_figure(
    image0: Image,
    flow: np.ndarray,
    confidence: np.ndarray,
    image1: Image | None = None,
    hidden: np.ndarray | None = None,
) -> Figure:
    """Draw image 0, the flow (H,W,2), its confidence (H,W) and, if image 1 is given, that image warped by the flow.

    Pixels that are `hidden` in it, (H,W) bool, would show what hides them; the warp is grey there.
    """
    from matplotlib.cm import ScalarMappable

    rgb = to_uint8_rgb(image0)
    if not rgb.shape[:2] == flow.shape[:2] == confidence.shape:
        sizes = f"{rgb.shape[:2]}, {flow.shape[:2]} and {confidence.shape}"
        raise DeepMatchingError(f"The image, its flow and the confidence must be of one size, but they are {sizes}.")
    column, square = [["image0"], ["flow"], ["confidence"]], [["image0", "warped"], ["flow", "confidence"]]
    panels = panel_figure(column if image1 is None else square, [rgb], bar=True)
    panels.show("image0", rgb, "Image 0")
    if image1 is not None:
        grey = "; grey: hidden or outside" if hidden is not None and hidden.any() else ""
        panels.show("warped", warp(image1, flow, hidden)[..., :3], f"Image 1 warped by the flow{grey}")
    panels.show("flow", flow_to_color(flow), "Flow", cv2.INTER_NEAREST, flow_range(flow))
    panels.show("confidence", draw_confidence(confidence), "Confidence", cv2.INTER_NEAREST)
    ticks = (0, 0.25, 0.5, 0.75, 1)
    panels.add_color_bar("confidence", mappable=ScalarMappable(cmap="viridis"), ticks=ticks, format="{x:g}")
    return panels.figure


def error_colors(field: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Colour the error of displacements (H,W,2) by :data:`STEPS`: uint8 (H,W,3).

    Dark grey is where they are unknown (NaN), light grey where the truth (H,W,2) is.
    """
    if field.shape != truth.shape or field.ndim != 3 or field.shape[2] != 2:
        raise DeepMatchingError(f"Field and truth must be (H,W,2) of one size, not {field.shape} and {truth.shape}.")
    error = np.hypot(*np.moveaxis(field.astype(np.float64) - truth, 2, 0))
    rgb = _COLORS[np.searchsorted(STEPS, error)]
    rgb[np.isnan(error)] = UNMATCHED
    rgb[~is_known(truth)] = NO_TRUTH
    return rgb


@picture
def draw_match_errors(
    image0: Image,
    image1: Image,
    matches: tuple[np.ndarray, np.ndarray, np.ndarray],
    field: np.ndarray,
    truth: np.ndarray,
    caption: str = "",
    confidence: np.ndarray | None = None,
) -> Figure:
    """Draw the figure of the matches, and below it, in their scale, the true displacement and the error of every pixel.

    `matches` are keypoints0 (N,2), keypoints1 (N,2) and scores (N), `confidence` is that of
    :func:`~deepmatching.drawing.draw_match_figure`; `field` (H,W,2) is what each pixel gets from them.
    """
    rgb0, rgb1 = to_uint8_rgb(image0), to_uint8_rgb(image1)
    rows = match_panels(rgb0, rgb1)
    below = [["truth", "error"]] if len(rows[0]) == 2 else [["truth"], ["error"]]
    panels = panel_figure([*rows, *below], [rgb0, rgb1], caption, bar=True)
    start, end, confidence, _ = sorted_matches(*matches, confidence)
    max_norm = flow_range(truth) if is_known(truth).any() else range_of(end - start)
    show_matches(panels, rgb0, rgb1, start, end, max_norm, confidence)
    _show_truth(panels, truth, max_norm)
    _show_errors(panels, field, truth)
    return panels.figure


@picture
def draw_flow_errors(image0: Image, flow: np.ndarray, truth: np.ndarray, caption: str = "") -> Figure:
    """Draw image 0 and the true displacement; below them a flow (H,W,2) in the same scale of colours and its error."""
    rgb = to_uint8_rgb(image0)
    panels = panel_figure([["image0", "truth"], ["flow", "error"]], [rgb], caption, bar=True)
    panels.show("image0", rgb, "Image 0")
    max_norm = flow_range(truth if is_known(truth).any() else flow)
    _show_truth(panels, truth, max_norm)
    panels.show("flow", flow_to_color(flow, max_norm, NO_TRUTH), "Flow", cv2.INTER_NEAREST, max_norm)
    _show_errors(panels, flow, truth)
    return panels.figure


def _show_truth(panels: Panels, truth: np.ndarray, max_norm: float) -> None:
    """Draw the true displacements (H,W,2) by colour."""
    rgb = _thickened(flow_to_color(truth, max_norm, NO_TRUTH), is_known(truth))
    panels.show("truth", rgb, "True displacement; grey: unknown", cv2.INTER_NEAREST, max_norm)


def _show_errors(panels: Panels, field: np.ndarray, truth: np.ndarray) -> None:
    """Draw the error of every pixel, with its colour bar."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    known = is_known(truth)
    rgb = _thickened(error_colors(field, truth), known)
    has_gaps = bool((known & ~is_known(field)).any())
    title = "Error in px; dark: no match, light: truth unknown" if has_gaps else "Error in px; grey: truth unknown"
    panels.show("error", rgb, title, cv2.INTER_NEAREST)
    colors = ScalarMappable(BoundaryNorm([0, *STEPS, 2 * STEPS[-1]], len(_COLORS)), ListedColormap(_COLORS / 255))
    panels.add_color_bar("error", mappable=colors, ticks=STEPS, spacing="uniform", format="{x:g}")


def _thickened(rgb: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Let points of a laser scanner, which are thin, also paint their neighbours if most pixels are unknown."""
    if known.mean() > 0.5 or not known.any():
        return rgb
    unknown = (~known).astype(np.uint8)
    distance, nearest = cv2.distanceTransformWithLabels(unknown, cv2.DIST_L1, 3, labelType=cv2.DIST_LABEL_PIXEL)
    colors = np.zeros((nearest.max() + 1, 3), np.uint8)
    colors[nearest[known]] = rgb[known]
    return np.where(distance[..., None] <= 1, colors[nearest], rgb)
