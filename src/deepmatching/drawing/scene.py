"""A picture of a reconstruction: its points, and its cameras as small pyramids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepmatching.drawing.figure import new_figure, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CAMERA = "#d55e00"
#: Points beyond this share of all distances from the median are left out: single wrong points would shrink the rest.
_SHOWN = 0.98


@picture
def draw_model(points: np.ndarray, colors: np.ndarray, centres: np.ndarray, rotations: np.ndarray) -> Figure:
    """The scene as the cameras see it, from a little further back, and from above.

    Args:
        points, colors: (N, 3) positions, and uint8 RGB.
        centres: (M, 3), positions of the cameras.
        rotations: (M, 3, 3), from each camera (x right, y down, z forward) to the world.
    """
    figure = new_figure(1200, 520)
    left, right = figure.subplots(
        1, 2, gridspec_kw={"left": 0.01, "right": 0.99, "bottom": 0.02, "top": 0.92, "wspace": 0.02}
    )
    axes_of_view = _mean_rotation(rotations)
    middle = np.median(points, axis=0) if len(points) else centres.mean(axis=0)
    distances = np.linalg.norm(points - middle, axis=1)
    kept = distances <= np.quantile(distances, _SHOWN) if len(points) else np.zeros(0, bool)
    scene, cameras = ((array - middle) @ axes_of_view for array in (points[kept], centres))
    turned = np.einsum("ab,mbc->mac", axes_of_view.T, rotations)
    tilt = np.deg2rad(20)
    behind = np.array([[1, 0, 0], [0, np.cos(tilt), np.sin(tilt)], [0, -np.sin(tilt), np.cos(tilt)]])
    above = np.array([[1.0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]])  # forward becomes up
    for axes, view, title in (
        (left, behind, f"{len(points)} points, from behind the cameras"),
        (right, above, f"{len(centres)} cameras, from above"),
    ):
        _show(axes, scene @ view.T, colors[kept], cameras @ view.T, view @ turned)
        axes.set_title(title, loc="left", fontsize=11)
    return figure


def _show(axes: Axes, points: np.ndarray, colors: np.ndarray, centres: np.ndarray, rotations: np.ndarray) -> None:
    """Draw points and cameras, seen along z; y is down."""
    far_first = np.argsort(-points[:, 2], kind="stable")
    x, y, _ = points[far_first].T
    axes.scatter(x, y, s=1.5, c=colors[far_first] / 255.0, linewidths=0)
    together = np.concatenate([points, centres])
    size = 0.03 * float(np.ptp(together[:, :2], axis=0).max() or 1.0)
    corners = size * np.array([[-1, -0.75, 1.5], [1, -0.75, 1.5], [1, 0.75, 1.5], [-1, 0.75, 1.5], [-1, -0.75, 1.5]])
    for centre, rotation in zip(centres, rotations, strict=True):
        rim = centre + corners @ rotation.T
        axes.plot(*rim[:, :2].T, color=_CAMERA, linewidth=1)
        for corner in rim[:4]:
            axes.plot(*np.stack([centre, corner])[:, :2].T, color=_CAMERA, linewidth=0.7)
    axes.set_aspect("equal", adjustable="datalim")
    axes.invert_yaxis()
    axes.set_axis_off()


def _mean_rotation(rotations: np.ndarray) -> np.ndarray:
    """The rotation (3, 3) nearest to the mean of the cameras' rotations."""
    u, _, v = np.linalg.svd(rotations.mean(axis=0) if len(rotations) else np.eye(3))
    return u @ np.diag([1, 1, np.sign(np.linalg.det(u @ v))]) @ v
