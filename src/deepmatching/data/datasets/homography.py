"""The flow of a homography: ground truth for planar scenes such as Oxford's."""

from __future__ import annotations

import numpy as np

from deepmatching.errors import DeepMatchingError


def homography_flow(
    homography: np.ndarray, height: int, width: int, target_height: int, target_width: int
) -> np.ndarray:
    """The flow float32 (H, W, 2) of a homography (3, 3) that maps (x, y, 1) of image 0 to image 1.

    NaN where the point leaves the area [−0.5, W'−0.5] × [−0.5, H'−0.5] that the target's pixels cover, or lies beyond
    the horizon, that is, not on the side of the image's centre.
    """
    matrix = np.asarray(homography, np.float64)
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        raise DeepMatchingError(f"A homography is a finite 3 x 3 matrix, but this one is {matrix.shape}.")
    x, y = np.meshgrid(np.arange(width, dtype=np.float64), np.arange(height, dtype=np.float64))
    x1, y1, w1 = (row[0] * x + row[1] * y + row[2] for row in matrix)
    # A homography is known up to scale, even a negative one: only the sign relative to the centre counts.
    centre = matrix[2] @ ((width - 1) / 2, (height - 1) / 2, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        x1, y1 = x1 / w1, y1 / w1
        inside = (
            (w1 * centre > 0) & (x1 >= -0.5) & (x1 <= target_width - 0.5) & (y1 >= -0.5) & (y1 <= target_height - 0.5)
        )
        flow = np.stack([x1 - x, y1 - y], axis=2)
    flow[~inside] = np.nan
    return flow.astype(np.float32)
