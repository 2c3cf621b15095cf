"""Matched pairs as Arrow tables and Parquet files, for Spark, DuckDB, Ray Data and pandas: the extra ``parquet``.

A pair is a row. ``image0`` and ``image1`` are the names; ``x0``, ``y0``, ``x1``, ``y1``, ``score`` and ``confidence``
are lists with a number for each match; and ``failure`` says why there are none. Positions are in pixels of the upright
images; pixel centres are integers. ``orientation0`` and ``orientation1`` are those of the stored pixels, as in EXIF.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from deepmatching.bulk_matching.storage import MatchedPair, RunFolder
from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, atomic_write, check_suffix

SUFFIXES = (".parquet",)
_ROWS = 512  #: Pairs of a group of rows; a reader takes a group at a time.
_COMPRESSION = "zstd"  #: A part of every pyarrow.


def load_pyarrow() -> Any:
    """Return the module pyarrow; raise if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DeepMatchingError("Arrow and Parquet need pyarrow: install it with pip install pyarrow.") from None
    return pyarrow


def check_parquet_suffix(path: PathLike) -> str:
    """Return the suffix in lower case; raise unless it is Parquet's."""
    return check_suffix(path, SUFFIXES, "table")


def arrow_table(pairs: Sequence[MatchedPair]) -> Any:
    """Return the ``pyarrow.Table`` of matched pairs, a row for each."""
    arrow = load_pyarrow()
    found = [pair.matches for pair in pairs]
    points = [np.stack([m.keypoints0.numpy(), m.keypoints1.numpy()], axis=1) for m in found]  # (N, 2, 2)
    numbers: dict[str, list[np.ndarray | None]] = {
        f"{axis}{side}": [each[:, side, place] for each in points] for side in (0, 1) for place, axis in enumerate("xy")
    }
    numbers["score"] = [matches.scores.numpy() for matches in found]
    numbers["confidence"] = [None if m.confidence is None else m.confidence.numpy() for m in found]
    columns = {f"image{side}": arrow.array([pair.names[side] for pair in pairs], arrow.string()) for side in (0, 1)}
    columns |= {name: _lists(arrow, values) for name, values in numbers.items()}
    for side in (0, 1):
        sizes = [(matches.size0, matches.size1)[side] or (None, None) for matches in found]
        for place, name in enumerate(("height", "width")):
            columns[f"{name}{side}"] = arrow.array([size[place] for size in sizes], arrow.int32())
        columns[f"orientation{side}"] = arrow.array([pair.orientations[side] for pair in pairs], arrow.int8())
    columns["failure"] = arrow.array([pair.failure or None for pair in pairs], arrow.string())
    return arrow.table(columns)


def write_parquet(run: RunFolder, path: PathLike, min_confidence: float | None = None) -> int:
    """Write the finished pairs of a run to a Parquet file; return the number of matches.

    With ``min_confidence``, matches with a lower confidence are left out.
    """
    arrow, count = load_pyarrow(), 0
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        writer = None
        for pairs in _groups(run):
            if min_confidence is not None:
                pairs = [p if p.failure else replace(p, matches=p.matches.filter(min_confidence)) for p in pairs]
            table = arrow_table(pairs)
            writer = writer or arrow.parquet.ParquetWriter(file, table.schema, compression=_COMPRESSION)
            writer.write_table(table)
            count += sum(len(pair.matches) for pair in pairs)
        writer = writer or arrow.parquet.ParquetWriter(file, arrow_table([]).schema)
        writer.close()
    return count


def _groups(run: RunFolder) -> Iterator[list[MatchedPair]]:
    """Yield the finished pairs, some shards at a time."""
    group: list[MatchedPair] = []
    for pairs in chain(map(run.read_shard, sorted(run.done)), [[]]):
        if group and (not pairs or len(group) + len(pairs) > _ROWS):
            yield group
            group = []
        group += pairs


def _lists(arrow: Any, values: Sequence[np.ndarray | None]) -> Any:
    """Return an array of lists of float32; null for None."""
    ends = np.cumsum([0, *(0 if each is None else len(each) for each in values)])
    offsets = arrow.array(ends, arrow.int32(), mask=np.array([*(each is None for each in values), False], bool))
    there = [each for each in values if each is not None]
    joined = np.concatenate(there) if there else np.zeros(0, np.float32)
    return arrow.ListArray.from_arrays(offsets, arrow.array(joined, arrow.float32()))
