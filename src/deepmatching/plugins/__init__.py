"""Adapters to other libraries. Each module needs its library, except ``kornia``, whose interface needs none."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from deepmatching.errors import DeepMatchingError
from deepmatching.matcher import DeepMatcher
from deepmatching.matches import Matches
from deepmatching.settings import MODEL

#: The configuration from which some libraries build their models: the arguments of a :class:`MatcherModule`.
CONF: dict[str, Any] = {"model": MODEL, "settings": {}, "max_num_matches": None, "min_confidence": None}


class MatcherModule(nn.Module):
    """A matcher that libraries can move between devices and put into ``eval`` mode.

    Args:
        model: name or file of the model.
        max_num_matches: keep at most this many matches of a pair, the best; None for all.
        min_confidence: leave out matches with a lower confidence, if the model judges its matches; None for all.
        settings: of the matcher, such as ``radius=256``.
    """

    def __init__(
        self,
        model: str = MODEL,
        max_num_matches: int | None = None,
        min_confidence: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.max_num_matches, self.min_confidence = max_num_matches, min_confidence
        self.matcher = DeepMatcher.from_pretrained(model, **{"device": "cpu", **settings})
        self.network = self.matcher.network  # so that its parameters are this module's
        self.network.requires_grad_(False)

    @classmethod
    def of(cls, conf: Mapping[str, Any]) -> "MatcherModule":
        """Return the module of a configuration like :data:`CONF`."""
        return cls(*(conf[name] for name in ("model", "max_num_matches", "min_confidence")), **conf["settings"])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "MatcherModule":
        """Move the parameters between devices, but keep their type: the precision is a setting of the matcher."""
        return super()._apply(lambda tensor: tensor.to(fn(tensor).device), recurse)

    @torch.no_grad()
    def forward(
        self, image0: Tensor, image1: Tensor, mask0: Tensor | None = None, mask1: Tensor | None = None
    ) -> list[Matches]:
        """Return the matches of each pair of two batches (B, 1 or 3, H, W), on the images' device.

        Masks, (B, H, W), are not 0 where pixels may be matched.
        """
        counts = [len(batch) for batch in (image0, image1, mask0, mask1) if batch is not None]
        if len(set(counts)) > 1:
            raise DeepMatchingError(f"The batches must have equal numbers of images and masks, not {counts}.")
        if self.matcher.device != image0.device:
            self.matcher.to(image0.device)
        masks = ([None] * len(image0) if mask is None else mask for mask in (mask0, mask1))
        pairs = zip(image0, image1, *masks, strict=True)
        return [self._selected(matches) for matches in self.matcher.match_pairs(pairs, batch_size=max(1, len(image0)))]

    def _selected(self, matches: Matches) -> Matches:
        if self.min_confidence is not None and matches.confidence is not None:
            matches = matches.filter(self.min_confidence)
        return matches if self.max_num_matches is None else matches.best(self.max_num_matches)
