"""Γ_0: the position of each reference point's true match in its score map."""

from functools import lru_cache

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry

AGREEMENT = 1.0  #: largest difference, in pixels, of the displacements around a reference point with a true match


def true_cells(flow: Tensor, geometry: Geometry, l: int = 0) -> Tensor:
    """Return the true matches Γ_0(p) of level l, (B, H_l, W_l, 2): fractional (row, column) of their maps, or NaN.

    A reference point is a pixel corner and moves by the mean of the four pixels that touch it. Its truth is unknown
    if one of them is unknown or if they disagree (a motion boundary). A truth outside the window or off the target
    image cannot be matched and counts as unknown, too. The flow (B, H, W, 2), displacements (x, y) of pixels, NaN where
    unknown, may exceed the part of the image that the network uses.
    """
    _, _, first, limit = _places(geometry, l, flow.device)
    moved = true_displacements(flow, geometry, l).flip(-1)  # (row, column)
    cells = first + moved / geometry.stride(l)
    here = (cells >= limit[0]) & (cells <= limit[1])  # False for NaN
    return torch.where(here.all(dim=-1, keepdim=True), cells, torch.nan)


def true_displacements(flow: Tensor, geometry: Geometry, l: int = 0, agreement: float = AGREEMENT) -> Tensor:
    """Return the true displacements (B, H_l, W_l, 2), (x, y) in pixels, of the reference points of level l.

    The mean of the four pixels that touch a point; NaN if one of them is unknown, or if they differ by more than
    ``agreement`` along an axis.
    """
    rows, columns, _, _ = _places(geometry, l, flow.device)
    around = torch.stack([flow[:, r][:, :, c] for r in rows for c in columns])  # (4, B, H_l, W_l, 2)
    agree = ((around - around[0]).abs() <= agreement).all(dim=0).all(dim=-1, keepdim=True)
    return torch.where(agree, around.mean(dim=0), torch.nan)  # agree is False if one of them is NaN


@lru_cache(maxsize=64)
def _places(
    geometry: Geometry, l: int, device: torch.device
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor]]:
    """Return two pixel rows and columns that touch each point, the index of zero motion, and the limits of a match.

    A match must lie on the target image and at most half a cell outside the window. The last two are (H_l, W_l, 2).
    Cached, since every copy to a GPU waits for the GPU.
    """
    touching, first, low, high = [], [], [], []
    points = zip(geometry.reference_points(l), geometry.target_points(l), strict=True)
    sizes = zip(geometry.used0, geometry.used1, geometry.window(l), strict=True)
    for (p, q), (used0, used1, size) in zip(points, sizes, strict=True):
        before, after = ((p.long() + n).clamp(0, used0 - 1).to(device) for n in (-1, 0))
        touching.append((before, after))
        start = q[:, 0]  # position of cell 0
        first.append((p - start) / geometry.stride(l))
        low.append(((0 - start) / geometry.stride(l) + 0 * p).clamp(min=-0.5))
        high.append(((used1 - start) / geometry.stride(l) + 0 * p).clamp(max=size - 0.5))

    def on_grid(rows: Tensor, columns: Tensor) -> Tensor:
        return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).to(torch.float32).to(device)

    return touching[0], touching[1], on_grid(*first), (on_grid(*low), on_grid(*high))


def on_image(cells: Tensor, geometry: Geometry, l: int = 0) -> Tensor:
    """Return which coordinates of positions (B, H_l, W_l, n, 2), (row, column) in maps, lie on the target image."""
    low, high = _places(geometry, l, cells.device)[3]
    return (cells >= low[:, :, None]) & (cells <= high[:, :, None])


def neighbourhood(cells: Tensor, window: tuple[int, int], reach: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the cells at most ``reach`` away from fractional positions (…, 2) along each axis, on all sides alike.

    Returns:
        Raster indices (…, n) int64, n = (2·reach + 1)², clamped into the map of size ``window``; their offsets
        (…, n, 2) from the position, in cells; and a bool mask (…, n) of those on the map and within reach, False for a
        NaN position. Only a position on a cell has all n within reach, one between the cells (2·reach)².
    """
    position, known = cells.nan_to_num()[..., None, :], ~torch.isnan(cells).any(-1, keepdim=True)
    steps = torch.arange(-reach, reach + 1, device=cells.device, dtype=cells.dtype)
    place = position.floor() + torch.cartesian_prod(steps, steps)  # (…, n, 2)
    offset = place - position
    inside = known & ((place >= 0) & (offset.abs() <= reach)).all(-1)
    inside &= (place[..., 0] < window[0]) & (place[..., 1] < window[1])
    row, column = (place[..., axis].clamp(0, window[axis] - 1).long() for axis in (0, 1))
    return row * window[1] + column, offset, inside


def mean_over(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of the values that count, a bool mask of their shape; 0 if none does."""
    return torch.where(counted, values, 0).sum() / counted.sum().clamp(min=1)
