"""The confidence network: from what the matching says about its matches to probabilities."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.geometry.discretization import Geometry
from deepmatching.kernels.registry import has_kernels
from deepmatching.network.convolutions import Converted, channels_last, converted_to, convolved, joined, rectified
from deepmatching.network.operators.evidence import channels_of_evidence, compare_contexts, windows


class ConfidenceNetwork(nn.Module):
    """evidence, descriptors of both images → logits of "the match is right" and "the point is hidden".

    Everything happens on the grid of reference points, 8 pixels apart::

        cells of I_0 ── context ──┬──────────────────────────┐
        cells of I_1 ── context ── warped by the matches ── product, in groups
        evidence ────────────────────────────────────────────┴─ 1×1 ─ U of 3×3 convolutions, down to 1/64 ─ 1×1

    A match is *right* if it is less than 3 pixels off. A point is *hidden* if it is covered, or outside, in the second
    image.

    Args:
        channels: channels of the descriptor.
        patch: cells along the side of the descriptor's patch.
        step: cells from one reference point to the next.
        width: channels of the U.
        scales: number of scales of the U, each half as fine as the one before.
        context: channels of the context.
        groups: number of groups that the product is split into.
    """

    def __init__(
        self,
        channels: int,
        patch: int = 1,
        step: int = 4,
        width: int = 56,
        scales: int = 4,
        context: int = 32,
        groups: int = 16,
    ) -> None:
        super().__init__()
        self.channels, self.patch, self.step = channels, patch, step
        self.width, self.scales, self.groups = width, scales, groups
        # One window per reference point, with the point at its centre: cells lie between positions unless patch is 1.
        self.window = nn.Conv2d(channels, context, step + (patch == 1), stride=step)
        self.context = nn.Conv2d(context, context, 3, padding=1)
        self.entry = nn.Conv2d(channels_of_evidence(patch) + context + groups, width, 1)
        self.down = nn.ModuleList(Residual(width) for _ in range(scales))
        self.up = nn.ModuleList(Residual(width) for _ in range(scales - 1))
        self.exit = nn.Conv2d(width, 2, 1)
        channels_last(self)

    def settings(self) -> dict[str, Any]:
        """Return the arguments with which a model file rebuilds this network."""
        context = self.context.out_channels
        return {"width": self.width, "scales": self.scales, "context": context, "groups": self.groups}

    def forward(
        self,
        evidence: Tensor,
        points1: Tensor,
        cells0: Tensor,
        cells1: Tensor,
        geometry: Geometry,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return logits (B, 2, H_0, W_0): the match is right, the point is occluded.

        Args:
            evidence: see :func:`~deepmatching.network.operators.evidence.gather_evidence`.
            points1: Γ(p), (B, H_0, W_0, 2), in pixels from the corner.
            cells0, cells1: the descriptors of both images.
            dtype: type of the convolutions. None for half precision for inference on CUDA, else that of the parameters.
        """
        if dtype is None and cells0.is_cuda and not torch.is_grad_enabled() and has_kernels("cuda"):
            dtype = torch.float16
        converted = None if dtype is None else converted_to(dtype, self)
        if converted is not None and cells0.shape == cells1.shape:  # one batch fills a GPU better than two
            context0, context1 = self.describe((cells0, cells1), converted).chunk(2)
        else:
            context0, context1 = (self.describe((cells,), converted) for cells in (cells0, cells1))
        x = compare_contexts(evidence, context0, context1, points1, geometry.beta, geometry.alpha, self.groups)
        x = rectified(self.entry, x, converted=converted)
        x = through_u(x, self.down, self.up, converted)
        return convolved(self.exit, x, converted).to(evidence.dtype)

    def describe(self, cells: tuple[Tensor, ...], converted: Converted | None = None) -> Tensor:
        """Compute the context of every reference point, (n·B, context, rows, columns), from n batches (B, C, h, w)."""
        weight, bias = self.window.weight, self.window.bias
        assert bias is not None
        dtype = weight.dtype if converted is None else converted[self.context][0].dtype
        found = windows(cells, weight, bias, self.step, self.channels**0.5, dtype)  # the descriptors have unit length
        return rectified(self.context, found, converted=converted)


def through_u(x: Tensor, down: nn.ModuleList, up: nn.ModuleList, converted: Converted | None = None) -> Tensor:
    """Send maps (B, C, H, W) through blocks of ever coarser scales, and back up, adding the maps of the way down."""
    maps = []
    for n, block in enumerate(down):
        x = block(F.avg_pool2d(x, 2, ceil_mode=True) if n else x, converted)
        maps.append(x)
    for n, block in reversed(list(enumerate(up))):
        x = block(joined(maps[n], x), converted)
    return x


class Residual(nn.Module):
    """x + two 3×3 convolutions of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, converted: Converted | None = None) -> Tensor:
        return rectified(self.second, rectified(self.first, x, converted=converted), x, converted)
