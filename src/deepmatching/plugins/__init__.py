"""Adapters to other libraries. Each module needs its library, except ``kornia``, whose interface needs none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deepmatching.matcher import DeepMatcher
from deepmatching.matches import Matches
from deepmatching.settings import MODEL


class MatcherModule(nn.Module):
    """A matcher that libraries can move between devices and put into ``eval`` mode.

    Args:
        model: name or file of the model.
        settings: of the matcher, such as ``radius=256``.
    """

    def __init__(self, model: str = MODEL, **settings: Any) -> None:
        super().__init__()
        self.matcher = DeepMatcher.from_pretrained(model, **{"device": "cpu", **settings})
        self.network = self.matcher.network  # so that its parameters are this module's
        self.network.requires_grad_(False)

    @torch.no_grad()
    def forward(self, image0: Tensor, image1: Tensor) -> list[Matches]:
        """Return the matches of each pair of two batches (B, 1 or 3, H, W), on the images' device."""
        if self.matcher.device != image0.device:
            self.matcher.to(image0.device)
        pairs = zip(image0, image1, strict=True)
        return list(self.matcher.match_pairs(pairs, batch_size=max(1, len(image0))))


def confidence_of(matches: Matches) -> Tensor:
    """Return the confidence of each match, or its score if the model has no confidence."""
    confidence: Tensor | None = getattr(matches, "confidence", None)
    return matches.scores if confidence is None else confidence
