"""Figures of score maps."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from deepmatching.drawing.canvas import PAPER, TEXT_HEIGHT, beside, framed, put_text, stacked, text_size
from deepmatching.drawing.colors import Color
from deepmatching.errors import DeepMatchingError

NO_SCORE: Color = (150, 150, 150)


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
    return framed(stacked([beside(row) for row in padded]))


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
    rgb[~known] = NO_SCORE

    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    rgb = cv2.resize(rgb, size, interpolation=cv2.INTER_NEAREST if scale > 1 else cv2.INTER_AREA)
    cv2.rectangle(rgb, (0, 0), (size[0] - 1, size[1] - 1), (110, 110, 110), 1)
    if known.any():
        row, column = np.unravel_index(np.argmax(np.where(known, scores, -np.inf)), scores.shape)
        peak = (int((column + 0.5) * size[0] / width), int((row + 0.5) * size[1] / height))
        _mark(rgb, peak)

    caption = f"{title}  {width} x {height}"
    caption_width = text_size(caption, 0.45)[0] + 4
    if rgb.shape[1] < caption_width:
        rgb = np.pad(rgb, ((0, 0), (0, caption_width - rgb.shape[1]), (0, 0)), constant_values=255)
    bar = np.full((TEXT_HEIGHT, rgb.shape[1], 3), PAPER, np.uint8)
    put_text(bar, caption, 2, TEXT_HEIGHT - 9, 0.45)
    return np.concatenate([bar, rgb])
