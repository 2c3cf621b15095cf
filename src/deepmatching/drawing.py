"""Pictures of matches, flows and score maps; all of them uint8 RGB (H,W,3), drawn with OpenCV alone.

Keypoints are (N,2) arrays of (x,y) in pixels with pixel centres at integers; N may be 0. Displacements are
coloured with the Middlebury wheel: the hue is the direction, white is no motion, the rim is `max_norm`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.files import atomic_write, check_writable

Color = tuple[int, int, int]

_INK: Color = (40, 40, 40)
_PAPER: Color = (255, 255, 255)
_NO_MATCH: Color = (222, 222, 222)
_UNKNOWN_FLOW: Color = (0, 0, 0)
_NO_SCORE: Color = (150, 150, 150)
_GAP = 12
# Fixed-point bits with which OpenCV takes subpixel coordinates.
_SHIFT = 4
# Pictures are drawn with their longer side in this range, whatever the size of the image.
_SMALLEST_SIDE, _LARGEST_SIDE = 560, 1280
_ENCODERS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm")


def to_uint8_rgb(image: np.ndarray | torch.Tensor) -> np.ndarray:
    """A fresh uint8 RGB (H,W,3) of uint8 (H,W), (H,W,1) or (H,W,3), or of what `load_image` gives (C,H,W)."""
    if isinstance(image, torch.Tensor):
        planar = image.detach().to("cpu", torch.float32).numpy()
        if planar.ndim != 3 or planar.shape[0] not in (1, 3):
            raise DeepMatchingError(f"To be drawn, an image must be (1 or 3,H,W), not {planar.shape}.")
        pixels = np.rint(np.clip(planar.transpose(1, 2, 0), 0.0, 1.0) * 255.0).astype(np.uint8)
    else:
        pixels = image[:, :, None] if image.ndim == 2 else image
        if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or pixels.dtype != np.uint8:
            raise DeepMatchingError(
                f"To be drawn, an array must be uint8 (H,W,3), not {image.dtype} {image.shape}; "
                "pass it through load_image first."
            )
    return np.array(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def check_picture_path(path: str | os.PathLike[str]) -> None:
    """Raise now, before the work, if :func:`write_image` could not write `path`."""
    if Path(path).suffix.lower() not in _ENCODERS:
        raise DeepMatchingError(f"The suffix of '{path}' names no image format; use one of {', '.join(_ENCODERS)}.")
    check_writable(path)


def write_image(path: str | os.PathLike[str], rgb: np.ndarray) -> None:
    """Write uint8 RGB (H,W,3) in the format that the suffix names."""
    check_picture_path(path)
    suffix = Path(path).suffix.lower()
    pixels = np.ascontiguousarray(to_uint8_rgb(rgb)[:, :, ::-1])
    try:
        encoded, data = cv2.imencode(suffix, pixels)
    except cv2.error:
        encoded = False
    if not encoded:
        raise DeepMatchingError(
            f"OpenCV cannot write {pixels.shape[1]} x {pixels.shape[0]} pixels as '{path}'; use .png instead."
        )
    with atomic_write(path) as temporary:
        temporary.write_bytes(data.tobytes())


# --- colours ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _wheel() -> np.ndarray:
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


def _displacement_colors(displacement: np.ndarray, max_norm: float) -> np.ndarray:
    """(...,2) displacements to uint8 (...,3); beyond `max_norm` a colour is darkened, NaN is black."""
    wheel = _wheel()
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
    return _displacement_colors(flow, max_norm if max_norm > 0 else 1.0)


def _range_of(displacement: np.ndarray) -> float:
    """The norm of displacements (N,2) to give full colour, in px.

    It is nearly the largest, so that a few wrong matches do not bleach all others, and is rounded up to two
    digits for the legend.
    """
    if not len(displacement):
        return 1.0
    largest = max(float(np.percentile(np.hypot(*displacement.T), 98)), 1.0)
    step = 10.0 ** (np.floor(np.log10(largest)) - 1)
    return float(np.ceil(np.round(largest / step, 6)) * step)


def _match_colors(displacement: np.ndarray) -> tuple[np.ndarray, float]:
    """uint8 (N,3) colours of the displacements (N,2) of matches, and the norm of full colour in px.

    Beyond it the colour stays full: darker patches would look like another kind of motion.
    """
    max_norm = _range_of(displacement)
    norm = np.hypot(*displacement.T)[:, None]
    return _displacement_colors(displacement * (max_norm / np.maximum(norm, max_norm)), max_norm * (1 + 1e-9)), max_norm


def _distinct_colors(count: int) -> np.ndarray:
    """uint8 (count,3): bright hues of which successive ones are far apart (golden ratio)."""
    hue = (np.arange(count) * 0.61803398875 + 0.05) % 1.0
    hsv = np.stack([hue * 179, np.full(count, 190), np.full(count, 255)], axis=1).astype(np.uint8)
    return cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0] if count else np.zeros((0, 3), np.uint8)


def _color(values: np.ndarray) -> Color:
    red, green, blue = (int(value) for value in values)
    return red, green, blue


# --- geometry --------------------------------------------------------------------------------------------


def _as_matches(
    keypoints0: np.ndarray, keypoints1: np.ndarray, scores: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start (N,2), end (N,2) and score (N) of the finite matches, the most confident last."""
    start = np.asarray(keypoints0, np.float64).reshape(-1, 2)
    end = np.asarray(keypoints1, np.float64).reshape(-1, 2)
    score = np.zeros(len(start)) if scores is None else np.asarray(scores, np.float64).reshape(-1)
    if not len(start) == len(end) == len(score):
        raise DeepMatchingError(
            f"There are {len(start)} and {len(end)} keypoints and {len(score)} scores; each match needs one of each."
        )
    finite = np.isfinite(start).all(axis=1) & np.isfinite(end).all(axis=1)
    start, end, score = start[finite], end[finite], score[finite]
    order = np.argsort(-score, kind="stable")[::-1]
    return start[order], end[order], score[order]


