"""The confidence network: from what the matching says about its matches to probabilities."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepmatching.confidence.evidence import channels_of_evidence
from deepmatching.descriptors.convolutions import channels_last, joined
from deepmatching.geometry import Geometry
from deepmatching.operators.lookups import sample

#: Numbers of the descriptors that are convolved at a time.
BAND = 2**22


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
        """The arguments with which a model file rebuilds this network."""
        return {
            "width": self.width,
            "scales": self.scales,
            "context": self.context.out_channels,
            "groups": self.groups,
        }

    def forward(self, evidence: Tensor, points1: Tensor, cells0: Tensor, cells1: Tensor, geometry: Geometry) -> Tensor:
        """Logits (B, 2, H_0, W_0): the match is right, the point is hidden.

        Args:
            evidence: see :func:`~deepmatching.confidence.gather_evidence`.
            points1: Γ(p), (B, H_0, W_0, 2), in pixels from the corner.
            cells0, cells1: the descriptors of both images.
        """
        context0, context1 = self.describe(cells0), self.describe(cells1)
        context0 = context0[:, :, : evidence.shape[2], : evidence.shape[3]]
        warped = sample(context1, (points1 - geometry.beta) / geometry.alpha)
        product = (context0 * warped).unflatten(1, (self.groups, -1)).sum(2)
        x = self.entry(torch.cat([evidence, context0, product], dim=1)).relu_()
        maps = []
        for n, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2, ceil_mode=True) if n else x)
            maps.append(x)
        for n, block in reversed(list(enumerate(self.up))):
            x = block(joined(maps[n], x))
        return self.exit(x)

    def describe(self, cells: Tensor) -> Tensor:
        """The context of every reference point, (B, context, rows, columns), from descriptors (B, C, h, w)."""
        weight = self.window.weight * self.channels**0.5  # the descriptors have unit length
        rows = cells.shape[2] // self.step
        at_once = max(1, BAND // (cells.shape[0] * cells.shape[1] * cells.shape[3] * self.step))
        bands = [
            F.conv2d(
                cells[:, :, self.step * first : self.step * min(rows, first + at_once) + (self.patch == 1)],
                weight,
                self.window.bias,
                self.step,
            )
            for first in range(0, rows, at_once)  # convolutions copy their input
        ]
        return self.context(torch.cat(bands, dim=2).relu_()).relu_()


class Residual(nn.Module):
    """x + two 3×3 convolutions of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x).relu_()) + x).relu_()
