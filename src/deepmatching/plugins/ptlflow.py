"""A flow model for ptlflow.

>>> import deepmatching.plugins.ptlflow  # registers it
>>> model = ptlflow.get_model("deepmatching")
"""

from typing import Any, ClassVar

import torch
from ptlflow.models.base_model.base_model import BaseModel
from ptlflow.utils.registry import register_model
from torch import Tensor

from deepmatching.matcher import DeepMatcher
from deepmatching.settings import MODEL, PRESET, Radius


@register_model
class deepmatching(BaseModel):
    """Matches, interpolated along edges and refined; it has nothing to train here.

    Args:
        model: name or file of the model that matches.
        preset: of the flow settings.
        radius, levels, max_size, memory, search: settings of the matcher, so that ptlflow's commands can set them.
        settings: others of the matcher.
    """

    pretrained_checkpoints: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        model: str = MODEL,
        preset: str = PRESET,
        radius: Radius | None = None,
        levels: int | None = None,
        max_size: int | None = None,
        memory: int | None = None,
        search: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(output_stride=1)
        self.preset = preset
        named = {"radius": radius, "levels": levels, "max_size": max_size, "memory": memory, "search": search}
        # In a list, it is hidden from Lightning.
        self._matcher = [DeepMatcher.from_pretrained(model, **{"device": "cpu", **named, **settings})]

    @torch.no_grad()
    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``flows`` (B, 1, 2, H, W), ``confs`` (B, 1, 1, H, W) of ``images`` (B, 2, 3, H, W), BGR in [0, 1]."""
        images = inputs["images"]
        (matcher,) = self._matcher
        if matcher.device != images.device:
            matcher.to(images.device)
        results = [matcher.flow(first.flip(0), second.flip(0), self.preset) for first, second in images]
        flows = torch.stack([torch.from_numpy(result.flow).permute(2, 0, 1)[None] for result in results])
        confidences = torch.stack([torch.from_numpy(result.confidence)[None, None] for result in results])
        return {"flows": flows.to(images), "confs": confidences.to(images)}
