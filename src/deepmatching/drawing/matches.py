"""Pictures of matches.

Keypoints are (N,2) arrays of (x,y) in pixels with pixel centres at integers; N may be 0.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch

from deepmatching.drawing.canvas import (
    GAP,
    SHIFT,
    add_legend,
    as_matches,
    beside,
    captioned,
    drawing_scale,
    fixed,
    framed,
    pick_apart,
    resize,
    scaled,
    stacked,
)
from deepmatching.drawing.colors import Color, as_color, distinct_colors, match_colors, range_of
from deepmatching.drawing.pictures import to_uint8_rgb

NO_MATCH: Color = (222, 222, 222)


def draw_matches_overlay(
    image0: np.ndarray | torch.Tensor,
    keypoints0: np.ndarray,
    keypoints1: np.ndarray,
    scores: np.ndarray | None = None,
    segments: bool = True,
    scale: float | None = None,
) -> np.ndarray:
    """Image 0 in grey, dark where there is no match and tinted by the displacement where there is one.

    `segments` adds, for an evenly spread few, the displacement itself at its true length. The picture is
    `scale` times as large as the image; by default its longer side becomes 560 to 1280 px.
    """
    rgb = to_uint8_rgb(image0)
    height, width = rgb.shape[:2]
    start, end, _ = as_matches(keypoints0, keypoints1, scores)
    scale = drawing_scale(height, width) if scale is None else scale
    colors, max_norm = match_colors(end - start)

    tint = np.zeros((height, width, 3), np.uint8)
    _paint_cells(tint, start, colors, _cell_for(len(start), height, width))
    tint = resize(tint, scale, cv2.INTER_NEAREST)
    grey = cv2.cvtColor(resize(rgb, scale), cv2.COLOR_RGB2GRAY)[:, :, None].astype(np.float32)
    # A dark part of the image must still show the tint, hence the pedestal.
    matched = (0.35 + 0.65 * grey / 255.0) * tint
    canvas = np.where(tint.any(axis=2, keepdims=True), matched, 0.3 * grey).astype(np.uint8)
    if segments:
        _draw_segments(canvas, start, end, scale)
    if len(start):
        add_legend(canvas, max_norm)
    return canvas


def _cell_for(count: int, height: int, width: int) -> int:
    """The side in px of squares with which `count` matches just cover an image that they are spread over."""
    return int(np.clip(np.ceil(np.sqrt(1.3 * height * width / max(count, 1))), 2, 12))


def _paint_cells(canvas: np.ndarray, start: np.ndarray, colors: np.ndarray, cell: int) -> None:
    """Paint a square of `cell` px in its colour (N,3) around every match (N,2), in place and in order."""
    size = np.array([canvas.shape[1], canvas.shape[0]])
    corner = np.floor(start - cell / 2 + 0.5)
    low = np.clip(corner, 0, size).astype(np.int64).tolist()
    high = np.clip(corner + cell, 0, size).astype(np.int64).tolist()
    for (x0, y0), (x1, y1), color in zip(low, high, colors, strict=True):
        canvas[y0:y1, x0:x1] = color


def _draw_segments(canvas: np.ndarray, start: np.ndarray, end: np.ndarray, scale: float) -> None:
    """Draw an evenly spread few of the displacements, from a dot at the match to where it moves."""
    # Where nothing can be seen to move, a segment is only clutter.
    length = scale * np.hypot(*(end - start).T)
    start, end, length = start[length >= 5], end[length >= 5], length[length >= 5]
    if not len(start):
        return
    distance = max(30.0, 0.6 * float(np.median(length)))
    shown = pick_apart([(start, distance / scale)], count=200)
    tails, heads = fixed(scaled(start[shown], scale)), fixed(scaled(end[shown], scale))
    # The dark outline, drawn first, keeps white lines legible on white cells.
    for color, thickness, radius in (((0, 0, 0), 3, 3.5), ((255, 255, 255), 1, 2.2)):
        for tail, head in zip(tails, heads, strict=True):
            cv2.line(canvas, tail, head, color, thickness, cv2.LINE_AA, SHIFT)
            _dot(canvas, tail, radius, color)


def _dot(canvas: np.ndarray, point: tuple[int, int], radius: float, color: Color) -> None:
    cv2.circle(canvas, point, round(radius * (1 << SHIFT)), color, cv2.FILLED, cv2.LINE_AA, SHIFT)


def draw_matches_lines(
    image0: np.ndarray | torch.Tensor,
    image1: np.ndarray | torch.Tensor,
    keypoints0: np.ndarray,
    keypoints1: np.ndarray,
    scores: np.ndarray | None = None,
    max_lines: int = 40,
) -> np.ndarray:
    """Both images side by side and lines between at most `max_lines` evenly spread matches.

    The most confident matches are shown that keep their distance from each other. Both images are scaled by
    the same factor, to a longer side of 560 to 1280 px.
    """
    left, right = to_uint8_rgb(image0), to_uint8_rgb(image1)
    start, end, _ = as_matches(keypoints0, keypoints1, scores)
    shown = choose_lines(start, end, left.shape[0], left.shape[1], max_lines)
    return _draw_lines(left, right, start[shown], end[shown])


def choose_lines(start: np.ndarray, end: np.ndarray, height: int, width: int, count: int) -> np.ndarray:
    """Indices of at most `count` matches that are far apart and whose lines are too, from top to bottom.

    Every line crosses the seam between the images; matches that are apart only in x would cross it at the
    same height, and their lines would be one. Matches that move like most and such that do not take turns:
    by confidence alone, a still background would leave no line for the object that moves in front of it.
    """
    if count <= 0 or not len(start):
        return np.zeros(0, np.int64)
    blocks = np.unique(np.floor(start / 16.0), axis=0)  # the area that has matches at all
    area = min(256.0 * len(blocks), float(height * width))
    seam = (start[:, 1:] + end[:, 1:]) / 2
    own = np.abs(end - start - np.median(end - start, axis=0)).max(axis=1) > 2.0
    place = np.where(own, np.cumsum(own[::-1])[::-1], np.cumsum(~own[::-1])[::-1])  # in its group, 1 is the best
    turns = np.argsort(-place, kind="stable")
    apart = [(start[turns], 0.7 * np.sqrt(area / count)), (seam[turns], 0.6 * height / count)]
    shown = turns[pick_apart(apart, count)]
    return shown[np.argsort(seam[shown, 0], kind="stable")]


def _draw_lines(left: np.ndarray, right: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The two images (uint8 RGB) and a line for every match; successive ones get distinct colours."""
    scale = _common_scale(left, right)
    left, right = resize(left, scale), resize(right, scale)
    canvas = beside([left, right])
    tails = fixed(scaled(start, scale))
    heads = fixed(scaled(end, scale, offset=(left.shape[1] + GAP, 0)))
    for tail, head, values in zip(tails, heads, distinct_colors(len(start)), strict=True):
        cv2.line(canvas, tail, head, as_color(values), 1, cv2.LINE_AA, SHIFT)
    # Dots after all lines, so that no line hides an end of another.
    for tail, head, values in zip(tails, heads, distinct_colors(len(start)), strict=True):
        for point in (tail, head):
            _dot(canvas, point, 4.8, (0, 0, 0))
            _dot(canvas, point, 3.5, as_color(values))
    return canvas


