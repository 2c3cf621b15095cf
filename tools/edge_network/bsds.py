"""The Berkeley segmentation data set (BSDS500): photographs, and the boundaries that several people drew on each.

Two layouts of the root folder are read:

* ``images/SPLIT/*`` (.jpg, .png or .webp) and ``boundaries/SPLIT/*.png`` (8 bits; bit k is annotator k), with the
  number of annotators in ``boundaries/SPLIT/annotators.txt`` as lines of ``NAME NUMBER``;
* the published archive: ``images/SPLIT/*.jpg`` and ``groundTruth/SPLIT/*.mat``, for which SciPy is needed.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.io.image_files import AS_STORED, decode_image_file

_SUFFIXES = (".jpg", ".png", ".webp")


@dataclass(frozen=True)
class Annotated:
    """A photograph, uint8 RGB (H, W, 3), and its boundaries, bool (A, H, W): one map for each annotator."""

    name: str
    image: np.ndarray
    boundaries: np.ndarray

    def consensus(self) -> np.ndarray:
        """Return the fraction of the annotators who drew a boundary through each pixel: float32 (H, W)."""
        return self.boundaries.mean(axis=0, dtype=np.float32)


def read_split(root: str | os.PathLike[str], split: str) -> Iterator[Annotated]:
    """Return all photographs of a split (``train``, ``val`` or ``test``), sorted by name."""
    folder = Path(root) / "images" / split
    paths = sorted(path for path in folder.glob("*") if path.suffix in _SUFFIXES)
    if not paths:
        raise DeepMatchingError(f"There are no photographs in '{folder}'; give the folder of BSDS500 as root.")
    packed = Path(root) / "boundaries" / split
    published = Path(root) / "groundTruth" / split
    if packed.is_dir():
        numbers = _read_numbers(packed / "annotators.txt")
    elif not published.is_dir():
        raise DeepMatchingError(f"There is neither '{packed}' nor '{published}'; one of them must hold the boundaries.")
    for path in paths:
        image = decode_image_file(path, AS_STORED, "photograph")[:, :, ::-1]
        if packed.is_dir():
            boundaries = _read_packed(packed / f"{path.stem}.png", numbers)
        else:
            boundaries = _read_published(published / f"{path.stem}.mat")
        if boundaries.shape[1:] != image.shape[:2]:
            raise DeepMatchingError(f"The boundaries of '{path}' differ from it in size; copy the data set again.")
        yield Annotated(path.stem, image, boundaries)


def _read_numbers(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        return {name: int(number) for name, number in lines}
    except OSError as error:
        raise DeepMatchingError(f"'{path}' (the number of annotators) cannot be read; copy it again.") from error
    except ValueError as error:
        raise DeepMatchingError(f"'{path}' must hold lines of NAME NUMBER; copy the data set again.") from error


def _read_packed(path: Path, numbers: dict[str, int]) -> np.ndarray:
    bits = decode_image_file(path, cv2.IMREAD_UNCHANGED, "boundary map")
    if path.stem not in numbers or bits.dtype != np.uint8 or bits.ndim != 2:
        raise DeepMatchingError(
            f"'{path}' is not 8 bits deep or not listed in annotators.txt; copy the data set again."
        )
    return (bits[None] >> np.arange(numbers[path.stem], dtype=np.uint8)[:, None, None] & 1).astype(bool)


def _read_published(path: Path) -> np.ndarray:
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise DeepMatchingError(
            "Reading the boundaries of the published archive needs SciPy: install scipy."
        ) from error
    try:
        annotations = loadmat(path)["groundTruth"].ravel()
        return np.stack([annotation["Boundaries"][0, 0] > 0 for annotation in annotations])
    except Exception as error:  # SciPy raises many kinds, some of them its own
        raise DeepMatchingError(f"'{path}' is not a ground truth of BSDS500 ({error}); copy it again.") from error
