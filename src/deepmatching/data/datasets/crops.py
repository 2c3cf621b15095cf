"""Crops and flips of pairs for training, determined by the state of a generator."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator

from deepmatching.data.datasets.pairs import Pair


def random_crop(pair: Pair, size: Sequence[int], generator: Generator | None = None) -> Pair:
    """Return the same window of both images, of ``size`` (rows, columns) or what fits, at a random place.

    Displacements do not change; some point outside the window, as at the border of an image.
    """
    size, left_over = _fit(pair, size)
    top, left = (int(torch.randint(rest + 1, (), generator=generator)) for rest in left_over)
    return crop(pair, top, left, size)


def center_crop(pair: Pair, size: Sequence[int]) -> Pair:
    """Return the middle of both images, of ``size`` (rows, columns) or what fits."""
    size, left_over = _fit(pair, size)
    return crop(pair, left_over[0] // 2, left_over[1] // 2, size)


def _fit(pair: Pair, size: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the size of a crop that fits into both images, and how many rows and columns it leaves over."""
    whole = [min(sides) for sides in zip(pair.image0.shape[-2:], pair.image1.shape[-2:], strict=True)]
    fitting = [min(sides) for sides in zip(size, whole, strict=True)]
    return fitting, [side - part for side, part in zip(whole, fitting, strict=True)]


def crop(pair: Pair, top: int, left: int, size: Sequence[int]) -> Pair:
    """Return the window of both images whose first pixel is in row ``top`` and column ``left``."""
    rows, columns = slice(top, top + size[0]), slice(left, left + size[1])
    image0, image1, occluded = (field[..., rows, columns] for field in (pair.image0, pair.image1, pair.occluded))
    return Pair(image0, image1, pair.flow[..., rows, columns, :], occluded, pair.name)


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
    image0, image1, occluded = (field.flip(image_axis) for field in (pair.image0, pair.image1, pair.occluded))
    flow = pair.flow.flip(field_axis)
    flow[..., axis] = image1.shape[image_axis] - image0.shape[image_axis] - flow[..., axis]
    return Pair(image0, image1, flow, occluded, pair.name)
