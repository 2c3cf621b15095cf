"""The published data sets in their own layouts: MPI Sintel and its subset SintelMini, Flying Chairs, and KITTI."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepmatching.data.datasets.pairs import MASKS, Entry, FilePairs, evenly_spaced, list_folder, missing_files
from deepmatching.errors import DeepMatchingError, check_choice
from deepmatching.io.files import PathLike, read_bytes

PASSES = ("clean", "final")  #: the parts of MPI Sintel that have their own images: without and with motion blur and fog
#: SintelMini. The paper trains on 7 sequences ("313 images") and validates on every 10th frame of 5 others ("25
#: images"), but does not name them. No 7 scenes have 313 frames, but they can have 313 pairs: six scenes of 50 frames
#: and ambush_6 with 20 have 6·49 + 19 = 313. The six and the five are our choice, such that no place of the film
#: (alley, cave, …) is in both sets.
MINI_TRAIN = ("alley_1", "ambush_5", "ambush_6", "bamboo_1", "market_2", "mountain_1", "sleeping_1")
MINI_VAL = ("bandage_1", "bandage_2", "cave_4", "shaman_3", "temple_2")
MINI_STEP = 10  #: frames 1, 11, 21, 31 and 41 of 50: 25 pairs
SPLIT_FILE = "FlyingChairs_train_val.txt"  #: the file that splits Flying Chairs, with a line for each pair
_LABELS = {"train": ("1",), "val": ("2",), "all": ("1", "2")}  #: the labels in that file of the pairs of each split


@dataclass(frozen=True)
class Layout:
    """The files of a data set, in words for an error message."""

    title: str  #: "MPI Sintel"
    files: str  #: "training/clean/SCENE/frame_NNNN.png"

    def error(self, problem: str, hint: str = "") -> DeepMatchingError:
        return DeepMatchingError(f"{self.title} is incomplete: {problem}; expected below its root: {self.files}{hint}.")

    def folder(self, path: Path) -> Path:
        """Return the folder, which must exist."""
        if not os.path.isdir(path):
            raise self.error(f"there is no folder '{path}'")
        return path

    def training(self, root: PathLike, signs: Sequence[str]) -> Path:
        """Return the folder ``training`` of the root, or the root itself if it holds one of that folder's ``signs``."""
        inner = self.folder(Path(root)) / "training"
        is_inside = not inner.is_dir() and any((inner.parent / sign).exists() for sign in signs)
        return inner.parent if is_inside else self.folder(inner)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, which must exist."""
        return list_folder(self.folder(folder))


_SINTEL = Layout(
    "MPI Sintel",
    "training/{clean,final}/SCENE/frame_NNNN.png, training/flow/SCENE/frame_NNNN.flo and "
    "training/{occlusions,invalid}/SCENE/frame_NNNN.png",
)
_CHAIRS = Layout("Flying Chairs", "data/NNNNN_img1.ppm, data/NNNNN_img2.ppm and data/NNNNN_flow.flo")
_CHAIRS_FILES = ("img1.ppm", "img2.ppm", "flow.flo", "occ.png")
_KITTI2012, _KITTI2015 = (
    Layout(
        f"KITTI {year}",
        f"training/{images}/NNNNNN_10.png and _11.png{others}, training/flow_occ/NNNNNN_10.png and "
        "training/flow_noc/NNNNNN_10.png",
    )
    for year, images, others in ((2012, "image_0", " (grey, or colored_0)"), (2015, "image_2", ""))
)


class LayoutPairs(FilePairs):
    """A data set in a published layout, with all its files. Without ``masks``, all known flow counts.

    With a ``limit``, it takes that many evenly spaced pairs of the complete ones; without, all must be complete.
    """

    def __init__(
        self, name: str, layout: Layout, entries: Sequence[Entry], masks: bool, limit: int | None = None
    ) -> None:
        if not masks:
            entries = [entry.without_masks() for entry in entries]
        missing = missing_files(entries)
        incomplete = {index for index, _, _ in missing}
        if limit is not None and len(incomplete) < len(entries):
            entries = [entry for index, entry in enumerate(entries) if index not in incomplete]
        elif missing:
            _, field, path = missing[0]
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            hint = "; or do without masks (--no-masks; data.masks=false in training)" if field in MASKS else ""
            raise layout.error(f"there is no file '{path}'{others}", hint)
        super().__init__(name, evenly_spaced(entries, limit), len(incomplete))


class Sintel(LayoutPairs):
    """Consecutive frames of the training scenes of MPI Sintel (Butler et al., ECCV 2012): 1041 pairs a pass.

    Args:
        root: the folder that has ``training/``, or ``training`` itself.
        passes: ``"clean"``, or ``"final"`` with motion blur and fog.
        scenes, step: take every ``step``-th pair of these scenes; None for all 23.
        masks, limit: see :class:`LayoutPairs`; with a limit, whole scenes may be missing.
    """

    def __init__(
        self,
        root: PathLike,
        passes: str = "clean",
        scenes: Sequence[str] | None = None,
        masks: bool = True,
        step: int = 1,
        name: str | None = None,
        limit: int | None = None,
    ) -> None:
        check_choice("The pass of Sintel", passes, PASSES)
        name = name or f"sintel-{passes}"
        training = _SINTEL.training(root, [*PASSES, "flow"])

        def numbers_of(folder: Path, suffix: str) -> set[int]:
            found = (re.fullmatch(rf"frame_(\d{{4}})\.{suffix}", file) for file in _SINTEL.names(folder))
            return {int(match[1]) for match in found if match}

        found = [scene for scene in _SINTEL.names(training / passes) if (training / passes / scene).is_dir()]
        entries = []
        for scene in found if scenes is None else scenes:
            images, flow = training / passes / scene, training / "flow" / scene
            if limit is not None and not (images.is_dir() and flow.is_dir()):
                continue
            frames = numbers_of(images, "png")
            # With a successor or a flow: either file may then be reported as missing.
            numbers = {n for n in frames if n + 1 in frames} | numbers_of(flow, "flo")
            for number in sorted(numbers)[::step]:
                image0, image1 = (images / f"frame_{n:04d}.png" for n in (number, number + 1))
                truth = flow / f"{image0.stem}.flo"
                occluded, invalid = (training / part / scene / image0.name for part in ("occlusions", "invalid"))
                entry = Entry(name, f"{scene}/{image0.stem}", image0, image1, truth, occluded=occluded, invalid=invalid)
                entries.append(entry)
        if not entries:
            raise _SINTEL.error(f"there are no pairs of frames in '{training / passes}'")
        super().__init__(name, _SINTEL, entries, masks, limit)


class SintelMini(Sintel):
    """The paper's SintelMini: 313 pairs of 7 scenes for training (``"train"``), 25 of 5 others (``"val"``)."""

    def __init__(
        self, root: PathLike, split: str = "val", passes: str = "clean", masks: bool = True, limit: int | None = None
    ) -> None:
        check_choice("The split of SintelMini", split, ("train", "val"))
        scenes, step = (MINI_TRAIN, 1) if split == "train" else (MINI_VAL, MINI_STEP)
        super().__init__(root, passes, scenes, masks, step, name=f"sintelmini-{split}", limit=limit)


