"""A dense matcher for hloc (Hierarchical Localization).

>>> from deepmatching.plugins import hloc
>>> features, matches = match_dense.main(hloc.CONF, pairs, images, export_dir=outputs)
"""

# First: pycolmap 4.1 and later bring a zlib of their own, and Python's loaded after it ends the process (double free).
import zlib  # noqa: F401  # isort: skip

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, ClassVar

from hloc.utils.base_model import BaseModel
from torch import Tensor

from deepmatching.plugins import CONF as _DEFAULT
from deepmatching.plugins import MatcherModule
from deepmatching.settings import MIN_CONFIDENCE

#: A configuration for ``hloc.match_dense``.
CONF: dict[str, Any] = {
    "output": "matches-deepmatching",
    "model": {**_DEFAULT, "name": "deepmatching", "settings": {"radius": 320}, "min_confidence": MIN_CONFIDENCE},
    "preprocessing": {"grayscale": False, "resize_max": 1024, "dfactor": 8},
    "max_error": 2,
    "cell_size": 2,
}

_MODULE = "hloc.matchers.deepmatching"  #: Where hloc looks for a matcher of this name.


class DeepMatching(BaseModel):
    """Matches two images; hloc quantises the matches to keypoints."""

    default_conf: ClassVar[dict[str, Any]] = _DEFAULT
    required_inputs: ClassVar[list[str]] = ["image0", "image1"]

    def _init(self, conf: Mapping[str, Any]) -> None:
        self.net = MatcherModule.of(conf)

    def _forward(self, data: Mapping[str, Tensor]) -> dict[str, Tensor]:
        (matches,) = self.net(data["image0"], data["image1"])
        return {"keypoints0": matches.keypoints0, "keypoints1": matches.keypoints1, "scores": matches.certainty}


def register() -> None:
    """Make the matcher known to hloc under the name ``deepmatching``; importing this module does so."""
    module = ModuleType(_MODULE)
    DeepMatching.__module__ = _MODULE  # hloc takes classes only from the module that it looks for
    module.DeepMatching = DeepMatching  # type: ignore[attr-defined]
    sys.modules[_MODULE] = module


register()
