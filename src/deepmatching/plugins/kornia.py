"""A matcher that is called as kornia's LoFTR is.

>>> matcher = DeepMatching(radius=160)
>>> found = matcher({"image0": image0, "image1": image1})  # (B, 1 or 3, H, W) in [0, 1]
>>> found["keypoints0"], found["keypoints1"], found["confidence"], found["batch_indexes"]
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from deepmatching.matches import NO_MATCHES, Matches
from deepmatching.plugins import MatcherModule
from deepmatching.settings import MODEL


class DeepMatching(nn.Module):
    """Matches two batches of images; takes and gives the dictionaries of ``kornia.feature.LoFTR``.

    Images may have colours. Keypoints are measured at pixel centres. With ``mask0`` and ``mask1`` (B, H, W), no match
    starts or ends where a mask is 0, and these pixels do not vote; see ``DeepMatcher.match``. Images may be in half
    precision, but ``half()`` changes nothing: matching has a precision of its own.

    Args:
        model: name or file of the model.
        settings: of the matcher, such as ``radius=256``.
    """

    def __init__(self, model: str = MODEL, **settings: Any) -> None:
        super().__init__()
        self.matcher = MatcherModule(model, **settings)

    def forward(self, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``keypoints0``, ``keypoints1`` (N, 2), ``confidence`` and ``batch_indexes`` (N,) of all pairs."""
        masks = (data.get("mask0"), data.get("mask1"))
        found: list[Matches] = self.matcher(data["image0"], data["image1"], *masks) or [NO_MATCHES]
        numbers = [torch.full((len(m),), b, dtype=torch.long, device=m.scores.device) for b, m in enumerate(found)]
        return {
            "keypoints0": torch.cat([matches.keypoints0 for matches in found]),
            "keypoints1": torch.cat([matches.keypoints1 for matches in found]),
            "confidence": torch.cat([matches.certainty for matches in found]),
            "batch_indexes": torch.cat(numbers),
        }