class FlyingChairs(LayoutPairs):
    """Chairs in front of photographs (Fischer et al., ICCV 2015): 22232 pairs for training and 640 for validation.

    ``deepmatching synthesize`` writes this layout too. The masks are ``NNNNN_occ.png``, if there are any.

    Args:
        root: the folder that has ``data/``, or ``data`` itself.
        split: ``"train"``, ``"val"``, or ``"all"``, which needs no split file.
        split_file: a line for each pair, 1 (train) or 2 (val); None for :data:`SPLIT_FILE` in the root or in ``data``.
        masks, limit: see :class:`LayoutPairs`.
    """

    def __init__(
        self,
        root: PathLike,
        split: str = "val",
        split_file: PathLike | None = None,
        masks: bool = True,
        limit: int | None = None,
    ) -> None:
        check_choice("The split of Flying Chairs", split, _LABELS)
        names = set(_CHAIRS.names(Path(root)))
        is_data = "data" not in names and any(name.endswith(("_img1.ppm", "_flow.flo")) for name in names)
        folder = Path(root) if is_data else Path(root) / "data"
        names = set(_CHAIRS.names(folder))
        found = (re.fullmatch(r"(\d+)_(?:img1\.ppm|img2\.ppm|flow\.flo)", name) for name in names)
        numbers = sorted({match[1] for match in found if match}, key=lambda number: (int(number), number))
        if not numbers:
            raise _CHAIRS.error(f"there are no pairs in '{folder}'")
        if split != "all":
            places = [place / SPLIT_FILE for place in (Path(root), folder, folder.parent)]
            path = next((path for path in places if path.is_file()), None) if split_file is None else Path(split_file)
            if path is None:
                raise _CHAIRS.error(
                    f"there is no file '{places[0]}' that says which pairs are for training",
                    "; download it from the data set's page, name another with --split-file (in training: "
                    "data.split_file=FILE), or use all pairs with --split all (data.split=all)",
                )
            numbers = _numbers_of_split(numbers, split, path)
        entries = []
        for number in numbers:
            image0, image1, flow, mask = (folder / f"{number}_{name}" for name in _CHAIRS_FILES)
            entries.append(Entry(f"chairs-{split}", number, image0, image1, flow, occluded=mask))
        has_masks = any(name.endswith("_occ.png") for name in names)
        super().__init__(f"chairs-{split}", _CHAIRS, entries, masks and has_masks, limit)