def _common_scale(left: np.ndarray, right: np.ndarray) -> float:
    return drawing_scale(max(left.shape[0], right.shape[0]), max(left.shape[1], right.shape[1]))


def draw_displacement(
    keypoints0: np.ndarray,
    keypoints1: np.ndarray,
    height: int,
    width: int,
    cell: int = 8,
    scores: np.ndarray | None = None,
) -> np.ndarray:
    """The quasi-dense displacement field: uint8 (height,width,3), a square of `cell` px around each match.

    Where squares overlap the most confident match is on top; light grey is where there is no match.
    """
    start, end, _ = as_matches(keypoints0, keypoints1, scores)
    canvas = np.full((height, width, 3), NO_MATCH, np.uint8)
    _paint_cells(canvas, start, match_colors(end - start)[0], cell)
    return canvas


def draw_match_figure(
    image0: np.ndarray | torch.Tensor,
    image1: np.ndarray | torch.Tensor,
    keypoints0: np.ndarray,
    keypoints1: np.ndarray,
    scores: np.ndarray | None = None,
) -> np.ndarray:
    """All that there is to see of a set of matches in one picture.

    Above, lines between the two images; below, every match on image 0 and the displacement field.
    """
    left, right = to_uint8_rgb(image0), to_uint8_rgb(image1)
    height, width = left.shape[:2]
    start, end, score = as_matches(keypoints0, keypoints1, scores)
    scale, count = _common_scale(left, right), len(start)

    shown = choose_lines(start, end, height, width, 40)
    lines = _draw_lines(left, right, start[shown], end[shown])
    overlay = draw_matches_overlay(left, start, end, score, scale=scale)
    field = draw_displacement(start, end, height, width, _cell_for(count, height, width), score)
    field = resize(field, scale, cv2.INTER_NEAREST)
    if count:
        add_legend(field, range_of(end - start))

    matches = {0: "no matches", 1: "1 match"}.get(count, f"{count} matches")
    selection = f", {len(shown)} of {matches}" if count > 1 else f", {matches}"
    below = beside(
        [
            captioned(overlay, "Image 0 tinted by displacement, dark: no match"),
            captioned(field, "Displacement, grey: no match"),
        ]
    )
    return framed(stacked([captioned(lines, f"Image 0 and image 1{selection}"), below]))
