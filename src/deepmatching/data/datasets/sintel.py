"""MPI Sintel (Butler et al., ECCV 2012), and SintelMini, the subset that the paper trains on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from deepmatching.data.datasets.pairs import Entry, Layout, LayoutPairs, PathLike
from deepmatching.errors import check_choice

LAYOUT = Layout(
    "MPI Sintel",
    "training/{clean,final}/SCENE/frame_NNNN.png, training/flow/SCENE/frame_NNNN.flo and "
    "training/{occlusions,invalid}/SCENE/frame_NNNN.png",
)
PASSES = ("clean", "final")

#: SintelMini. The paper trains on 7 sequences ("313 images") and validates on every 10th frame of 5 others ("25
#: images"), but does not name them. No 7 scenes have 313 frames, but they can have 313 pairs: six scenes of 50 frames
#: and ambush_6 with 20 have 6·49 + 19 = 313. The six and the five are our choice, such that no place of the film
#: (alley, cave, …) is in both sets.
MINI_TRAIN = ("alley_1", "ambush_5", "ambush_6", "bamboo_1", "market_2", "mountain_1", "sleeping_1")
MINI_VAL = ("bandage_1", "bandage_2", "cave_4", "shaman_3", "temple_2")

#: Frames 1, 11, 21, 31 and 41 of 50: 25 pairs.
MINI_STEP = 10


class Sintel(LayoutPairs):
    """Consecutive frames of MPI Sintel's training scenes: 1041 pairs a pass.

    Args:
        root: the folder that has ``training/``, or ``training`` itself.
        passes: ``"clean"``, or ``"final"`` with motion blur and fog.
        scenes: names of the scenes; None for all 23.
        masks, limit: see :class:`LayoutPairs`; with a limit, whole scenes may be missing.
        step: take every ``step``-th pair of a scene.
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
        training = LAYOUT.part(root, "training", [*PASSES, "flow"])
        found = [scene for scene in LAYOUT.names(training / passes) if (training / passes / scene).is_dir()]
        entries = []
        for scene in found if scenes is None else scenes:
            if limit is not None and not all((training / part / scene).is_dir() for part in (passes, "flow")):
                continue
            frames = _numbers(training / passes / scene, "png")
            # With a successor or a flow: either file may then be reported as missing.
            numbers = {n for n in frames if n + 1 in frames} | _numbers(training / "flow" / scene, "flo")
            entries += [_entry(training, passes, scene, number, name) for number in sorted(numbers)[::step]]
        if not entries:
            raise LAYOUT.error(f"there are no pairs of frames in '{training / passes}'")
        super().__init__(name, LAYOUT, entries, masks, limit)


class SintelMini(Sintel):
    """The paper's SintelMini: 313 pairs of 7 scenes for training, 25 of 5 others for validation; see above.

    The arguments are those of :class:`Sintel`, and ``split``: ``"train"`` or ``"val"``.
    """

    def __init__(
        self, root: PathLike, split: str = "val", passes: str = "clean", masks: bool = True, limit: int | None = None
    ) -> None:
        check_choice("The split of SintelMini", split, ("train", "val"))
        scenes, step = (MINI_TRAIN, 1) if split == "train" else (MINI_VAL, MINI_STEP)
        super().__init__(root, passes, scenes, masks, step, name=f"sintelmini-{split}", limit=limit)


def _numbers(folder: Path, suffix: str) -> set[int]:
    matched = (re.fullmatch(rf"frame_(\d{{4}})\.{suffix}", name) for name in LAYOUT.names(folder))
    return {int(match[1]) for match in matched if match}


def _entry(training: Path, passes: str, scene: str, number: int, group: str) -> Entry:
    frame = f"frame_{number:04d}"
    return Entry(
        group,
        f"{scene}/{frame}",
        training / passes / scene / f"{frame}.png",
        training / passes / scene / f"frame_{number + 1:04d}.png",
        flow=training / "flow" / scene / f"{frame}.flo",
        occluded=training / "occlusions" / scene / f"{frame}.png",
        invalid=training / "invalid" / scene / f"{frame}.png",
    )
