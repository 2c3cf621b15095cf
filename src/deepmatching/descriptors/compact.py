"""A learned descriptor of our own: one short vector per position, from a small U of convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.descriptors.base import Descriptor
from deepmatching.descriptors.convolutions import as_rgb, normalised, rectified
from deepmatching.errors import DeepMatchingError


class Compact(Descriptor):
    """image → unit vectors of ``dimensions`` at every second pixel corner.

    Half of the work is done at half resolution, for precision, and the rest at a quarter and an eighth, for
    context::

        H        6×6, stride 2
        H/2      3×3, 3×3 ──────────────────────── + ── 3×3 ── 2×2 → positions
        H/4         mean pool, 3×3, 3×3 ──── + ── 3×3 ──┘
        H/8            mean pool, 3×3, 3×3 ──┘

    Coarse maps come back up bilinearly after a 1×1 convolution. The last, 2×2, convolution turns cells, which lie
    between positions, into the vector of a position: what a patch of 4 × 4 HOG cells is to ``hog``.

    A 1024 × 436 pair takes 32 GFLOP, and 5.8 more for its correlation at radius 80 (``vgg``: 170 and 186).

    Args:
        downscale: must be 1.
        widths: channels at H/2, H/4 and H/8.
        dimensions: length of the vectors.
    """

    stride = 2
    patch = 1

    def __init__(self, downscale: int = 1, widths: tuple[int, int, int] = (32, 64, 96), dimensions: int = 64) -> None:
        super().__init__()
        if downscale != 1:
            raise DeepMatchingError(
                f"The compact descriptor has cells of 2 pixels: downscale must be 1, not {downscale}."
            )
        a, b, c = self.widths = tuple(int(width) for width in widths)
        self.channels = int(dimensions)
        self.stem = nn.Conv2d(3, a, 6, stride=2, padding=2)
        self.half1, self.half2 = (nn.Conv2d(a, a, 3, padding=1) for _ in range(2))
        self.quarter1, self.quarter2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.eighth1, self.eighth2 = nn.Conv2d(b, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.rise2, self.rise1 = nn.Conv2d(c, b, 1), nn.Conv2d(b, a, 1)
        self.merge2, self.merge1 = nn.Conv2d(b, b, 3, padding=1), nn.Conv2d(a, a, 3, padding=1)
        self.head = nn.Conv2d(a, self.channels, 2, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        self.to(memory_format=torch.channels_last)

    def forward(self, image: Tensor) -> Tensor:
        x = (as_rgb(image) * 4 - 2).contiguous(memory_format=torch.channels_last)
        half = rectified(self.half2, rectified(self.half1, rectified(self.stem, x)))
        quarter = rectified(self.quarter2, rectified(self.quarter1, _halved(half)))
        eighth = rectified(self.eighth2, rectified(self.eighth1, _halved(quarter)))
        quarter = rectified(self.merge2, quarter + _risen(self.rise2(eighth), quarter))
        half = rectified(self.merge1, half + _risen(self.rise1(quarter), half))
        return normalised(self.head(half))

    def settings(self) -> dict[str, object]:
        return {"widths": list(self.widths), "dimensions": self.channels}


def _halved(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 2, ceil_mode=True)


def _risen(x: Tensor, like: Tensor) -> Tensor:
    """Twice the size, cut to the size of ``like``."""
    x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    return x[:, :, : like.shape[2], : like.shape[3]]