def _pick_apart(keys: Sequence[tuple[np.ndarray, float]], count: int) -> np.ndarray:
    """Indices of at most `count` items, the last first, any two of which are far apart in every key.

    A key is the position (N,D) of every item and the distance in it that two must have.
    """
    chosen: list[int] = []
    free = np.ones(len(keys[0][0]), bool)
    while len(chosen) < count and free.any():
        index = len(free) - 1 - int(np.argmax(free[::-1]))
        chosen.append(index)
        free[index] = False
        for position, distance in keys:
            free &= np.square(position - position[index]).sum(axis=1) >= distance**2
    return np.array(chosen, np.int64)


def _drawing_scale(height: int, width: int) -> float:
    """The factor at which an image is drawn: large enough for thin lines and text to be legible."""
    longer = max(height, width)
    if longer < _SMALLEST_SIDE:
        return float(np.ceil(_SMALLEST_SIDE / longer))  # whole pixels stay square
    return min(1.0, _LARGEST_SIDE / longer)


def _resize(rgb: np.ndarray, scale: float, enlarge: int = cv2.INTER_CUBIC) -> np.ndarray:
    if scale == 1.0:
        return rgb
    size = (max(1, round(rgb.shape[1] * scale)), max(1, round(rgb.shape[0] * scale)))
    return cv2.resize(rgb, size, interpolation=enlarge if scale > 1 else cv2.INTER_AREA)