def _numbers_of_split(numbers: list[str], split: str, path: Path) -> list[str]:
    """Return the pairs of a split; line i of the file is about pair i, counted from 1."""
    labels = read_bytes(path, "split file").decode(errors="replace").split()
    for line, label in enumerate(labels, 1):
        if label not in ("1", "2"):
            raise DeepMatchingError(f"Line {line} of the split file '{path}' is '{label}', not 1 (train) or 2 (val).")
    existing = {int(number): number for number in numbers}
    if beyond := [number for index, number in existing.items() if not 1 <= index <= len(labels)]:
        raise DeepMatchingError(f"The split file '{path}' has {len(labels)} lines, none for pair {beyond[-1]}.")
    width = len(numbers[0])
    chosen = [existing.get(i, f"{i:0{width}d}") for i, label in enumerate(labels, 1) if label in _LABELS[split]]
    if not chosen:
        other = "train" if split == "val" else "val"
        raise DeepMatchingError(f"The split file '{path}' has no pairs for '{split}'; use --split {other} or all.")
    return chosen


class KITTI2012(LayoutPairs):
    """194 pairs from a driving car (Geiger et al., CVPR 2012); a laser scanner measured a third of the pixels.

    ``root`` has ``training/``, or is ``training`` itself. ``color`` reads ``colored_0`` (True) or the grey ``image_0``
    (False); None takes grey if it exists. A pixel known in ``flow_occ`` but not in ``flow_noc`` is occluded.
    """

    def __init__(self, root: PathLike, color: bool | None = None, masks: bool = True, limit: int | None = None) -> None:
        training = _KITTI2012.training(root, ["flow_occ"])
        name = {None: "kitti2012", False: "kitti2012-grey", True: "kitti2012-color"}[color]
        if color is None:
            color = not (training / "image_0").is_dir() and (training / "colored_0").is_dir()
        images = training / ("colored_0" if color else "image_0")
        super().__init__(name, _KITTI2012, _kitti_entries(_KITTI2012, training, images, name), masks, limit)


class KITTI2015(LayoutPairs):
    """200 pairs from a driving car among other moving cars (Menze and Geiger, CVPR 2015); see :class:`KITTI2012`."""

    def __init__(self, root: PathLike, masks: bool = True, limit: int | None = None) -> None:
        training = _KITTI2015.training(root, ["flow_occ"])
        entries = _kitti_entries(_KITTI2015, training, training / "image_2", "kitti2015")
        super().__init__("kitti2015", _KITTI2015, entries, masks, limit)


def _kitti_entries(layout: Layout, training: Path, images: Path, group: str) -> list[Entry]:
    layout.folder(images)
    occ, noc = training / "flow_occ", training / "flow_noc"
    names = [name for name in layout.names(occ) if re.fullmatch(r"\d{6}_10\.png", name)]
    if not names:
        raise layout.error(f"there are no files NNNNNN_10.png in '{occ}'")
    return [Entry(group, n[:6], images / n, images / f"{n[:6]}_11.png", flow=occ / n, flow_noc=noc / n) for n in names]
