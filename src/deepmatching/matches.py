"""Matches: what the matcher returns, with the adapters users need.

**Pixel convention.** The original program measures at pixel *corners*: x = 0 is the left border of the picture, and
the centre of its first pixel is x = 0.5. Most of Python (OpenCV, kornia, flow files) measures at pixel *centres*:
the first pixel is x = 0. ``Matches`` holds centres; the original's text format holds corners. The difference of
half a pixel is added and taken away by :func:`from_corners` and :func:`to_corners`, and nowhere else. Displacements
are the same in both.
"""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.files import atomic_write
from deepmatching.matches_of_others import pair_group, pair_of_arrays, to_float32

if TYPE_CHECKING:
    from deepmatching.decoding import Decoded
    from deepmatching.images import ImageLike

PathLike = str | os.PathLike[str]
Size = tuple[int, int]


def from_corners(points: Tensor) -> Tensor:
    """Positions at pixel corners (the original's) to positions at pixel centres (Python's)."""
    return points - 0.5


def to_corners(points: Tensor) -> Tensor:
    """Positions at pixel centres to positions at pixel corners."""
    return points + 0.5


@dataclass(frozen=True, eq=False)
class Matches:
    """Correspondences between two images.

    Attributes:
        keypoints0: (N, 2) float32, x and y in the first image, in pixels; pixel centres are integers.
        keypoints1: (N, 2) float32, the corresponding points in the second image.
        scores: (N,) float32, confidence; for L levels at most L + 1, comparable within one pair.
        size0: (rows, columns) of the first image, if known.
        size1: (rows, columns) of the second image, if known.
    """

    keypoints0: Tensor
    keypoints1: Tensor
    scores: Tensor
    size0: Size | None = None
    size1: Size | None = None

    def __post_init__(self) -> None:
        for name in ("keypoints0", "keypoints1", "scores"):  # arrays and lists are welcome too
            object.__setattr__(self, name, torch.as_tensor(getattr(self, name)))
        n = len(self.scores)
        if self.keypoints0.shape != (n, 2) or self.keypoints1.shape != (n, 2) or self.scores.shape != (n,):
            raise DeepMatchingError(
                "Matches need keypoints of shape (N, 2), (N, 2) and scores of shape (N,), not "
                f"{tuple(self.keypoints0.shape)}, {tuple(self.keypoints1.shape)}, {tuple(self.scores.shape)}."
            )

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, chosen: Any) -> Matches:
        """A part of the matches, by a boolean mask, a slice, indices or one index."""
        if isinstance(chosen, int):
            chosen = [range(len(self))[chosen]]
        return Matches(self.keypoints0[chosen], self.keypoints1[chosen], self.scores[chosen], self.size0, self.size1)

    @property
    def displacements(self) -> Tensor:
        """(N, 2), keypoints1 − keypoints0."""
        return self.keypoints1 - self.keypoints0

    def best(self, n: int) -> Matches:
        """The n most confident matches, best first."""
        return self[torch.argsort(self.scores, descending=True, stable=True)[:n]]

    def to(self, device: torch.device | str) -> Matches:
        """The same matches on another device."""
        return Matches(
            self.keypoints0.to(device),
            self.keypoints1.to(device),
            self.scores.to(device),
            self.size0,
            self.size1,
        )

    def numpy(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """keypoints0, keypoints1, scores as arrays."""
        return tuple(t.detach().cpu().numpy() for t in (self.keypoints0, self.keypoints1, self.scores))  # type: ignore[return-value]

    # ------------------------------------------------------------------ adapters

    def as_kornia(self) -> dict[str, Tensor]:
        """The dictionary that kornia's LoFTR returns."""
        return {
            "keypoints0": self.keypoints0,
            "keypoints1": self.keypoints1,
            "confidence": self.scores,
            "batch_indexes": torch.zeros(len(self), dtype=torch.long, device=self.scores.device),
        }

    def as_hloc(self) -> dict[str, np.ndarray]:
        """Keypoints with ``matches0`` and ``matching_scores0``, as hloc's feature and match files hold them."""
        keypoints0, keypoints1, scores = self.numpy()
        return {
            "keypoints0": keypoints0,
            "keypoints1": keypoints1,
            "matches0": np.arange(len(self), dtype=np.int32),
            "matching_scores0": scores,
        }

    def as_opencv(self) -> tuple[list[Any], list[Any], list[Any]]:
        """OpenCV's keypoints of both images and one ``DMatch`` each; its distance is minus the score."""
        import cv2

        keypoints0, keypoints1, scores = (array.tolist() for array in self.numpy())
        return (
            [cv2.KeyPoint(x, y, 8.0) for x, y in keypoints0],
            [cv2.KeyPoint(x, y, 8.0) for x, y in keypoints1],
            [cv2.DMatch(i, i, -score) for i, score in enumerate(scores)],
        )

    # ------------------------------------------------------------------ files

    def as_text(self) -> str:
        """The original program's lines, ``x0 y0 x1 y1 score index``: positions at pixel corners, index 0."""
        rows = torch.cat([to_corners(self.keypoints0), to_corners(self.keypoints1)], dim=1).cpu().tolist()
        scores = self.scores.detach().cpu().tolist()
        return "".join(
            "{:g} {:g} {:g} {:g} {:g} 0\n".format(*row, score) for row, score in zip(rows, scores, strict=True)
        )

    def save(self, path: PathLike) -> None:
        """Write to ``.txt`` (the original's format), ``.npz`` or ``.h5``, as the suffix says."""
        suffix = Path(path).suffix.lower()
        if suffix not in WRITERS:
            raise unknown_suffix(path)
        with atomic_write(path) as temporary:
            WRITERS[suffix](self, Path(temporary))

    @classmethod
    def load(cls, path: PathLike) -> Matches:
        """Read what :meth:`save` wrote, or what other matchers write.

        That is any text file whose lines start with ``x0 y0 x1 y1`` (measured at pixel corners), and an ``.npz`` or
        ``.h5`` with ``keypoints0`` and ``keypoints1`` (at pixel centres) of one pair, with or without scores and an
        index; in an ``.h5`` they may be in a group.
        """
        path = Path(path)
        if path.suffix.lower() not in READERS:
            raise unknown_suffix(path)
        if not path.is_file():
            raise DeepMatchingError(f"There is no matches file '{path}': check the path.")
        try:
            matches = READERS[path.suffix.lower()](path)
        except DeepMatchingError:
            raise
        except PermissionError as error:
            raise DeepMatchingError(f"The matches file '{path}' cannot be read: check its permissions.") from error
        except (OSError, ValueError, KeyError, IndexError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            raise DeepMatchingError(
                f"'{path}' is not a readable matches file: it is damaged, or no {path.suffix.lower()}; write it again."
            ) from error
        rows = torch.cat([matches.keypoints0, matches.keypoints1, matches.scores[:, None]], dim=1)
        if bad := int((~rows.isfinite()).any(dim=1).sum()):
            raise DeepMatchingError(
                f"'{path}' has numbers that are not finite in {bad} of {len(rows)} matches: remove these."
            )
        return matches

    # ------------------------------------------------------------------ pictures

    def draw(self, image0: ImageLike, image1: ImageLike, path: PathLike | None = None) -> np.ndarray:
        """A picture of the matches, (rows, columns, 3) uint8 RGB; also written to ``path`` if given."""
        from deepmatching.drawing import draw_match_figure, write_image
        from deepmatching.images import load_image

        picture = draw_match_figure(load_image(image0, "image0"), load_image(image1, "image1"), *self.numpy())
        if path is not None:
            write_image(path, picture)
        return picture


def matches_of(decoded: Decoded, b: int, size0: Size | None = None, size1: Size | None = None) -> Matches:
    """The verified matches of pair b of a batch."""
    kept = decoded.verified[b]
    return Matches(
        from_corners(decoded.points0[kept]),
        from_corners(decoded.points1[b][kept]),
        decoded.scores[b][kept],
        size0,
        size1,
    )


def unknown_suffix(path: PathLike) -> DeepMatchingError:
    """The error for a file whose name does not say its format."""
    return DeepMatchingError(f"Cannot tell the format of '{path}': name it .txt, .npz or .h5.")


def _arrays(matches: Matches) -> dict[str, np.ndarray]:
    keypoints0, keypoints1, scores = matches.numpy()
    arrays = {"keypoints0": keypoints0, "keypoints1": keypoints1, "scores": scores}
    for name in ("size0", "size1"):
        if (size := getattr(matches, name)) is not None:
            arrays[name] = np.asarray(size, dtype=np.int64)
    return arrays


def count_outside(matches: Matches, size: Size) -> int:
    """How many matches start outside an image of this size (rows, columns), where interpolation drops them.

    Raises:
        DeepMatchingError: if most of them do.
    """
    if matches.size0 is not None and tuple(matches.size0) != tuple(size):
        return 0  # interpolation refuses these, and says why
    from deepmatching.flow import starts_inside

    outside = len(matches) - int(starts_inside(matches.numpy()[0], size).sum())
    if 2 * outside > len(matches):
        raise DeepMatchingError(
            f"{outside} of {len(matches)} matches start outside the image of {size[1]}x{size[0]} pixels: are these "
            "matches of other images? Give those of this pair."
        )
    return outside


def _from_arrays(stored: Mapping[str, Any], path: Path) -> Matches:
    start, end, scores = (torch.from_numpy(array) for array in pair_of_arrays(stored, path))
    size0, size1 = (
        (int(stored[name][0]), int(stored[name][1])) if name in stored else None for name in ("size0", "size1")
    )
    return Matches(start, end, scores, size0, size1)


def _write_text(matches: Matches, path: Path) -> None:
    path.write_text(matches.as_text(), encoding="ascii", newline="\n")


def _write_npz(matches: Matches, path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **_arrays(matches))  # type: ignore[arg-type]


def _write_h5(matches: Matches, path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, array in _arrays(matches).items():
            file.create_dataset(name, data=array)
        file.attrs["convention"] = "x, y in pixels; pixel centres are integers"


def _read_text(path: Path) -> Matches:
    text = path.read_text(encoding="ascii", errors="replace")
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if any(len(line) < 4 for line in lines):
        raise DeepMatchingError(f"'{path}' has lines with fewer than four numbers: each must start with x0 y0 x1 y1.")
    try:
        values = to_float32(np.array([[float(v) for v in [*line, "1"][:5]] for line in lines]).reshape(-1, 5))
    except ValueError:
        raise DeepMatchingError(
            f"'{path}' is not a readable matches file: it has lines with words; each must start with x0 y0 x1 y1."
        ) from None
    table = torch.from_numpy(values)
    return Matches(from_corners(table[:, 0:2]), from_corners(table[:, 2:4]), table[:, 4])


def _read_npz(path: Path) -> Matches:
    arrays = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
    if not isinstance(arrays, Mapping):
        raise ValueError("one array, not an archive")
    return _from_arrays(arrays, path)


def _read_h5(path: Path) -> Matches:
    import h5py

    with h5py.File(path, "r") as file:
        return _from_arrays(pair_group(file, path), path)


WRITERS: dict[str, Callable[[Matches, Path], None]] = {
    ".txt": _write_text,
    ".npz": _write_npz,
    ".h5": _write_h5,
}
READERS: dict[str, Callable[[Path], Matches]] = {".txt": _read_text, ".npz": _read_npz, ".h5": _read_h5}
