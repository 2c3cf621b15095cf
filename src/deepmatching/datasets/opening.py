"""Data sets by name."""

from __future__ import annotations

from pathlib import Path

from deepmatching.datasets.chairs import FlyingChairs
from deepmatching.datasets.kitti import KITTI2012, KITTI2015
from deepmatching.datasets.layouts import PathLike
from deepmatching.datasets.manifest import Manifest
from deepmatching.datasets.pairs import FilePairs
from deepmatching.datasets.sintel import Sintel, SintelMini
from deepmatching.errors import DeepMatchingError

#: The names that :func:`open_dataset` knows.
NAMES = (
    *("sintel-clean", "sintel-final", "sintelmini", "chairs"),
    *("kitti2012", "kitti2012-grey", "kitti2012-color", "kitti2015"),
)


def open_dataset(
    name_or_path: PathLike,
    root: PathLike | None = None,
    split: str | None = None,
    *,
    passes: str | None = None,
    split_file: PathLike | None = None,
    masks: bool = True,
) -> FilePairs:
    """Open a data set.

    Args:
        name_or_path: one of :data:`NAMES`, or the path of a ``.json`` manifest. ``kitti2012`` is grey if the grey
            images are there, else in colour.
        root: the folder of the data set; a manifest needs none.
        split: of ``sintelmini`` (train, val) and ``chairs`` (train, val, all); by default val.
        passes: of ``sintel`` and ``sintelmini``, clean or final; by default clean. ``sintel`` with a pass is
            ``sintel-clean`` or ``sintel-final``.
        split_file: of ``chairs``, if it lies elsewhere.
        masks: use the masks of occluded and of invalid pixels; without, all known flow counts.
    """
    text = str(name_or_path)
    name = text.lower()
    if name.endswith(".json"):
        _refuse(f"the manifest '{text}'", split=split, passes=passes, split_file=split_file)
        if root is not None:
            raise DeepMatchingError(f"The manifest '{text}' needs no root: its paths are relative to itself.")
        return Manifest(Path(name_or_path), masks)
    if name == "sintel":
        name = f"sintel-{passes or 'clean'}"
    elif name.startswith("sintel-") and passes not in (None, name.removeprefix("sintel-")):
        raise DeepMatchingError(f"'{name}' and the pass '{passes}' contradict each other: leave one out.")
    if name not in NAMES and not name.startswith("sintel-"):
        raise DeepMatchingError(f"Unknown data set '{text}': use {', '.join(NAMES)} or the path of a .json manifest.")
    if root is None:
        raise DeepMatchingError(f"Where is '{name}'? Give its folder: --root DIR, in training data.root=DIR.")
    if name.startswith("sintel-"):
        _refuse(name, split=split, split_file=split_file)
        return Sintel(root, name.removeprefix("sintel-"), masks=masks)
    if name == "sintelmini":
        _refuse(name, split_file=split_file)
        return SintelMini(root, split or "val", passes or "clean", masks)
    if name == "chairs":
        _refuse(name, passes=passes)
        return FlyingChairs(root, split or "val", split_file, masks)
    _refuse(name, split=split, passes=passes, split_file=split_file)
    if name == "kitti2015":
        return KITTI2015(root, masks)
    return KITTI2012(root, {"kitti2012-grey": False, "kitti2012-color": True}.get(name), masks)


def _refuse(name: str, **given: object) -> None:
    """What a data set does not have must not be asked for."""
    words = {"split": "splits", "passes": "passes", "split_file": "split file"}
    for option, value in given.items():
        if value is not None:
            raise DeepMatchingError(f"{name[0].upper()}{name[1:]} has no {words[option]}: leave '{value}' out.")
