"""KITTI flow 2012 (Geiger et al., CVPR 2012) and 2015 (Menze and Geiger, CVPR 2015)."""

from __future__ import annotations

import re
from pathlib import Path

from deepmatching.data.datasets.pairs import Entry, Layout, LayoutPairs, PathLike

_LAYOUT_2012 = Layout(
    "KITTI 2012",
    "training/image_0/NNNNNN_10.png and _11.png (grey, or colored_0), training/flow_occ/NNNNNN_10.png and "
    "training/flow_noc/NNNNNN_10.png",
)
_LAYOUT_2015 = Layout(
    "KITTI 2015",
    "training/image_2/NNNNNN_10.png and _11.png, training/flow_occ/NNNNNN_10.png and training/flow_noc/NNNNNN_10.png",
)


class KITTI2012(LayoutPairs):
    """194 pairs from a driving car; a laser scanner gives the ground truth of a third of the pixels.

    Args:
        root: the folder that has ``training/``, or ``training`` itself.
        color: read ``colored_0`` (True) or the grey ``image_0`` (False); None for grey if it exists.
        masks, limit: see :class:`LayoutPairs`; a pixel known in ``flow_occ`` but not in ``flow_noc`` is occluded.
    """

    def __init__(self, root: PathLike, color: bool | None = None, masks: bool = True, limit: int | None = None) -> None:
        training = _LAYOUT_2012.part(root, "training", ["flow_occ"])
        name = {None: "kitti2012", False: "kitti2012-grey", True: "kitti2012-color"}[color]
        if color is None:
            color = not (training / "image_0").is_dir() and (training / "colored_0").is_dir()
        images = training / ("colored_0" if color else "image_0")
        super().__init__(name, _LAYOUT_2012, _entries(_LAYOUT_2012, training, images, name), masks, limit)


class KITTI2015(LayoutPairs):
    """200 pairs from a driving car among other moving cars; the arguments are those of :class:`KITTI2012`."""

    def __init__(self, root: PathLike, masks: bool = True, limit: int | None = None) -> None:
        training = _LAYOUT_2015.part(root, "training", ["flow_occ"])
        entries = _entries(_LAYOUT_2015, training, training / "image_2", "kitti2015")
        super().__init__("kitti2015", _LAYOUT_2015, entries, masks, limit)


def _entries(layout: Layout, training: Path, images: Path, group: str) -> list[Entry]:
    layout.folder(images)
    names = [name for name in layout.names(training / "flow_occ") if re.fullmatch(r"\d{6}_10\.png", name)]
    if not names:
        raise layout.error(f"there are no files NNNNNN_10.png in '{training / 'flow_occ'}'")
    return [
        Entry(
            *(group, name[:6], images / name, images / f"{name[:6]}_11.png"),
            flow=training / "flow_occ" / name,
            flow_noc=training / "flow_noc" / name,
        )
        for name in names
    ]
