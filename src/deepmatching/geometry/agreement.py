"""How far neighbouring matches of a grid agree, see ``Matches.agreement``."""

import math

import numpy as np
import torch
from torch import Tensor

MAX_POINTS = 2**22  #: of a grid: that of an image of 2^28 pixels; a larger one comes from a coordinate that is far off


def grid_axis(positions: np.ndarray, side: int | None) -> tuple[np.ndarray, int, float]:
    """Return, along an axis, the places of positions on the grid, their number (0: no grid) and the spacing."""
    values = np.unique(positions.round(2))
    spacing = float(np.diff(values).min(initial=math.inf))
    places = (positions - values[:1]) / spacing
    is_grid = 2 <= spacing < math.inf and places.max() <= MAX_POINTS
    if not is_grid or np.abs(places - places.round()).max() > 0.1:
        return np.zeros(0, np.int64), 0, 0.0
    first = 0 if side is None else max(0, round(float(values[0]) / spacing - 0.45))  # at place 0 it is half the spacing
    places = places.round().astype(np.int64) + first
    return places, max(int(places.max()) + 1, 0 if side is None else int(side / spacing + 0.01)), spacing


def count_agreeing(displacements: Tensor, counts: Tensor, spacing: float) -> Tensor:
    """Return how many matches of a grid agree with their neighbours, see ``Matches.agreement``. Never waits for a GPU.

    The displacements are (rows, columns, 2); ``counts``, (rows, columns) bool, says which matches there are.
    """
    rows, columns = counts.shape
    field = torch.where(counts[..., None], displacements, torch.nan)
    padded = torch.nn.functional.pad(field, (0, 0, 1, 1, 1, 1), value=torch.nan)
    steps = [(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)]
    around = torch.stack([padded[i : i + rows, j : j + columns] for i, j in steps]).sort(dim=0).values  # NaN is last
    number = torch.isfinite(around[..., 0]).sum(dim=0)
    places = torch.stack([(number - 1) // 2, number // 2]).clamp(min=0)
    low, high = around.gather(0, places[..., None].expand(-1, -1, -1, 2))
    distance = torch.hypot(*((low + high) / 2 - displacements).unbind(dim=-1))
    return (counts & (number >= 3) & (distance <= spacing / 2)).sum()
