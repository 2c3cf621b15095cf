"""Deep Matching that learns: quasi-dense correspondences between two images.

>>> import deepmatching as dm
>>> matcher = dm.DeepMatcher.from_pretrained(radius=80)
>>> matches = matcher.match("a.png", "b.png")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from deepmatching.bulk_matching import bulk
    from deepmatching.errors import DeepMatchingError, OutOfMemoryError
    from deepmatching.geometry.discretization import Geometry
    from deepmatching.matcher import DeepMatcher
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
    "bulk",
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
    "bulk": "bulk_matching",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'deepmatching' has no attribute '{name}'")
    try:
        return getattr(import_module(f"deepmatching.{_HOME[name]}"), name)
    except (ImportError, AttributeError) as error:
        from deepmatching.errors import DeepMatchingError, explain

        if sentence := explain(error):
            raise DeepMatchingError(sentence) from error
        raise


def __dir__() -> list[str]:
    return __all__
