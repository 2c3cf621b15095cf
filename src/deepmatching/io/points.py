"""Points of an image: checked, read from files, and written with where they went.

Positions are in pixels, and pixel centres are integers, in all of these files.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from deepmatching.errors import DeepMatchingError, short_repr
from deepmatching.io.arrays import read_npy, unmasked
from deepmatching.io.files import PathLike, atomic_write, check_suffix, read_bytes

AddRows: TypeAlias = Callable[[Iterable[Sequence[float]]], None]


def check_points(points: Any, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return points (N, 2), x and y, as float64; raise unless they are finite and in an image of this size."""
    try:
        array = points.detach().cpu().numpy() if isinstance(points, Tensor) else unmasked(points, "points")
        if np.iscomplexobj(array):
            raise TypeError
        places = np.asarray(array, np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, DeepMatchingError):
            raise
        raise DeepMatchingError(f"points must be an array (N, 2) of x and y, not {short_repr(points)}.") from None
    if places.ndim != 2 or places.shape[1] != 2 or not len(places):
        raise DeepMatchingError(f"points must be an array (N, 2) of x and y, not of shape {places.shape}.")
    sides = (np.inf, np.inf) if size is None else size[::-1]
    bad = (
        ~np.isfinite(places).all(axis=1) | (places < -0.5).any(axis=1) | (places > np.subtract(sides, 0.5)).any(axis=1)
    )
    if bad.any():
        place = "an image" if size is None else f"the first image of {size[1]}x{size[0]} pixels"
        x, y = places[bad.argmax()]
        raise DeepMatchingError(f"The point ({x:g}, {y:g}) is not in {place}: choose one inside.")
    return places


def read_points(path: PathLike) -> np.ndarray:
    """Read points (N, 2): a line "x y" each in ``.txt``, "x,y" in ``.csv``, or an array (N, 2) in ``.npy``.

    More columns are ignored. A ``.csv`` may begin with a line of names; then the columns ``x`` and ``y`` count.
    """
    if check_suffix(path, (".txt", ".csv", ".npy"), "points") == ".npy":
        return check_points(read_npy(path, "points file"))
    text = read_bytes(path, "points file").decode("utf-8-sig", errors="replace")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    rows = [line.replace(",", " ").replace(";", " ").split() for line in lines]
    columns = [0, 1]
    if rows and {"x", "y"} <= set(names := [name.strip("\"'").lower() for name in rows[0]]):
        columns, rows = [names.index("x"), names.index("y")], rows[1:]
    try:
        places = [[float(row[column]) for column in columns] for row in rows]
    except (ValueError, IndexError):
        problem = "each line must begin with two numbers, x and y"
        raise DeepMatchingError(f"'{os.fspath(path)}' is not a readable points file: {problem}.") from None
    if not places:
        raise DeepMatchingError(f"'{os.fspath(path)}' holds no points: write a line with x and y for each.")
    return check_points(places)


def check_table_suffix(path: PathLike) -> str:
    """Return the suffix in lower case; raise unless it names a format for where points went."""
    return check_suffix(path, (".txt", ".csv", ".json"), "points")


@contextmanager
def open_table(path: PathLike, columns: Sequence[str]) -> Iterator[AddRows]:
    """Write numbers as ``.txt`` (spaces between them), ``.csv`` with a line of names, or ``.json``, by the suffix.

    The block gets a function that writes rows. Nothing is at ``path`` until the block has ended well.
    """
    suffix = check_table_suffix(path)
    names = f'{{"format": "points", "columns": {json.dumps(list(columns))}, "points": ['
    separator, before = ", " if suffix == ".json" else "," if suffix == ".csv" else " ", ""
    with atomic_write(path) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as file:

        def add(rows: Iterable[Sequence[float]]) -> None:
            nonlocal before
            for line in _lines(rows, separator):
                file.write(f"{before}\n  [{line}]" if suffix == ".json" else f"{line}\n")
                before = ","

        file.write({".json": names, ".csv": ",".join(columns) + "\n"}.get(suffix, ""))
        yield add
        file.write("\n]}\n" if suffix == ".json" else "")


def write_table(path: PathLike, columns: Sequence[str], rows: Iterable[Sequence[float]]) -> None:
    """Write rows of numbers; see :func:`open_table`."""
    with open_table(path, columns) as add:
        add(rows)


def as_text(rows: Iterable[Sequence[float]]) -> str:
    """Return a line for each row, with spaces between the numbers."""
    return "".join(f"{line}\n" for line in _lines(rows, " "))


def _lines(rows: Iterable[Sequence[float]], separator: str) -> Iterator[str]:
    return (separator.join(f"{value:.7g}" for value in row) for row in rows)
