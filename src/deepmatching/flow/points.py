"""Where points of the first image go: the flow at their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from deepmatching.drawing.warping import HIDDEN
from deepmatching.errors import counted
from deepmatching.flow.result import FlowResult
from deepmatching.io.files import PathLike
from deepmatching.io.points import as_text, write_table

if TYPE_CHECKING:
    from deepmatching.io.images import ImageLike

APART = 1.0  #: the pixels around a point move differently if their motions are further apart, in pixels along an axis


@dataclass(frozen=True, eq=False)
class PointMatches:
    """Where points of one image are in another. Positions are x and y in pixels; pixel centres are integers."""

    points0: np.ndarray  #: (N, 2) float32, the points as they were given
    points: np.ndarray  #: (N, 2) float32, where they are
    confidence: np.ndarray  #: (N,) float32 in [0, 1], the probability that a position is less than 3 pixels off
    visible: np.ndarray  #: (N,) bool; where it is False, something hides the point, or it has left the image

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        length = np.hypot(*(self.points - self.points0).T)
        return (
            f"<{counted(len(self), 'point')}, {self.visible.sum()} of them visible; "
            f"motion {np.median(length):.1f} px (median), {length.max():.1f} px (largest); "
            f"confidence {self.confidence.mean():.2f} (mean)>"
        )

    def _rows(self) -> list[list[float]]:
        columns = self.points0, self.points, self.confidence[:, None], self.visible[:, None]
        return np.concatenate(columns, axis=1).tolist()  # type: ignore[no-any-return]

    def as_text(self) -> str:
        """Return a line ``x0 y0 x1 y1 confidence visible`` for each point; the last is 1 or 0."""
        return as_text(self._rows())

    def save(self, path: PathLike) -> None:
        """Write the same as ``.txt``, as ``.csv`` with the names of the columns, or as ``.json``, by the suffix."""
        write_table(path, ("x0", "y0", "x1", "y1", "confidence", "visible"), self._rows())

    def draw(self, image0: ImageLike, image1: ImageLike, path: PathLike | None = None) -> np.ndarray:
        """Return a picture of both images, uint8 RGB, with a point of one colour in both; also written to ``path``.

        A hidden point is a ring.
        """
        from deepmatching.drawing.pictures import write_image
        from deepmatching.drawing.points import draw_points
        from deepmatching.io.images import load_image

        images = load_image(image0, "image0"), load_image(image1, "image1")
        picture = draw_points(*images, self.points0, self.points, self.visible)
        if path is not None:
            write_image(path, picture)
        return picture


def points_through(flow: FlowResult, points: np.ndarray, size1: tuple[int, int] | None = None) -> PointMatches:
    """Return where a flow takes points (N, 2) of its first image.

    Between pixel centres, the motion is interpolated linearly; where the four pixels around a point move differently,
    at the edge of an object, the point moves as the nearest pixel does.
    """
    rows, columns = flow.confidence.shape
    inside = np.clip(points, 0, (columns - 1, rows - 1))
    left, top = np.minimum(inside.astype(int), (max(columns - 2, 0), max(rows - 2, 0))).T
    right, bottom = np.minimum(left + 1, columns - 1), np.minimum(top + 1, rows - 1)
    part_x, part_y = (inside - np.stack([left, top], axis=1)).T
    corners = (top, left), (top, right), (bottom, left), (bottom, right)
    shares = np.stack([(1 - part_x) * (1 - part_y), part_x * (1 - part_y), (1 - part_x) * part_y, part_x * part_y])
    motions = np.stack([flow.flow[corner] for corner in corners]).astype(np.float64)
    differ = np.ptp(motions, axis=0).max(axis=1) > APART
    shares = np.where(differ, shares == shares.max(axis=0), shares)
    shares /= shares.sum(axis=0)
    ends = points + (shares[..., None] * motions).sum(axis=0)

    def at_points(values: np.ndarray) -> np.ndarray:
        return (shares * np.stack([values[corner] for corner in corners])).sum(axis=0)

    height, width = size1 or (rows, columns)
    visible = ((ends >= -0.5) & (ends <= (width - 0.5, height - 0.5))).all(axis=1)
    if flow.occlusion is not None:
        visible &= at_points(flow.occlusion) < HIDDEN
    confidence = at_points(flow.confidence).astype(np.float32)
    return PointMatches(points.astype(np.float32), ends.astype(np.float32), confidence, visible)