def _scaled(points: np.ndarray, scale: float, offset: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """Points (N,2) of an image in the picture of it; pixel centres are at integers in both."""
    return (points + 0.5) * scale - 0.5 + np.asarray(offset)


def _fixed(points: np.ndarray) -> list[tuple[int, int]]:
    """Points (N,2) in the fixed-point form of OpenCV's drawing functions."""
    # Far outside the picture OpenCV's own clipping overflows.
    limited = np.clip(points, -10_000, 30_000)
    return [(int(x), int(y)) for x, y in np.rint(limited * (1 << _SHIFT)).astype(np.int64)]


# --- text and layout -------------------------------------------------------------------------------------

_FONT = cv2.FONT_HERSHEY_SIMPLEX
_TEXT_HEIGHT = 26  # of a caption with its margins


def _text_size(text: str, scale: float) -> tuple[int, int]:
    (width, height), _ = cv2.getTextSize(text, _FONT, scale, 1)
    return int(width), int(height)


def _put_text(rgb: np.ndarray, text: str, x: int, baseline: int, scale: float, color: Color = _INK) -> None:
    cv2.putText(rgb, text, (x, baseline), _FONT, scale, color, 1, cv2.LINE_AA)


def _captioned(rgb: np.ndarray, caption: str) -> np.ndarray:
    """The picture with one line of text above it, set smaller if it would not fit."""
    width = rgb.shape[1]
    scale = 0.5
    while scale > 0.25 and _text_size(caption, scale)[0] > width - 4:
        scale -= 0.05
    while len(caption) > 1 and _text_size(caption, scale)[0] > width - 4:
        caption = caption[:-1]
    bar = np.full((_TEXT_HEIGHT, width, 3), _PAPER, np.uint8)
    _put_text(bar, caption, 2, _TEXT_HEIGHT - 9, scale)
    return np.concatenate([bar, rgb])


def _row(pictures: Sequence[np.ndarray], gap: int = _GAP) -> np.ndarray:
    """Pictures side by side, aligned at the top, on paper."""
    height = max(picture.shape[0] for picture in pictures)
    width = sum(picture.shape[1] for picture in pictures) + gap * (len(pictures) - 1)
    canvas = np.full((height, width, 3), _PAPER, np.uint8)
    x = 0
    for picture in pictures:
        canvas[: picture.shape[0], x : x + picture.shape[1]] = picture
        x += picture.shape[1] + gap
    return canvas


def _column(pictures: Sequence[np.ndarray], gap: int = _GAP) -> np.ndarray:
    """Pictures below each other, aligned at the left, on paper."""
    return _row([picture.transpose(1, 0, 2) for picture in pictures], gap).transpose(1, 0, 2)


def _framed(picture: np.ndarray, margin: int = _GAP) -> np.ndarray:
    return np.pad(picture, ((margin, margin), (margin, margin), (0, 0)), constant_values=255)


def _add_legend(rgb: np.ndarray, max_norm: float) -> None:
    """Put the colour wheel with the displacement of its rim into the lower right corner, in place."""
    height, width = rgb.shape[:2]
    diameter = int(np.clip(min(height, width) // 7, 40, 72))
    label = f"{max_norm:g} px"
    label_width, label_height = _text_size(label, 0.42)
    pad = 5
    panel_height = diameter + label_height + 3 * pad + 2
    panel_width = max(diameter, label_width) + 2 * pad
    if panel_height + 2 * pad > height or panel_width + 2 * pad > width:
        return  # it would hide the picture
    panel = np.full((panel_height, panel_width, 3), _PAPER, np.uint8)
    axis = (np.arange(diameter) - (diameter - 1) / 2) / (diameter / 2)
    vectors = np.stack(np.meshgrid(axis, axis), axis=2)
    norm = np.hypot(vectors[..., 0], vectors[..., 1])[..., None]
    disc = _displacement_colors(vectors / np.maximum(norm, 1.0), 1.0 + 1e-9)
    inside = np.clip((1.0 - norm) * diameter / 2 + 0.5, 0.0, 1.0)  # antialiased rim
    x = (panel_width - diameter) // 2
    panel[pad : pad + diameter, x : x + diameter] = np.rint(inside * disc + (1.0 - inside) * 255.0)
    middle = (x + diameter // 2, pad + diameter // 2)
    cv2.drawMarker(panel, middle, (120, 120, 120), cv2.MARKER_CROSS, 7, 1)
    _put_text(panel, label, (panel_width - label_width) // 2, panel_height - pad - 1, 0.42)
    cv2.rectangle(panel, (0, 0), (panel_width - 1, panel_height - 1), (170, 170, 170), 1)
    y, x = height - panel_height - pad, width - panel_width - pad
    rgb[y : y + panel_height, x : x + panel_width] = panel


# --- pictures of matches ---------------------------------------------------------------------------------


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
    start, end, _ = _as_matches(keypoints0, keypoints1, scores)
    scale = _drawing_scale(height, width) if scale is None else scale
    colors, max_norm = _match_colors(end - start)

    tint = np.zeros((height, width, 3), np.uint8)
    _paint_cells(tint, start, colors, _cell_for(len(start), height, width))
    tint = _resize(tint, scale, cv2.INTER_NEAREST)
    grey = cv2.cvtColor(_resize(rgb, scale), cv2.COLOR_RGB2GRAY)[:, :, None].astype(np.float32)
    # A dark part of the image must still show the tint, hence the pedestal.
    matched = (0.35 + 0.65 * grey / 255.0) * tint
    canvas = np.where(tint.any(axis=2, keepdims=True), matched, 0.3 * grey).astype(np.uint8)
    if segments:
        _draw_segments(canvas, start, end, scale)
    if len(start):
        _add_legend(canvas, max_norm)
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
    shown = _pick_apart([(start, distance / scale)], count=200)
    tails, heads = _fixed(_scaled(start[shown], scale)), _fixed(_scaled(end[shown], scale))
    # The dark outline, drawn first, keeps white lines legible on white cells.
    for color, thickness, radius in (((0, 0, 0), 3, 3.5), ((255, 255, 255), 1, 2.2)):
        for tail, head in zip(tails, heads, strict=True):
            cv2.line(canvas, tail, head, color, thickness, cv2.LINE_AA, _SHIFT)
            _dot(canvas, tail, radius, color)


def _dot(canvas: np.ndarray, point: tuple[int, int], radius: float, color: Color) -> None:
    cv2.circle(canvas, point, round(radius * (1 << _SHIFT)), color, cv2.FILLED, cv2.LINE_AA, _SHIFT)


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
    start, end, _ = _as_matches(keypoints0, keypoints1, scores)
    shown = _choose_lines(start, end, left.shape[0], left.shape[1], max_lines)
    return _draw_lines(left, right, start[shown], end[shown])


def _choose_lines(start: np.ndarray, end: np.ndarray, height: int, width: int, count: int) -> np.ndarray:
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
    turns = np.argsort(np.where(own, np.cumsum(own), np.cumsum(~own)), kind="stable")
    apart = [(start[turns], 0.7 * np.sqrt(area / count)), (seam[turns], 0.6 * height / count)]
    shown = turns[_pick_apart(apart, count)]
    return shown[np.argsort(seam[shown, 0], kind="stable")]


def _draw_lines(left: np.ndarray, right: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The two images (uint8 RGB) and a line for every match; successive ones get distinct colours."""
    scale = _common_scale(left, right)
    left, right = _resize(left, scale), _resize(right, scale)
    canvas = _row([left, right])
    tails = _fixed(_scaled(start, scale))
    heads = _fixed(_scaled(end, scale, offset=(left.shape[1] + _GAP, 0)))
    for tail, head, values in zip(tails, heads, _distinct_colors(len(start)), strict=True):
        cv2.line(canvas, tail, head, _color(values), 1, cv2.LINE_AA, _SHIFT)
    # Dots after all lines, so that no line hides an end of another.
    for tail, head, values in zip(tails, heads, _distinct_colors(len(start)), strict=True):
        for point in (tail, head):
            _dot(canvas, point, 4.8, (0, 0, 0))
            _dot(canvas, point, 3.5, _color(values))
    return canvas


def _common_scale(left: np.ndarray, right: np.ndarray) -> float:
    return _drawing_scale(max(left.shape[0], right.shape[0]), max(left.shape[1], right.shape[1]))


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
    start, end, _ = _as_matches(keypoints0, keypoints1, scores)
    canvas = np.full((height, width, 3), _NO_MATCH, np.uint8)
    _paint_cells(canvas, start, _match_colors(end - start)[0], cell)
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
    start, end, score = _as_matches(keypoints0, keypoints1, scores)
    scale, count = _common_scale(left, right), len(start)

    shown = _choose_lines(start, end, height, width, 40)
    lines = _draw_lines(left, right, start[shown], end[shown])
    overlay = draw_matches_overlay(left, start, end, score, scale=scale)
    field = draw_displacement(start, end, height, width, _cell_for(count, height, width), score)
    field = _resize(field, scale, cv2.INTER_NEAREST)
    if count:
        _add_legend(field, _range_of(end - start))

    matches = {0: "no matches", 1: "1 match"}.get(count, f"{count} matches")
    selection = f", {len(shown)} of {matches}" if count > 1 else f", {matches}"
    below = _row(
        [
            _captioned(overlay, "Image 0 tinted by displacement, dark: no match"),
            _captioned(field, "Displacement, grey: no match"),
        ]
    )
    return _framed(_column([_captioned(lines, f"Image 0 and image 1{selection}"), below]))


# --- score maps ------------------------------------------------------------------------------------------

ScoreMap = tuple[str, np.ndarray]


def draw_score_maps(maps: Sequence[ScoreMap] | Sequence[Sequence[ScoreMap]], side: int = 168) -> np.ndarray:
    """A figure of score maps: one row of (title, map (H,W)) or a list of such rows.

    Every map is scaled to at most `side` px and normalised by its own range; −inf (and NaN) is grey, the
    maximum is marked by a cross. Columns line up, so that rows of the same levels can be compared.
    """
    is_one_row = bool(maps) and isinstance(maps[0], tuple) and isinstance(maps[0][0], str)
    rows = [list(maps)] if is_one_row else [list(row) for row in maps]  # type: ignore[arg-type]
    if not any(rows):
        raise DeepMatchingError("There are no score maps to draw; pass at least one (title, map).")
    panels = [[_score_panel(title, scores, side) for title, scores in row] for row in rows]  # type: ignore
    # Every panel is padded to the width of its column, and columns to that of their titles.
    columns = max(len(row) for row in panels)
    widths = [max(row[i].shape[1] for row in panels if i < len(row)) for i in range(columns)]
    padded = [
        [
            np.pad(panel, ((0, 0), (0, widths[i] - panel.shape[1]), (0, 0)), constant_values=255)
            for i, panel in enumerate(row)
        ]
        for row in panels
        if row
    ]
    return _framed(_column([_row(row) for row in padded]))


def _mark(rgb: np.ndarray, point: tuple[int, int]) -> None:
    """A small cross, open in the middle so as not to hide what it marks."""
    x, y = point
    for color, thickness in (((0, 0, 0), 3), ((255, 255, 255), 1)):
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            cv2.line(rgb, (x + 4 * dx, y + 4 * dy), (x + 8 * dx, y + 8 * dy), color, thickness, cv2.LINE_8)


def _score_panel(title: str, scores: np.ndarray, side: int) -> np.ndarray:
    """One score map (H,W) with its title."""
    scores = np.asarray(scores, np.float64)
    if scores.ndim != 2 or scores.size == 0:
        raise DeepMatchingError(f"The score map '{title}' must be a non-empty (H,W), not {scores.shape}.")
    height, width = scores.shape
    known = np.isfinite(scores)
    low, high = (scores[known].min(), scores[known].max()) if known.any() else (0.0, 1.0)
    level = np.where(known, (scores - low) / (high - low) if high > low else 0.5, 0.0)
    rgb = cv2.cvtColor(
        cv2.applyColorMap(np.rint(255 * level).astype(np.uint8), cv2.COLORMAP_VIRIDIS), cv2.COLOR_BGR2RGB
    )
    rgb[~known] = _NO_SCORE

    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    rgb = cv2.resize(rgb, size, interpolation=cv2.INTER_NEAREST if scale > 1 else cv2.INTER_AREA)
    cv2.rectangle(rgb, (0, 0), (size[0] - 1, size[1] - 1), (110, 110, 110), 1)
    if known.any():
        row, column = np.unravel_index(np.argmax(np.where(known, scores, -np.inf)), scores.shape)
        peak = (int((column + 0.5) * size[0] / width), int((row + 0.5) * size[1] / height))
        _mark(rgb, peak)

    caption = f"{title}  {width} x {height}"
    caption_width = _text_size(caption, 0.45)[0] + 4
    if rgb.shape[1] < caption_width:
        rgb = np.pad(rgb, ((0, 0), (0, caption_width - rgb.shape[1]), (0, 0)), constant_values=255)
    bar = np.full((_TEXT_HEIGHT, rgb.shape[1], 3), _PAPER, np.uint8)
    _put_text(bar, caption, 2, _TEXT_HEIGHT - 9, 0.45)
    return np.concatenate([bar, rgb])
