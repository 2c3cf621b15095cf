"""Pictures of matches.

Keypoints are (N,2) arrays of (x,y) in pixels with pixel centres at integers; N may be 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from deepmatching.drawing.figure import Panels, add_legend, panel_figure, picture
from deepmatching.drawing.pictures import LIGHT_GREY, Image, displacement_colors, range_of, resize, to_uint8_rgb
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = np.ndarray | None  #: of each match, (N)
_SQUARE = [["image0", "image1"], ["arrows", "field"]]
_WIDE = 2.5  #: images that are this many times as wide as high are drawn below each other
NO_MATCH = LIGHT_GREY
_MIN_CONFIDENCE = 0.5  #: lines of matches below this confidence are thin and dashed, and they have no arrows
_MIN_COLOR = 0.12  #: how much colour a match of confidence 0 keeps, so that it does not look like none
LINES = 40  #: lines between the images, at most
_LARGEST_CELL = 12  #: side in px of the square of a match that is on no grid, at most
_GOLDEN_RATIO = 0.61803398875  #: its multiples, modulo 1, are spread evenly
_ARROW_SPACING = 0.28  #: least distance between arrows, in inches of the figure
_ARROW_WIDTH = 0.022  #: width of an arrow, in inches
_MIN_ARROW_LENGTH = 2  #: arrows shorter than this many times their width are dots


def draw_displacement(
    keypoints0: np.ndarray, keypoints1: np.ndarray, height: int, width: int, cell: int = 8, scores: Numbers = None
) -> np.ndarray:
    """Draw the displacements as uint8 (height,width,3): squares of `cell` px, the most confident on top; else grey."""
    start, end, *_ = sorted_matches(keypoints0, keypoints1, scores)
    max_norm = range_of(end - start)
    rgb = np.full((height, width, 3), NO_MATCH, np.uint8)
    _paint_cells(rgb, start, displacement_colors(end - start, max_norm), cell)
    if len(start):
        add_legend(rgb, max_norm)
    return rgb


def match_panels(*images: np.ndarray) -> list[list[str]]:
    """Return the panels of a figure of matches: in two columns, or below each other for wide images, as panoramas."""
    wide = all(image.shape[1] >= _WIDE * image.shape[0] for image in images)
    return [[name] for row in _SQUARE for name in row] if wide else _SQUARE


@picture
def draw_match_figure(
    image0: Image,
    image1: Image,
    keypoints0: np.ndarray,
    keypoints1: np.ndarray,
    scores: Numbers = None,
    confidence: Numbers = None,
    inliers: Numbers = None,
    lines: int = LINES,
    max_norm: float | None = None,
) -> Figure:
    """Draw lines between the two images; below them, displacements on image 0 and as a field of colours.

    Matches with a confidence (N) in [0, 1] are ordered by it instead of by their scores, and the uncertain ones are
    paler; their lines are dashed, and they have no arrows. With a mask of inliers (N), the lines of the others are
    grey. There are at most this many `lines`; `max_norm` is the displacement in px that gets full colour.
    """
    rgb0, rgb1 = to_uint8_rgb(image0), to_uint8_rgb(image1)
    panels = panel_figure(match_panels(rgb0, rgb1), [rgb0, rgb1])
    start, end, confidence, inliers = sorted_matches(keypoints0, keypoints1, scores, confidence, inliers)
    show_matches(panels, rgb0, rgb1, start, end, max_norm, confidence, inliers, lines)
    return panels.figure


def show_matches(
    panels: Panels,
    image0: np.ndarray,
    image1: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    max_norm: float | None = None,
    confidence: Numbers = None,
    inliers: Numbers = None,
    lines: int = LINES,
) -> None:
    """Fill :func:`match_panels` with :func:`sorted_matches`; `max_norm` is the displacement that gets full colour."""
    has_arrow = np.ones(len(start), bool) if confidence is None else confidence >= _MIN_CONFIDENCE
    if max_norm is None:  # wrong matches would bleach the others
        max_norm = range_of((end - start)[has_arrow if has_arrow.any() else slice(None)])
    sides = np.array([*image0.shape[1::-1], *image1.shape[1::-1]])
    ends = np.concatenate([start, end], axis=1)
    shown = np.flatnonzero(((ends >= -0.5) & (ends < sides - 0.5)).all(axis=1))
    is_below = panels.axes["image1"].get_window_extent().y1 < panels.axes["image0"].get_window_extent().y0
    across = slice(None, None, -1 if is_below else 1)  # lines lead from left to right, or down
    shown = shown[choose_lines(start[shown, across], end[shown, across], lines)]
    count = {0: "no matches", 1: "1 match"}.get(len(start), f"{len(shown)} of {len(start)} matches")
    is_sure = np.ones(len(shown), bool) if confidence is None else confidence[shown] >= _MIN_CONFIDENCE
    dashed = "" if is_sure.all() else f"; dashed: confidence below {_MIN_CONFIDENCE:g}"
    fits = np.ones(len(shown), bool) if inliers is None else inliers[shown]
    grey = "" if fits.all() else "; grey: outliers"
    panels.show("image0", image0, f"Image 0: {count}{dashed}{grey}")
    panels.show("image1", image1, "Image 1")
    _draw_lines(panels, start[shown], end[shown], is_sure, fits)

    cell = _cell_side(start, *image0.shape[:2])
    field = np.full_like(image0, NO_MATCH)
    colors = displacement_colors(end - start, max_norm)
    if confidence is not None:  # the lower it is, the more they are mixed with the grey of no match
        strength = (_MIN_COLOR + (1 - _MIN_COLOR) * confidence)[:, None]
        colors = np.round(strength * colors + (1 - strength) * np.array(NO_MATCH)).astype(np.uint8)
    _paint_cells(field, start, colors, cell)
    field = resize(field, panels.scale, cv2.INTER_NEAREST)
    matched = (field != NO_MATCH).any(axis=2, keepdims=True)
    luma = cv2.cvtColor(resize(image0, panels.scale), cv2.COLOR_RGB2GRAY)[:, :, None].astype(np.float32)
    # A dark part of the image must still show the tint, hence the pedestal.
    tinted = np.where(matched, (0.35 + 0.65 * luma / 255) * field, 0.3 * luma).astype(np.uint8)
    pale = "" if confidence is None else "pale: uncertain, "
    legend = max_norm if len(start) else None
    arrowless = "" if has_arrow.all() else f"; no arrow: confidence below {_MIN_CONFIDENCE:g}"
    panels.show("arrows", tinted, f"Image 0 tinted by displacement; dark: no match{arrowless}", None, legend)
    panels.show("field", field, f"Displacement; {pale}grey: no match", None, legend)
    _draw_arrows(panels, start[has_arrow], end[has_arrow])


def _cell_side(start: np.ndarray, height: int, width: int) -> int:
    """Return the side in px of squares with which matches just cover an image that they are spread over.

    Matches on a grid, which is coarse if the image was reduced, have no gaps between them.
    """
    spread = float(np.clip(np.sqrt(1.3 * height * width / max(len(start), 1)), 2, _LARGEST_CELL))
    columns = np.unique(np.round(start[:, 0], 1))
    is_grid = 1 < len(columns) <= len(start) / 4
    return int(np.ceil(max(spread, float(np.median(np.diff(columns))) if is_grid else 0.0)))


def sorted_matches(
    keypoints0: np.ndarray,
    keypoints1: np.ndarray,
    scores: Numbers = None,
    confidence: Numbers = None,
    inliers: Numbers = None,
) -> tuple[np.ndarray, np.ndarray, Numbers, Numbers]:
    """Return start (N,2), end (N,2), confidence and inliers (N) of the finite matches, the most confident last."""
    scores = scores if confidence is None else confidence
    start, end = (np.asarray(points, np.float64).reshape(-1, 2) for points in (keypoints0, keypoints1))
    score = np.zeros(len(start)) if scores is None else np.asarray(scores, np.float64).reshape(-1)
    if not len(start) == len(end) == len(score) == (len(start) if inliers is None else len(inliers)):
        counts = f"{len(start)} and {len(end)} keypoints, {len(score)} scores"
        counts += "" if inliers is None else f", and whether each of {len(inliers)} fits"
        raise DeepMatchingError(f"There are {counts}; each match needs one of each.")
    order = np.argsort(-score, kind="stable")[::-1]
    order = order[np.isfinite(start[order]).all(axis=1) & np.isfinite(end[order]).all(axis=1)]
    certain = None if confidence is None else np.clip(np.nan_to_num(score[order]), 0, 1)
    return start[order], end[order], certain, None if inliers is None else inliers[order]


def choose_lines(start: np.ndarray, end: np.ndarray, count: int) -> np.ndarray:
    """Return indices of at most `count` matches, spread over the image, whose lines are at different heights.

    The lines of matches of one row would be one, so each line comes from another band of heights of the seam, and the
    golden ratio spreads successive ones across the image. Every other line prefers a match that does not move like
    most, up to a third of the image away: a still background would leave few lines for the object in front of it. Near
    its place, the most confident match (the last one) is taken.
    """
    if not len(start) or not count:
        return np.zeros(0, np.int64)
    seam = (start[:, 1] + end[:, 1]) / 2
    moves_apart = np.abs(end - start - np.median(end - start, axis=0)).max(axis=1) > 2.0
    bands = np.array_split(np.argsort(seam, kind="stable"), min(count, len(start)))
    left, width = start[:, 0].min(), np.ptp(start[:, 0])
    chosen: list[int] = []
    lowest = -np.inf
    for number, band in enumerate(bands):
        band = band[seam[band] >= lowest]
        if not len(band):
            continue
        distance = np.abs(start[:, 0] - left - (number * _GOLDEN_RATIO % 1) * width)
        movers = band[moves_apart[band] & (distance[band] <= width / 3)]
        group = movers if number % 2 and len(movers) else band
        chosen.append(int(group[distance[group] <= max(width / 20, distance[group].min())].max()))
        lowest = seam[chosen[-1]] + 0.5 * np.ptp(seam) / len(bands)
    return np.array(chosen, np.int64)


def _draw_lines(panels: Panels, start: np.ndarray, end: np.ndarray, is_sure: np.ndarray, fits: np.ndarray) -> None:
    """Draw lines from circles in the first image to squares in the second; those that fit have distinct colours."""
    from matplotlib import colormaps

    # All in the coordinates of the second panel, which is drawn after the first.
    first, second = panels.axes["image0"], panels.axes["image1"]
    corners = [(axes.get_window_extent().x0, -axes.get_window_extent().y1) for axes in (first, second)]
    start = start + (np.array(corners[0]) - corners[1]) / panels.scale
    hues = colormaps["hsv"](_GOLDEN_RATIO * np.arange(len(start)) % 1)
    colors = 0.3 + 0.7 * hues  # lighter, because pure blue is hard to see
    colors[~fits] = (0.5, 0.5, 0.5, 1.0)
    for tail, head, color, sure in zip(start, end, colors, is_sure, strict=True):
        style: dict[str, Any] = {"linewidth": 0.9} if sure else {"linewidth": 0.6, "linestyle": (0, (5, 5))}
        second.plot(*np.stack([tail, head], axis=1), color=color, clip_on=False, **style)
    ends: dict[str, Any] = {"s": 22, "c": colors, "edgecolors": "black", "linewidths": 0.9, "zorder": 3}
    for points, marker in ((start, "o"), (end, "s")):
        second.scatter(*points.T, marker=marker, clip_on=False, **ends)


def _draw_arrows(panels: Panels, start: np.ndarray, end: np.ndarray) -> None:
    """Draw displacements, in each square of a grid that of the most central match, at their true length or as dots."""
    if not len(start):
        return
    inch = panels.figure.dpi / panels.scale  # in pixels of the image
    square = start / max(_ARROW_SPACING * inch, 0.6 * float(np.median(np.hypot(*(end - start).T))))
    order = np.argsort(np.abs(square % 1 - 0.5).max(axis=1), kind="stable")
    shown = order[np.unique(np.floor(square[order]), axis=0, return_index=True)[1]]
    # Coordinates far outside the picture would overflow.
    tails, arrows = (np.clip(points[shown], -1e4, 1e4).T for points in (start, end - start))
    scale: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "units": "inches"}
    shape: dict[str, Any] = {"width": _ARROW_WIDTH, "minlength": _MIN_ARROW_LENGTH, "linewidth": 0.7}
    panels.axes["arrows"].quiver(*tails, *arrows, **scale, **shape, color="white", edgecolor="black")


def _paint_cells(canvas: np.ndarray, start: np.ndarray, colors: np.ndarray, cell: int) -> None:
    """Paint a square of `cell` px in its colour (N,3) around every match (N,2), in place and in order."""
    corner = np.floor(start - cell / 2 + 0.5)
    low, high = (np.clip(c, 0, canvas.shape[1::-1]).astype(np.int64).tolist() for c in (corner, corner + cell))
    for (x0, y0), (x1, y1), color in zip(low, high, colors, strict=True):
        canvas[y0:y1, x0:x1] = color
