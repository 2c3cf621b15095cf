"""A descriptor, a loss, a pooling and a data set for deepmatching, in a package of their own.

pip install ./examples/extension
deepmatching --plugin tiny_extension train … model.descriptor=tiny_extension:Tiny loss.kind=tiny_extension:fixed_scale …
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.data.datasets.pairs import Entry, FilePairs, evenly_spaced
from deepmatching.geometry.discretization import Geometry
from deepmatching.network.descriptors import Descriptor
from deepmatching.network.losses import cross_entropy
from deepmatching.network.operators.pooling import SoftPooling


class Tiny(Descriptor):
    """One convolution, to a vector of unit length every two pixels."""

    stride = 2
    patch = 1  # finished vectors, one more than cells along each axis

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.channels = channels
        self.convolution = nn.Conv2d(1, channels, 8, stride=2, padding=4)

    def forward(self, image: Tensor) -> Tensor:
        return F.normalize(self.convolution(image.mean(1, keepdim=True)).relu(), dim=1)

    def settings(self) -> dict[str, Any]:
        return {"channels": self.channels}


def fixed_scale(scores: Tensor, truth: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each reference point with β = 10, and a mask of the points that have one.

    Args:
        scores: a score volume (B, H, W, h, w).
        truth: the true cell (row, column) of each point, (B, H, W, 2), NaN where unknown.
        sigma: σ of g_σ, in cells.
    """
    return cross_entropy(scores, truth, sigma, torch.tensor(10.0))


class OneTemperature(nn.Module):
    """Soft pooling whose temperature is learned, one for all levels."""

    def __init__(self) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.full((1,), 4.0))

    def pool(self, scores: Tensor, geometry: Geometry, l: int) -> tuple[Tensor, Any]:
        return SoftPooling(self.log_temperature).pool(scores, geometry, l)

    def unpool(self, scores: Tensor, kept: Any, fine: Tensor, geometry: Geometry, l: int) -> Tensor:
        return SoftPooling(self.log_temperature).unpool(scores, kept, fine, geometry, l)


class Listed(FilePairs):
    """The pairs that ``SPLIT.txt`` in a folder lists: a line ``IMAGE0 IMAGE1 FLOW`` for each."""

    def __init__(self, root: str, split: str | None, masks: bool, limit: int | None) -> None:
        folder = Path(root)
        lines = [line.split() for line in (folder / f"{split or 'val'}.txt").read_text().splitlines()]
        entries = [Entry("listed", a, folder / a, folder / b, flow=folder / flow) for a, b, flow in lines]
        super().__init__("listed", evenly_spaced(entries, limit))
