"""Data sets by name."""

from __future__ import annotations

from deepmatching.data.datasets.manifest import Manifest
from deepmatching.data.datasets.pairs import FilePairs
from deepmatching.data.datasets.published import KITTI2012, KITTI2015, FlyingChairs, Sintel, SintelMini
from deepmatching.errors import DeepMatchingError
from deepmatching.extensions import find_extension, is_import_path
from deepmatching.io.files import PathLike

#: The names that :func:`open_dataset` knows.
NAMES = (
    *("sintel-clean", "sintel-final", "sintelmini", "chairs"),
    *("kitti2012", "kitti2012-grey", "kitti2012-color", "kitti2015"),
)

#: Data sets that come in two renderings.
WITH_PASSES = ("sintel", "sintelmini")

#: Data sets that are split into pairs for training and for validation.
WITH_SPLITS = ("sintelmini", "chairs")

#: The data set that is split by a file.
WITH_SPLIT_FILE = "chairs"


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
    """Open a data set.

    Args:
        name_or_path: one of :data:`NAMES`, the path of a ``.json`` manifest, or the import path of something that takes
            ``root``, ``split``, ``masks`` and ``limit`` by name and returns a :class:`FilePairs` (see
            :mod:`deepmatching.extensions`). ``kitti2012`` uses the grey images if they exist.
        root: the folder of the data set; not for a manifest.
        split: of ``sintelmini`` (train, val) and ``chairs`` (train, val, all); val by default.
        passes: of ``sintel`` and ``sintelmini``: clean or final; clean by default. ``sintel`` with a pass is
            ``sintel-clean`` or ``sintel-final``.
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
    if not is_manifest and name not in NAMES and family != "sintel":
        raise DeepMatchingError(
            f"Unknown data set '{text}': use {', '.join(NAMES)}, package.module:Class or the path of a .json manifest."
        )
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
