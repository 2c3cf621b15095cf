"""Data sets by name, and manifests: JSON lists of the user's own pairs."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from deepmatching.data.datasets.pairs import FILES, Entry, FilePairs, Pose, evenly_spaced, missing_files
from deepmatching.data.datasets.published import KITTI2012, KITTI2015, FlyingChairs, Sintel, SintelMini
from deepmatching.errors import DeepMatchingError
from deepmatching.extensions import find_extension, is_import_path
from deepmatching.io.files import PathLike
from deepmatching.io.structured import read_json

#: The names that :func:`open_dataset` knows.
NAMES = (
    *("sintel-clean", "sintel-final", "sintelmini", "chairs"),
    *("kitti2012", "kitti2012-grey", "kitti2012-color", "kitti2015"),
)
WITH_PASSES = ("sintel", "sintelmini")  #: data sets that come in two renderings
WITH_SPLITS = ("sintelmini", "chairs")  #: data sets that are split into pairs for training and for validation
WITH_SPLIT_FILE = "chairs"  #: the data set that is split by a file
#: Keys that name a file, and the field of :class:`Entry` that holds it.
_FILES = {"occ" if name == "occluded" else name: name for name in FILES}
_TRUTHS = ("flow", "homography", "points", "pose")  #: keys of the ground truth; an entry has one of them
_EXAMPLE = '[{"image0": "a.png", "image1": "b.png", "flow": "ab.flo"}, …]'


def is_published(name: str) -> bool:
    """Return whether this is the name of a published data set, which has a root, and not a manifest's path."""
    return name.lower() in NAMES or name.lower() == "sintel"


def open_dataset(
    name_or_path: PathLike,
    root: PathLike | None = None,
    split: str | None = None,
    *,
    passes: str | None = None,
    split_file: PathLike | None = None,
    masks: bool = True,
    limit: int | None = None,
) -> FilePairs:
    """Open one of :data:`NAMES`, a ``.json`` manifest, or what an import path names.

    That takes ``root``, ``split``, ``masks`` and ``limit`` by name and returns a :class:`FilePairs`.

    Args:
        root: the folder of the data set; not for a manifest. ``kitti2012`` uses the grey images if they exist.
        split: of ``sintelmini`` (train, val) and ``chairs`` (train, val, all); val by default.
        passes: of ``sintel`` and ``sintelmini``: clean (the default) or final.
        split_file: of ``chairs``, if it is not in its folder.
        masks: use the masks of occluded and of invalid pixels; otherwise all known flow counts.
        limit: take only this many evenly spaced pairs. Others may lack files; a data set takes complete pairs only.
    """
    text = str(name_or_path)
    if is_import_path(text):
        return find_extension(text)(root=root, split=split, masks=masks, limit=limit)
    name = text.lower()
    is_manifest = name.endswith(".json")
    family = "" if is_manifest else name.partition("-")[0]
    if not (is_manifest or is_published(name)):
        known = ", ".join(NAMES)
        raise DeepMatchingError(f"Unknown data set '{text}': use {known}, package.module:Class or a .json manifest.")
    for option, value, has_it in (
        ("splits", split, family in WITH_SPLITS),
        ("passes", passes, family in WITH_PASSES),
        ("split file", split_file, family == WITH_SPLIT_FILE),
    ):
        if value is not None and not has_it:
            what = f"The manifest '{text}'" if is_manifest else f"'{name}'"
            raise DeepMatchingError(f"{what} has no {option}: leave '{value}' out.")
    if is_manifest:
        if root is not None:
            raise DeepMatchingError(f"The manifest '{text}' needs no root: its paths are relative to itself.")
        return Manifest(name_or_path, masks, limit)
    if root is None:
        raise DeepMatchingError(f"'{name}' needs its folder: give --root DIR, or data.root=DIR in training.")
    if family == "sintel":
        rendering = (passes or "clean") if name == "sintel" else name.removeprefix("sintel-")
        if passes not in (None, rendering):
            raise DeepMatchingError(f"'{name}' and the pass '{passes}' contradict each other: leave one out.")
        return Sintel(root, rendering, masks=masks, limit=limit)
    if family == "sintelmini":
        return SintelMini(root, split or "val", passes or "clean", masks, limit)
    if family == "chairs":
        return FlyingChairs(root, split or "val", split_file, masks, limit)
    if family == "kitti2015":
        return KITTI2015(root, masks, limit)
    return KITTI2012(root, {"kitti2012-grey": False, "kitti2012-color": True}.get(name), masks, limit)


class Manifest(FilePairs):
    """The pairs that a JSON file lists. ``masks`` and ``limit`` are those of :class:`LayoutPairs`.

    Each is an object with ``image0``, ``image1``, and one of ``flow``, ``homography``, ``points`` and ``pose`` (an
    object with the matrices ``K0``, ``K1`` and ``T_0to1``). It may have the masks ``occ``, ``visible`` and ``invalid``,
    or ``flow_noc`` (the flow of visible pixels only), ``dataset`` (the group it is averaged with; by default the name
    of the manifest) and ``scene``. Paths are relative to the manifest. Other keys and null are ignored.
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
            where = f"the '{key}' of entry {index + 1} of the manifest '{path}'"
            raise DeepMatchingError(f"There is no file '{file}'{others}, {where}; paths are relative to it.")
        super().__init__(path.stem, entries)


def _entry(manifest: Path, number: int, item: Any) -> Entry:
    where = f"Entry {number} of the manifest '{manifest}'"
    if not isinstance(item, dict):
        raise DeepMatchingError(f"{where} is not an object; write {_EXAMPLE}.")
    item = {key: value for key, value in item.items() if value is not None}  # null is as good as nothing
    for key in (*_FILES, "dataset", "scene"):
        if key in item and (not isinstance(item[key], str) or not item[key]):
            raise DeepMatchingError(f"{where} has a '{key}' that is not a string; write its name in quotes.")
    if missing := {"image0", "image1"} - set(item):
        raise DeepMatchingError(f"{where} has no '{min(missing)}'; write {_EXAMPLE}.")
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
        is_shared = shared[entry.group, entry.name] > 1
        name = f"{entry.name}/{entry.image0.stem}-{entry.image1.stem}" if is_shared else entry.name
        seen[entry.group, name] += 1
        count = seen[entry.group, name]
        distinct.append(replace(entry, name=name if count == 1 else f"{name} ({count})"))
    return distinct
