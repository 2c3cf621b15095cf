"""Arrays for the browser: one block of bytes with a header in JSON, and smaller versions for a page in one file.

A block is the length of the header (4 bytes, little endian), the header, and the arrays, each at a multiple of 4 bytes
after the header. The header has ``meta``, and of every array its ``name``, ``dtype``, ``shape`` and ``offset``.

An array can be packed in fewer bits. The header then says how to read it: ``step`` for integers to be multiplied, or
``low`` and ``high`` for bytes of which 0 is −∞ and 1 … 255 go from ``low`` to ``high``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

#: The types that JavaScript has arrays for.
DTYPES = ("uint8", "int16", "float32")


@dataclass(frozen=True, eq=False)
class Packed:
    """An array in fewer bits, and how to read it."""

    array: np.ndarray
    reading: dict[str, float]


def pack(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray | Packed | None]) -> bytes:
    """One block; arrays that are None are left out."""
    entries, parts, offset = [], [], 0
    for name, value in arrays.items():
        if value is None:
            continue
        array, reading = (value.array, value.reading) if isinstance(value, Packed) else (value, {})
        if array.dtype.name not in DTYPES:
            raise TypeError(f"{name} is {array.dtype}, but only {', '.join(DTYPES)} can be packed")
        data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
        data += bytes(-len(data) % 4)
        entries.append({"name": name, "dtype": array.dtype.name, "shape": array.shape, "offset": offset, **reading})
        parts.append(data)
        offset += len(data)
    header = json.dumps({"meta": meta, "arrays": entries}, allow_nan=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 4)
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])


def unpack(block: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The meta and the arrays of a block, as the page reads them."""
    length = int.from_bytes(block[:4], "little")
    header = json.loads(block[4 : 4 + length])
    arrays = {}
    for entry in header["arrays"]:
        dtype, count = np.dtype(entry["dtype"]), int(np.prod(entry["shape"], dtype=np.int64))
        array = np.frombuffer(block, dtype.newbyteorder("<"), count, 4 + length + entry["offset"])
        array = array.reshape(entry["shape"]).astype(dtype)
        if "step" in entry:
            array = array.astype(np.float32) * np.float32(entry["step"])
        elif "low" in entry:
            scale = (entry["high"] - entry["low"]) / 254
            array = np.where(array == 0, -np.inf, entry["low"] + (array.astype(np.float64) - 1) * scale)
        arrays[entry["name"]] = array.astype(np.float32) if "low" in entry else array
    return header["meta"], arrays


def in_bytes(scores: np.ndarray) -> Packed:
    """A score map in bytes, 255 levels between its lowest and its highest score; −∞ stays −∞."""
    known = np.isfinite(scores)
    low, high = (float(scores[known].min()), float(scores[known].max())) if known.any() else (0.0, 0.0)
    scale = 254 / (high - low) if high > low else 0.0
    levels = np.rint((np.where(known, scores, low).astype(np.float64) - low) * scale) + 1  # the scale may be huge
    return Packed(np.where(known, levels, 0).astype(np.uint8), {"low": low, "high": high})


def in_steps(values: np.ndarray, most: int = 32767) -> Packed:
    """Values in 16 bits, in steps of 1/32, or larger ones if they would not fit."""
    largest = float(np.abs(values).max()) if values.size else 0.0
    step = max(1 / 32, largest / most)
    return Packed(np.rint(values / step).astype(np.int16), {"step": step})


def fractions(values: np.ndarray) -> Packed:
    """Values in [0, 1] as 0 … 255."""
    return Packed(np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8), {"step": 1 / 255})
