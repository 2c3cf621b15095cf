"""Folder layouts of published data sets, and the one sentence about what is missing in one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepmatching.datasets.pairs import Entry, FilePairs, list_folder, missing_files
from deepmatching.errors import DeepMatchingError

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Layout:
    """How a data set lies on disk, in words that fit into an error message."""

    title: str  #: "MPI Sintel"
    files: str  #: "training/clean/SCENE/frame_NNNN.png"

    def error(self, problem: str, hint: str = "") -> DeepMatchingError:
        return DeepMatchingError(f"{self.title} is incomplete: {problem}; expected below its root: {self.files}{hint}.")

    def folder(self, path: Path, hint: str = "") -> Path:
        """The folder, which must be there."""
        if not path.is_dir():
            raise self.error(f"there is no folder '{path}'", hint)
        return path

    def part(self, root: PathLike, part: str, signs: Sequence[str]) -> Path:
        """The folder ``part`` of the root; or the root, if one of ``signs`` in it tells that it is that folder."""
        root = self.folder(Path(root))
        if not (root / part).is_dir() and any((root / sign).exists() for sign in signs):
            return root
        return self.folder(root / part)

    def names(self, folder: Path) -> list[str]:
        """What lies in a folder, which must be there."""
        return list_folder(self.folder(folder))

    def check(self, entries: Sequence[Entry], hint: str = "") -> None:
        """Every file of every entry must be there, and one entry at least."""
        missing = missing_files(entries)
        if missing:
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            kind = missing[0][1]
            masks = hint if kind in ("occluded", "invalid", "flow_noc") else ""
            raise self.error(f"there is no file '{missing[0][2]}'{others}", masks)


class LayoutPairs(FilePairs):
    """A data set in a published layout: all its files are there."""

    def __init__(self, name: str, layout: Layout, entries: Sequence[Entry], masks: bool) -> None:
        if not masks:
            entries = [entry.without_masks() for entry in entries]
        layout.check(entries, "; or do without masks (--no-masks; data.masks=false in training)")
        super().__init__(name, entries)
