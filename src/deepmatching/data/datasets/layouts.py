"""Folder layouts of published data sets, and the error about a missing file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepmatching.data.datasets.pairs import MASKS, Entry, FilePairs, evenly_spaced, list_folder, missing_files
from deepmatching.errors import DeepMatchingError

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Layout:
    """The files of a data set, in words for an error message."""

    title: str  #: "MPI Sintel"
    files: str  #: "training/clean/SCENE/frame_NNNN.png"

    def error(self, problem: str, hint: str = "") -> DeepMatchingError:
        return DeepMatchingError(f"{self.title} is incomplete: {problem}; expected below its root: {self.files}{hint}.")

    def folder(self, path: Path, hint: str = "") -> Path:
        """The folder, which must exist."""
        if not os.path.isdir(path):
            raise self.error(f"there is no folder '{path}'", hint)
        return path

    def part(self, root: PathLike, part: str, signs: Sequence[str]) -> Path:
        """The folder ``part`` of the root; or the root itself, if it holds one of ``signs`` of being that folder."""
        root = self.folder(Path(root))
        if not (root / part).is_dir() and any((root / sign).exists() for sign in signs):
            return root
        return self.folder(root / part)

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, which must exist."""
        return list_folder(self.folder(folder))

    def check(self, entries: Sequence[Entry], hint: str = "") -> None:
        """Raise unless every file of every entry exists; ``hint`` is for missing masks."""
        missing = missing_files(entries)
        if missing:
            others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            _, field, path = missing[0]
            raise self.error(f"there is no file '{path}'{others}", hint if field in MASKS else "")


class LayoutPairs(FilePairs):
    """A data set in a published layout, with all its files.

    Args:
        name, entries: as for :class:`FilePairs`.
        layout: names what is missing.
        masks: use the masks.
        limit: take so many evenly spaced pairs of those that are complete; None for all pairs, which must be complete.
    """

    def __init__(
        self, name: str, layout: Layout, entries: Sequence[Entry], masks: bool, limit: int | None = None
    ) -> None:
        if not masks:
            entries = [entry.without_masks() for entry in entries]
        incomplete = {index for index, _, _ in missing_files(entries)} if limit is not None else set()
        if len(incomplete) < len(entries):
            entries = [entry for index, entry in enumerate(entries) if index not in incomplete]
        layout.check(entries, "; or do without masks (--no-masks; data.masks=false in training)")
        super().__init__(name, evenly_spaced(entries, limit), len(incomplete))
