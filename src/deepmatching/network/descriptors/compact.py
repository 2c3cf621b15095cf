"""Our own learned descriptor: one short vector per position, from a small U-shaped network."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.network.convolutions import as_rgb, channels_last, in_bands, joined, normalised, rectified
from deepmatching.network.descriptors.base import Descriptor


class Compact(Descriptor):
    """image → unit vectors of ``dimensions`` at every second pixel corner.

    Most of the computation is at half resolution, for precision, and some at a quarter, for context::

        H        6×6, stride 2
        H/2      3×3, 3×3 ─────────────────────── + ── 3×3 ── 2×2 → positions
        H/4         mean pool, 3×3, 3×3 ── 1×1 ──┘

    Coarse maps are upsampled bilinearly. The last convolution, 2×2, turns cells, which lie between positions, into the
    vector of a position; ``hog`` uses a patch of 4 × 4 cells instead.

    Args:
        downscale: must be 1.
        widths: channels at H/2, H/4, …, one number per scale.
        layers: number of 3×3 convolutions at each scale on the way down.
        dimensions: length of the vectors.
    """

    stride = 2
    patch = 1

    def __init__(
        self,
        downscale: int = 1,
        widths: Sequence[int] = (36, 72),
        layers: Sequence[int] = (2, 2),
        dimensions: int = 64,
    ) -> None:
        super().__init__()
        if downscale != 1:
            words = f"The compact descriptor has cells of 2 pixels: downscale must be 1, not {downscale}"
            raise DeepMatchingError(f"{words}; use hog for others.")
        if not widths or len(widths) != len(layers) or min(*widths, *layers, dimensions) < 1:
            raise DeepMatchingError(
                "The compact descriptor needs a positive width and number of layers for each scale and positive "
                f"dimensions, not {list(widths)}, {list(layers)} and {dimensions}."
            )
        self.widths, self.layers, self.channels = list(widths), list(layers), dimensions
        self.working = 25 * widths[0] // 6  # measured: 150 with the default widths, nearly all of it at H/2
        self.mapped = widths[0]  # four bytes at every fourth pixel
        self.banded = widths[0] + dimensions + 1  # the map, the vectors and their norm
        self.stem = nn.Conv2d(3, widths[0], 6, stride=2, padding=2)
        inputs = [widths[0], *widths[:-1]]
        self.down = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(a if n == 0 else b, b, 3, padding=1) for n in range(count))
            for a, b, count in zip(inputs, widths, layers, strict=True)
        )
        pairs = list(pairwise(widths))
        self.rise = nn.ModuleList(nn.Conv2d(b, a, 1) for a, b in pairs)
        self.merge = nn.ModuleList(nn.Conv2d(a, a, 3, padding=1) for a, _ in pairs)
        self.head = nn.Conv2d(widths[0], dimensions, 2, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        channels_last(self)

    def forward(self, image: Tensor) -> Tensor:
        # The stem reaches 3 pixels, and at each scale reach the convolutions down, the one up and the interpolation.
        around = 3 + sum(2 * 2**n * (count + 2) for n, count in enumerate(self.layers))
        return normalised(self.head(in_bands(self._maps, image, self.working, around, 2 ** len(self.widths), 2)))

    def _maps(self, image: Tensor) -> Tensor:
        """Run all layers but the last: (B, 1 or 3, H, W) → (B, widths[0], H/2, W/2)."""
        x = (as_rgb(image) * 4 - 2).contiguous(memory_format=torch.channels_last)
        x = rectified(self.stem, x)
        maps: list[Tensor] = []
        for scale in self.down:
            x = F.avg_pool2d(x, 2, ceil_mode=True) if maps else x
            for convolution in scale:  # type: ignore[attr-defined]
                x = rectified(convolution, x)
            maps.append(x)
        x = maps.pop()
        for n in reversed(range(len(self.rise))):  # a map is freed as soon as it has been used
            x = rectified(self.merge[n], joined(maps.pop(), self.rise[n](x)))  # type: ignore[arg-type]
        return x

    def settings(self) -> dict[str, object]:
        return {"widths": self.widths, "layers": self.layers, "dimensions": self.channels}


@torch.no_grad()
def grow(small: Compact, large: Compact) -> None:
    """Fill ``large`` so that it computes the same vectors as ``small``, and its other features can join in.

    Channels and scales of ``small`` keep their weights. What is new keeps its random weights, except that nothing old
    listens to it yet: these weights are 0, and learn.
    """
    count = len(small.widths)
    is_larger = len(large.widths) >= count and all(a >= b for a, b in zip(large.widths, small.widths, strict=False))
    if large.channels != small.channels or large.layers[:count] != small.layers or not is_larger:
        raise DeepMatchingError(
            f"A compact descriptor with widths {small.widths}, layers {small.layers} and {small.channels} dimensions "
            f"cannot grow to {large.widths}, {large.layers} and {large.channels}: only widths and scales can be added."
        )
    known = dict(small.named_parameters())
    for name, value in large.named_parameters():
        if name in known:
            old = known[name]
            value[: len(old)] = 0
            value[tuple(slice(side) for side in old.shape)] = old
        elif name.startswith("rise"):
            value.zero_()
        elif name.startswith("merge") and name.endswith("weight"):
            nn.init.dirac_(value)
