"""Deep Matching that learns: quasi-dense correspondences between two images.

>>> import deepmatching as dm
>>> matcher = dm.DeepMatcher.from_pretrained(radius=80)
>>> matches = matcher.match("a.png", "b.png")

``dm.match("a.png", "b.png")`` and ``dm.flow("a.png", "b.png")`` take the default model and settings.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The command prints what is logged; another program decides for itself.
logging.getLogger("deepmatching").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from deepmatching.alignment import align
    from deepmatching.bulk_matching import bulk
    from deepmatching.errors import DeepMatchingError, OutOfMemoryError
    from deepmatching.geometry.discretization import Geometry
    from deepmatching.matcher import DeepMatcher, flow, match
    from deepmatching.matches import Matches
    from deepmatching.network.network import Network, Pyramid

__all__ = [
    "DeepMatcher",
    "DeepMatchingError",
    "Geometry",
    "Matches",
    "Network",
    "OutOfMemoryError",
    "Pyramid",
    "__version__",
    "align",
    "bulk",
    "flow",
    "match",
]

# Names are imported on first use, so that `deepmatching --help` does not wait for PyTorch.
_HOME = {
    "DeepMatcher": "matcher",
    "DeepMatchingError": "errors",
    "Geometry": "geometry.discretization",
    "Matches": "matches",
    "Network": "network.network",
    "OutOfMemoryError": "errors",
    "Pyramid": "network.network",
    "align": "alignment",
    "bulk": "bulk_matching",
    "flow": "flow",
    "match": "matcher",
}


class _Flow(ModuleType):
    """The package ``deepmatching.flow``, which is the function ``dm.flow``, too."""

    def __call__(self, *images: Any, **options: Any) -> Any:
        return import_module("deepmatching.matcher").flow(*images, **options)


class _Root(ModuleType):
    """This package, whose part ``flow`` can be called whichever module imports it first."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "flow":
            value.__class__ = _Flow
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deepmatching' has no attribute '{name}'")
    try:
        home = import_module(f"deepmatching.{_HOME[name]}")
        return home if name == "flow" else getattr(home, name)
    except (ImportError, AttributeError) as error:
        from deepmatching.errors import DeepMatchingError, explain

        if sentence := explain(error):
            raise DeepMatchingError(sentence) from error
        raise


def __dir__() -> list[str]:
    return __all__
