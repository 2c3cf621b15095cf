"""Two descriptors, a loss, a pooling and a data set for deepmatching, in a package of their own.

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


class Attention(nn.Module):
    """A tiny vision transformer of random weights: (B, 3, H, W) → (B, width, H / token, W / token)."""

    def __init__(self, width: int, token: int) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, width, token, stride=token)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True)

    def forward(self, image: Tensor) -> Tensor:
        x = self.embedding(image)
        return self.block(x.flatten(2).mT).mT.unflatten(2, x.shape[2:])


class Tokens(Descriptor):
    """Features of a vision transformer, a vector for each ``token`` × ``token`` pixels, resampled to cells of 4 pixels.

    The stride of a descriptor must be a power of two, the 14 or 16 pixels of a transformer need not be: the image is
    resized to whole tokens, and the features back to cells. Both keep the image's corners where they are. In place of
    ``Attention`` put DINOv2, for example: ``torch.hub.load("facebookresearch/dinov2", "dinov2_vits14")``, which has 384
    channels and gives ``get_intermediate_layers(image, reshape=True)[0]``.
    """

    stride = 4
    patch = 4

    def __init__(self, channels: int = 16, token: int = 14) -> None:
        super().__init__()
        self.channels, self.token = channels, token
        self.backbone = Attention(channels, token)

    def forward(self, image: Tensor) -> Tensor:
        rows, columns = image.shape[2:]
        whole = [-(-side // self.token) * self.token for side in (rows, columns)]
        x = F.interpolate(image.expand(-1, 3, -1, -1), whole, mode="bilinear", align_corners=False)
        size = (rows // self.stride, columns // self.stride)
        features = F.interpolate(self.backbone(x), size, mode="bilinear", align_corners=False)
        return F.normalize(features, dim=1) / self.patch

    def settings(self) -> dict[str, Any]:
        return {"channels": self.channels, "token": self.token}


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
