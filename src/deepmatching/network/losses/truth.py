"""Γ_0: the position of each reference point's true match in its score map."""

from functools import lru_cache

import torch
from torch import Tensor

from deepmatching.geometry.discretization import Geometry

#: Largest difference, in pixels, between the displacements around a reference point that has a true match.
AGREEMENT = 1.0


def true_cells(flow: Tensor, geometry: Geometry, l: int = 0, occluded: Tensor | None = None) -> Tensor:
    """The true matches Γ_0(p) of the reference points of level l, as fractional indices (row, column) of their maps.

    A reference point is a pixel corner and moves by the mean of the four pixels that touch it. Its truth is unknown
    if one of them is unknown or occluded, or if they disagree (a motion boundary). A truth outside the window or off
    the target image cannot be matched and counts as unknown, too.

    Args:
        flow: (B, H, W, 2), the displacement (x, y) of each pixel, NaN where unknown; may exceed the part of the image
            that the network uses.
        occluded: (B, H, W) bool mask of pixels to leave out.

    Returns:
        (B, H_l, W_l, 2), NaN where unknown.
    """
    if occluded is not None:
        flow = flow.masked_fill(occluded[..., None], torch.nan)
    _, _, first, limit = _places(geometry, l, flow.device)
    moved = true_displacements(flow, geometry, l).flip(-1)  # (row, column)
    cells = first + moved / geometry.stride(l)
    here = (cells >= limit[0]) & (cells <= limit[1])  # False for NaN
    return torch.where(here.all(dim=-1, keepdim=True), cells, torch.nan)


def true_displacements(flow: Tensor, geometry: Geometry, l: int = 0, agreement: float = AGREEMENT) -> Tensor:
    """The true displacements (B, H_l, W_l, 2), (x, y) in pixels, of the reference points of level l.

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
    """The two pixel rows and columns that touch each point, the index of zero motion, and the limits of a match.

    A match must lie on the target image and at most half a cell outside the window. The last two are (H_l, W_l, 2).
    Cached, since every copy to a GPU waits for the GPU.
    """
    touching, first, low, high = [], [], [], []
    for p, q, used0, used1, size in zip(
        geometry.reference_points(l),
        geometry.target_points(l),
        geometry.used0,
        geometry.used1,
        geometry.window(l),
        strict=True,
    ):
        after = p.long().clamp(0, used0 - 1)
        touching.append(((p.long() - 1).clamp(0, used0 - 1).to(device), after.to(device)))
        start = q[:, 0]  # position of cell 0
        first.append((p - start) / geometry.stride(l))
        low.append(((0 - start) / geometry.stride(l) + 0 * p).clamp(min=-0.5))
        high.append(((used1 - start) / geometry.stride(l) + 0 * p).clamp(max=size - 0.5))

    def on_grid(rows: Tensor, columns: Tensor) -> Tensor:
        return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1).to(torch.float32).to(device)

    return touching[0], touching[1], on_grid(*first), (on_grid(*low), on_grid(*high))


def on_image(cells: Tensor, geometry: Geometry, l: int = 0) -> Tensor:
    """Whether positions (B, H_l, W_l, n, 2) in the maps of level l, (row, column), lie on the target image; bool.

    The result is for each coordinate: a position is on the image if both are.
    """
    low, high = _places(geometry, l, cells.device)[3]
    return (cells >= low[:, :, None]) & (cells <= high[:, :, None])


def neighbourhood(cells: Tensor, window: tuple[int, int], reach: int) -> tuple[Tensor, Tensor, Tensor]:
    """The cells at most ``reach`` away from fractional positions along each axis, on all sides alike.

    Args:
        cells: (…, 2) fractional (row, column); NaN allowed.
        window: (h, w) of the maps.

    Returns:
        Raster indices (…, n) int64, n = (2·reach + 1)², clamped into the map; their offsets (…, n, 2) from the
        position, in cells; and a bool mask (…, n) of those on the map and within reach, False for a NaN position.
        Only a position on a cell has all n within reach, one between the cells (2·reach)².
    """
    known = ~torch.isnan(cells)
    low = torch.where(known, cells, 0).floor()
    steps = torch.arange(-reach, reach + 1, device=cells.device, dtype=cells.dtype)
    rows, columns = (low[..., axis, None] + steps for axis in (0, 1))  # (…, 2·reach + 1)
    place = torch.stack(
        [
            rows[..., :, None].expand(*rows.shape, len(steps)),
            columns[..., None, :].expand(*rows.shape, len(steps)),
        ],
        dim=-1,
    ).flatten(-3, -2)  # (…, n, 2)
    inside = (place >= 0).all(-1) & (place[..., 0] < window[0]) & (place[..., 1] < window[1])
    offset = place - torch.where(known, cells, 0)[..., None, :]
    inside = inside & known.all(-1, keepdim=True) & (offset.abs() <= reach).all(-1)
    row = place[..., 0].clamp(0, window[0] - 1).long()
    column = place[..., 1].clamp(0, window[1] - 1).long()
    return row * window[1] + column, offset, inside


def mean_over(values: Tensor, counted: Tensor) -> Tensor:
    """The mean of the values that count, a bool mask of their shape; 0 if none does."""
    return torch.where(counted, values, 0).sum() / counted.sum().clamp(min=1)
