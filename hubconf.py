"""``torch.hub.load("OWNER/REPOSITORY", "matcher", radius=256)``: a matcher without an installation of the package."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepmatching import DeepMatcher

#: What ``torch.hub`` looks for before it calls a function: modules that a matcher imports.
dependencies = ["cv2", "matplotlib", "numba", "numpy", "PIL", "psutil", "safetensors", "torch"]

# torch.hub takes its own folder from the path again, but the package imports its modules later.
sys.path.insert(0, str(Path(__file__).resolve().parent / "src"))


def matcher(*args: Any, **settings: Any) -> "DeepMatcher":
    """Return ``DeepMatcher.from_pretrained(*args, **settings)``."""
    import deepmatching

    return deepmatching.DeepMatcher.from_pretrained(*args, **settings)
