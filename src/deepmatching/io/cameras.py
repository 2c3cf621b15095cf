"""Camera matrices, as numbers or in files."""

import os
from typing import Any

import numpy as np

from deepmatching.errors import DeepMatchingError, short_repr
from deepmatching.io.arrays import read_npy
from deepmatching.io.files import PathLike, check_suffix, read_bytes
from deepmatching.io.structured import read_json


def parse_camera(text: str) -> np.ndarray:
    """Return the camera matrix (3, 3) of the text FX,FY,CX,CY, in pixels, or of a file; see :func:`read_camera`."""
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        return read_camera(text)
    if len(numbers) != 4:
        raise DeepMatchingError(f"A camera needs FX,FY,CX,CY or a file with its matrix, not {short_repr(text)}.")
    fx, fy, cx, cy = numbers
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


def read_camera(path: PathLike) -> np.ndarray:
    """Read the camera matrix (3, 3) in a ``.txt`` file (nine numbers), ``.json`` (three rows) or ``.npy``."""
    suffix = check_suffix(path, (".txt", ".json", ".npy"), "camera")
    if suffix == ".npy":
        rows: Any = read_npy(path, "camera file")
    elif suffix == ".json":
        rows = read_json(path, "camera file")
    else:
        rows = read_bytes(path, "camera file").decode("ascii", errors="replace").replace(",", " ").split()
    try:
        numbers = np.asarray(rows, np.float64)
    except (ValueError, TypeError, OverflowError):  # words, or rows of different lengths
        numbers = np.zeros(0)
    if suffix == ".txt" and numbers.shape == (9,):
        numbers = numbers.reshape(3, 3)
    if numbers.shape != (3, 3):
        raise DeepMatchingError(f"'{os.fspath(path)}' does not hold a 3 x 3 camera matrix: write three rows of three.")
    return numbers
