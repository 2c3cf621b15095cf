"""A matcher for glue-factory, which evaluates on HPatches, MegaDepth-1500 and ScanNet.

``python -m gluefactory.eval.hpatches model.name=two_view_pipeline model.extractor.name=null
model.matcher.name=deepmatching.plugins.gluefactory``
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from gluefactory.models.base_model import BaseModel
from torch import Tensor

from deepmatching.plugins import CONF, MatcherModule


class DeepMatching(BaseModel):
    """Matches the views of a pair, one pair at a time. Its keypoints are measured at pixel corners."""

    default_conf: ClassVar[dict[str, Any]] = CONF
    required_data_keys: ClassVar[list[str]] = ["view0", "view1"]
    are_weights_initialized = True

    def _init(self, conf: Any) -> None:
        self.net = MatcherModule.of(conf)

    def _forward(self, data: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        (matches,) = self.net(data["view0"]["image"], data["view1"]["image"])
        numbers = torch.arange(len(matches), device=matches.scores.device)
        found = {"keypoints0": matches.keypoints0 + 0.5, "keypoints1": matches.keypoints1 + 0.5}
        for side in (0, 1):
            found[f"matches{side}"] = numbers
            found[f"matching_scores{side}"] = found[f"keypoint_scores{side}"] = matches.certainty
        return {name: values[None] for name, values in found.items()}

    def loss(self, pred: Any, data: Any) -> Any:
        """Raise: there is nothing to train here."""
        raise NotImplementedError
