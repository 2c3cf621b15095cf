"""A manifest: a JSON list of the user's own pairs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deepmatching.data.datasets.pairs import FILES, Entry, FilePairs, Pose, evenly_spaced, missing_files
from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike
from deepmatching.io.structured import read_json

#: Keys that name a file, and the field of :class:`Entry` that holds it.
_FILES = {"occ" if name == "occluded" else name: name for name in FILES}
#: Keys of the ground truth, of which an entry has one.
_TRUTHS = ("flow", "homography", "points", "pose")
_EXAMPLE = '[{"image0": "a.png", "image1": "b.png", "flow": "ab.flo"}, …]'


class Manifest(FilePairs):
    """The pairs that a JSON file lists.

    Each is an object with ``image0``, ``image1``, and one of ``flow``, ``homography``, ``points`` and ``pose`` (an
    object with the matrices ``K0``, ``K1`` and ``T_0to1``). It may have the masks ``occ``, ``visible`` and
    ``invalid``, or ``flow_noc`` (the flow of visible pixels only), ``dataset`` (the group it is averaged with; by
    default the name of the manifest) and ``scene``. Paths are relative to the manifest. Other keys and null are
    ignored. ``masks`` and ``limit`` are those of :class:`LayoutPairs`.
    """

    def __init__(self, path: PathLike, masks: bool = True, limit: int | None = None) -> None:
        path = Path(path)
        listed = read_json(path, "manifest", f"write {_EXAMPLE}")
        if not isinstance(listed, list) or not listed:
            wrong = "empty" if listed == [] else "not a JSON list"
            raise DeepMatchingError(f"The manifest '{path}' is {wrong}; write {_EXAMPLE}.")
        entries = [_entry(path, number, item) for number, item in enumerate(listed, 1)]
        entries = _with_distinct_names(entries if masks else [entry.without_masks() for entry in entries])
        entries = evenly_spaced(entries, limit)
        if missing := missing_files(entries):
            index, field, file = missing[0]
            key = next(key for key, name in _FILES.items() if name == field)
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise DeepMatchingError(
                f"There is no file '{file}'{others}, the '{key}' of entry {index + 1} of the manifest '{path}'; "
                "paths are relative to the manifest."
            )
        super().__init__(path.stem, entries)


def _entry(manifest: Path, number: int, item: Any) -> Entry:
    where = f"Entry {number} of the manifest '{manifest}'"
    if not isinstance(item, dict):
        raise DeepMatchingError(f"{where} is not an object; write {_EXAMPLE}.")
    item = {key: value for key, value in item.items() if value is not None}  # null is as good as nothing
    for key in (*_FILES, "dataset", "scene"):
        if key in item and (not isinstance(item[key], str) or not item[key]):
            raise DeepMatchingError(f"{where} has a '{key}' that is not a string; write its name in quotes.")
    for key in ("image0", "image1"):
        if key not in item:
            raise DeepMatchingError(f"{where} has no '{key}'; write {_EXAMPLE}.")
    if sum(key in item for key in _TRUTHS) != 1:
        raise DeepMatchingError(f"{where} must have one of {', '.join(map(repr, _TRUTHS))}, its ground truth.")
    pose = _pose(item["pose"], where) if "pose" in item else None
    files = {field: manifest.parent / item[key] for key, field in _FILES.items() if key in item}
    name = item.get("scene", f"{files['image0'].stem}-{files['image1'].stem}")
    return Entry(item.get("dataset", manifest.stem), name, pose=pose, **files)


def _pose(item: Any, where: str) -> Pose:
    try:
        pose = Pose(*(np.array(item[key], np.float64) for key in Pose._fields))
        shapes = [matrix.shape for matrix in pose if np.isfinite(matrix).all()]
    except (LookupError, TypeError, ValueError):
        shapes = []
    if shapes != [(3, 3), (3, 3), (4, 4)]:
        raise DeepMatchingError(f"{where} has a 'pose' that is not K0 (3 x 3), K1 (3 x 3) and T_0to1 (4 x 4).")
    return pose


def _with_distinct_names(entries: list[Entry]) -> list[Entry]:
    """Add the names of the images to names that occur twice in a group, then a number."""
    shared = Counter((entry.group, entry.name) for entry in entries)
    seen: Counter[tuple[str, str]] = Counter()
    distinct = []
    for entry in entries:
        frames = f"/{entry.image0.stem}-{entry.image1.stem}" if shared[entry.group, entry.name] > 1 else ""
        name = entry.name + frames
        seen[entry.group, name] += 1
        count = seen[entry.group, name]
        distinct.append(replace(entry, name=name if count == 1 else f"{name} ({count})"))
    return distinct
