"""Random crops and flips of pairs for training, determined by the state of a generator."""

from __future__ import annotations

import torch
from torch import Generator

from deepmatching.data.datasets.pairs import Pair
from deepmatching.errors import DeepMatchingError


def random_crop(pair: Pair, size: tuple[int, int], generator: Generator | None = None) -> Pair:
    """Return the same window of both images, of ``size`` (rows, columns), at a random place.

    Displacements do not change; some point outside the window, as at the border of an image.
    """
    rows, columns = size
    height = min(pair.image0.shape[-2], pair.image1.shape[-2])
    width = min(pair.image0.shape[-1], pair.image1.shape[-1])
    if rows < 1 or columns < 1 or rows > height or columns > width:
        raise DeepMatchingError(
            f"A crop of {columns} x {rows} pixels does not fit into the pair '{pair.name}' of {width} x {height}; "
            "choose a smaller one."
        )
    top = int(torch.randint(height - rows + 1, (), generator=generator))
    left = int(torch.randint(width - columns + 1, (), generator=generator))
    return crop(pair, top, left, size)


def crop(pair: Pair, top: int, left: int, size: tuple[int, int]) -> Pair:
    """Return the window of both images whose first pixel is in row ``top`` and column ``left``."""
    rows, columns = slice(top, top + size[0]), slice(left, left + size[1])
    return Pair(
        pair.image0[..., rows, columns],
        pair.image1[..., rows, columns],
        pair.flow[..., rows, columns, :],
        pair.occluded[..., rows, columns],
        pair.name,
    )


def random_flip(pair: Pair, generator: Generator | None = None, horizontal: float = 0.5, vertical: float = 0.0) -> Pair:
    """Mirror both images left to right and top to bottom with these probabilities."""
    across, down = torch.rand(2, generator=generator).tolist()
    if across < horizontal:
        pair = flip(pair, axis=0)
    return flip(pair, axis=1) if down < vertical else pair


def flip(pair: Pair, axis: int) -> Pair:
    """Mirror both images along x (axis 0) or y (axis 1).

    x ↦ W − 1 − x in either image, so that u ↦ (W₁ − W₀) − u for their widths W₀ and W₁.
    """
    image_axis, field_axis = -1 - axis, -2 - axis
    growth = pair.image1.shape[image_axis] - pair.image0.shape[image_axis]
    flow = pair.flow.flip(field_axis)
    flow[..., axis] = growth - flow[..., axis]
    return Pair(
        pair.image0.flip(image_axis), pair.image1.flip(image_axis), flow, pair.occluded.flip(image_axis), pair.name
    )
