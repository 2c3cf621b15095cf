"""Edges by OpenCV's structured forest. OpenCV trusts its file: a wrong number ends in a crash, so all are checked here.

The file is YAML, usually compressed by gzip: the options of the forest, then lists of numbers. Node k of a tree goes on
to node childs[k] − 1 or childs[k], or is a leaf (0). The edges of leaf k are the bins from edgeBoundaries[k] to
edgeBoundaries[k + 1], the nodes of all trees being counted together.
"""

import functools
import os
import re
import warnings
import zlib

import cv2
import numpy as np
from torch import Tensor

from deepmatching.errors import INSTALL_CONTRIB, DeepMatchingError
from deepmatching.io.arrays import LARGEST_CONTENT
from deepmatching.io.files import PathLike, as_path, read_bytes
from deepmatching.io.images import load_image

_ARRAYS = ("childs", "featureIds", "thresholds", "edgeBoundaries", "edgeBins")  #: the lists of numbers

#: Options that must be positive.
_POSITIVE = (
    *("numberOfTrees", "numberOfTreesToEvaluate", "selfsimilarityGridSize", "stride", "shrinkNumber", "patchSize"),
    *("patchInnerSize", "numberOfGradientOrientations"),
)

#: Options that may be 0, all radii.
_RADII = ("gradientSmoothing", "regFeatureSmoothing", "ssFeatureSmoothing", "gradientNormalization")
_LARGEST_OPTION = 200  #: the largest value of an option
_LIST = re.compile(rb"-\s*\[([-+.\deE,\s]*)\]")  #: a line of numbers


def structured_forest_edges(image: Tensor, model: PathLike) -> np.ndarray:
    """Return edges (H, W) float32 in [0, 1] by OpenCV's structured forest (Dollár and Zitnick), not thinned.

    It is the detector of the original EpicFlow.

    Args:
        image: (1 or 3, H, W) in [0, 1].
        model: OpenCV's model file, ``model.yml.gz`` from its ``opencv_extra`` repository, which we may not ship.
    """
    if not hasattr(cv2, "ximgproc"):
        raise DeepMatchingError(f"The structured forest needs OpenCV's extra modules: {INSTALL_CONTRIB}.")
    if not os.path.isfile(as_path(model)):
        raise DeepMatchingError(f"There is no structured-forest model '{model}'; check the path.")
    check_forest(model)
    rgb = np.ascontiguousarray(load_image(image).detach().cpu().expand(3, -1, -1).permute(1, 2, 0), np.float32).clip(
        0, 1
    )
    try:
        edges = cv2.ximgproc.createStructuredEdgeDetection(os.fspath(model)).detectEdges(rgb)
    except cv2.error as error:
        raise DeepMatchingError(f"OpenCV cannot read the structured forest '{model}'; download it again.") from error
    return np.nan_to_num(edges).clip(0, 1).astype(np.float32)


def check_forest(path: PathLike) -> None:
    """Raise unless the file is a structured forest. A good one is checked once."""
    about = os.stat(path)
    try:
        _check(os.fspath(path), about.st_mtime_ns, about.st_size)
    except DeepMatchingError:
        raise
    except (ValueError, zlib.error) as error:
        problem = f"'{path}' is no structured forest of OpenCV ({error})"
        raise DeepMatchingError(f"{problem}; download model.yml.gz again.") from error


@functools.lru_cache(maxsize=8)
def _check(path: str, time: int, size: int) -> None:
    """Raise unless a file, of a certain time and size, is a structured forest."""
    text = read_bytes(path, "structured-forest model")
    if text.startswith(b"\x1f\x8b"):
        unpacking = zlib.decompressobj(wbits=31)
        text = unpacking.decompress(text, LARGEST_CONTENT)
        if not unpacking.eof:
            raise ValueError("it is cut short or too large")
    if not text.startswith(b"%YAML"):
        raise ValueError("it is not YAML")
    names, bodies = (re.split(rb"(?m)^(\w+):", text)[start::2] for start in (1, 2))
    sections = dict(zip((name.decode() for name in names), bodies, strict=True))
    if missing := [name for name in ("options", *_ARRAYS) if name not in sections]:
        raise ValueError(f"it has no {missing[0]}")
    options = _options(sections["options"])
    trees, patch = options["numberOfTrees"], options["patchSize"] // options["shrinkNumber"]
    channels, grid = 2 * (options["numberOfGradientOrientations"] + 1) + 3, options["selfsimilarityGridSize"] ** 2
    childs, features, thresholds, bounds, bins = (_lists(sections[name], name) for name in _ARRAYS)
    nodes = len(childs[0])
    if any(len(lists) != trees or {len(tree) for tree in lists} != {nodes} for lists in (childs, features, thresholds)):
        raise ValueError("its trees have different numbers of nodes")
    own = np.arange(nodes)
    for tree in childs:
        _require(((tree == 0) | ((tree > own + 1) & (tree < nodes))).all(), "childs")
    count = (patch**2 + grid * (grid - 1) // 2) * channels
    _require(all(((tree >= 0) & (tree < count)).all() for tree in features), "featureIds")
    starts, values = np.concatenate(bounds), np.concatenate(bins)
    _require(len(starts) > trees * nodes and starts[0] >= 0 and (np.diff(starts) >= 0).all(), "edgeBoundaries")
    _require(starts[-1] <= len(values), "edgeBoundaries")
    _require(((values >= 0) & (values < options["patchInnerSize"] ** 2 * channels)).all(), "edgeBins")


def _options(body: bytes) -> dict[str, int]:
    found = {name.decode(): int(value) for name, value in re.findall(rb"(?m)^\s+(\w+):\s*(\d{1,9})\s*$", body)}
    for names, least in ((_POSITIVE, 1), ([f"{name}Radius" for name in _RADII], 0)):
        for name in names:
            if not least <= found.get(name, -1) <= _LARGEST_OPTION:
                raise ValueError(f"its option {name} is missing or out of range")
    if not found["shrinkNumber"] <= found["patchInnerSize"] <= found["patchSize"]:
        raise ValueError("its patches have impossible sizes")
    return found


def _lists(body: bytes, name: str) -> list[np.ndarray]:
    """Return the lists of numbers below a key, one on each line."""
    lists = _LIST.findall(body)
    if not lists or _LIST.sub(b"", body).strip():
        raise ValueError(f"its {name} are not lists of numbers")
    parsed = []
    for text in lists:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)  # about what is not a number
                numbers = np.fromstring(text.decode(), sep=",")
        except (ValueError, DeprecationWarning):
            raise ValueError(f"its {name} are not lists of numbers") from None
        _require(len(numbers) == text.count(b",") + 1 and bool((np.abs(numbers) < 2**31).all()), name)
        parsed.append(numbers if name == "thresholds" else numbers.astype(np.int64))
    return parsed


def _require(holds: bool | np.bool_, name: str) -> None:
    if not holds:
        raise ValueError(f"its {name} are out of range")
