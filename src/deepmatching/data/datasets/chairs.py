"""Flying Chairs (Fischer et al., ICCV 2015), whose layout ``deepmatching synthesize`` writes too."""

from __future__ import annotations

import re
from pathlib import Path

from deepmatching.data.datasets.pairs import Entry, Layout, LayoutPairs, PathLike
from deepmatching.errors import DeepMatchingError, check_choice

LAYOUT = Layout("Flying Chairs", "data/NNNNN_img1.ppm, data/NNNNN_img2.ppm and data/NNNNN_flow.flo")
SPLIT_FILE = "FlyingChairs_train_val.txt"
SPLITS = {"train": ("1",), "val": ("2",), "all": ("1", "2")}


class FlyingChairs(LayoutPairs):
    """Chairs in front of photographs: 22232 pairs for training and 640 for validation by the official split.

    Args:
        root: the folder that has ``data/``, or ``data`` itself.
        split: ``"train"``, ``"val"``, or ``"all"``, which needs no split file.
        split_file: a line for each pair, 1 (train) or 2 (val); None for :data:`SPLIT_FILE` in the root or in ``data``.
        masks, limit: see :class:`LayoutPairs`; the masks are ``NNNNN_occ.png``, if there are any.
    """

    def __init__(
        self,
        root: PathLike,
        split: str = "val",
        split_file: PathLike | None = None,
        masks: bool = True,
        limit: int | None = None,
    ) -> None:
        check_choice("The split of Flying Chairs", split, SPLITS)
        names = set(LAYOUT.names(Path(root)))
        is_data = "data" not in names and any(name.endswith(("_img1.ppm", "_flow.flo")) for name in names)
        folder = Path(root) if is_data else LAYOUT.folder(Path(root) / "data")
        names = set(LAYOUT.names(folder))
        found = (re.fullmatch(r"(\d+)_(?:img1\.ppm|img2\.ppm|flow\.flo)", name) for name in names)
        numbers = sorted({match[1] for match in found if match}, key=lambda number: (int(number), number))
        if not numbers:
            raise LAYOUT.error(f"there are no pairs in '{folder}'")
        if split != "all":
            candidates = [place / SPLIT_FILE for place in (Path(root), folder, folder.parent)]
            path = Path(split_file) if split_file is not None else _first_file(candidates)
            numbers = _numbers_of_split(numbers, split, path)
        has_masks = any(name.endswith("_occ.png") for name in names)
        entries = [
            Entry(
                f"chairs-{split}",
                number,
                folder / f"{number}_img1.ppm",
                folder / f"{number}_img2.ppm",
                flow=folder / f"{number}_flow.flo",
                occluded=folder / f"{number}_occ.png" if has_masks else None,
            )
            for number in numbers
        ]
        super().__init__(f"chairs-{split}", LAYOUT, entries, masks, limit)


def _first_file(candidates: list[Path]) -> Path:
    if found := [path for path in candidates if path.is_file()]:
        return found[0]
    raise LAYOUT.error(
        f"there is no file '{candidates[0]}' that says which pairs are for training",
        "; download it from the data set's page, name another with --split-file (in training: data.split_file=FILE), "
        "or use all pairs with --split all (data.split=all)",
    )


def _numbers_of_split(numbers: list[str], split: str, path: Path) -> list[str]:
    """Return the pairs of a split; line i of the file is about pair i, counted from 1."""
    try:
        labels = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise DeepMatchingError(f"The split file '{path}' cannot be read ({reason}); check the path.") from error
    wrong = next((line for line, label in enumerate(labels, 1) if label not in ("1", "2")), None)
    if wrong is not None:
        raise DeepMatchingError(
            f"Line {wrong} of the split file '{path}' is '{labels[wrong - 1]}'; each must be 1 (train) or 2 (val)."
        )
    existing = {int(number): number for number in numbers}
    if max(existing) > len(labels) or min(existing) < 1:
        beyond = existing[min(existing) if min(existing) < 1 else max(existing)]
        raise DeepMatchingError(
            f"The split file '{path}' has {len(labels)} lines, none for pair {beyond}; use the file of this data set."
        )
    width = len(numbers[0])
    chosen = [existing.get(i, f"{i:0{width}d}") for i, label in enumerate(labels, 1) if label in SPLITS[split]]
    if not chosen:
        other = "train" if split == "val" else "val"
        raise DeepMatchingError(f"The split file '{path}' has no pairs for '{split}'; use --split {other} or all.")
    return chosen
