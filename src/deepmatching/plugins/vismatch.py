"""A matcher for vismatch (image-matching-models).

>>> matcher = DeepMatchingMatcher(device="cuda", radius=160)
>>> found = matcher("a.jpg", "b.jpg")  # num_inliers, H, matched_kpts0, …
"""

from typing import Any

from torch import Tensor
from vismatch import BaseMatcher

from deepmatching.plugins import MatcherModule
from deepmatching.settings import MODEL


class DeepMatchingMatcher(BaseMatcher):
    """Matches two images; vismatch adds RANSAC.

    Args:
        device: where to match.
        model: name or file of the model.
        max_num_keypoints: keep at most this many matches, the best; None for all.
        settings: of the matcher, such as ``radius=256``, and vismatch's own, such as ``ransac_iters=1000``.
    """

    def __init__(
        self, device: str = "cpu", model: str = MODEL, max_num_keypoints: int | None = None, **settings: Any
    ) -> None:
        own = {name: settings.pop(name) for name in list(settings) if name.startswith("ransac_")}
        super().__init__(device, **own)
        self.matcher = MatcherModule(model, max_num_keypoints, **settings)

    def _forward(self, img0: Tensor, img1: Tensor) -> tuple[Tensor | None, ...]:
        (matches,) = self.matcher(img0[None], img1[None])
        return matches.keypoints0, matches.keypoints1, None, None, None, None, matches.certainty
