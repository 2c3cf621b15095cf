"""What the page shows, as blocks of bytes: the grid of matches, the dense layers and the maps of a point.

A block is the length of the header (4 bytes, little endian), the header in JSON, and the arrays, each at a multiple of
4 bytes after the header. The header has ``meta``, and of every array its ``name``, ``dtype``, ``shape`` and ``offset``.

An array can be packed in fewer bits. The header then says how to read it: ``step`` for integers to be multiplied, or
``low`` and ``high`` for bytes: 0 is −∞, and 1 … 255 go from ``low`` to ``high``.

Positions are pixel corners: x = 0 is the left border of the picture. The page subtracts half a pixel from what it
prints, as everywhere in this package.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from deepmatching import __version__
from deepmatching.explorer.results import Result
from deepmatching.geometry.discretization import CORNERS
from deepmatching.network.inspection import Inspection

DTYPES = ("uint8", "int16", "float32")  #: The types that JavaScript has arrays for.


class Packed(NamedTuple):
    """An array in fewer bits, and how to read it."""

    array: np.ndarray
    reading: dict[str, float]


Arrays = dict[str, np.ndarray | Packed | None]


def pack(meta: Mapping[str, Any], arrays: Arrays) -> bytes:
    """Return one block; arrays that are None are left out."""
    entries, parts, offset = [], [], 0
    for name, value in arrays.items():
        if value is None:
            continue
        array, reading = value if isinstance(value, Packed) else (value, {})
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


def in_bytes(scores: np.ndarray) -> Packed:
    """Return a score map in bytes, 255 levels between its lowest and its highest score; −∞ stays −∞."""
    known = np.isfinite(scores)
    low, high = (float(reduce(scores[known])) if known.any() else 0.0 for reduce in (np.min, np.max))
    scale = 254 / (high - low) if high > low else 0.0
    levels = np.rint((np.where(known, scores, low).astype(np.float64) - low) * scale) + 1  # the scale may be huge
    return Packed(np.where(known, levels, 0).astype(np.uint8), {"low": low, "high": high})


def in_steps(values: np.ndarray, largest_integer: int = 32767) -> Packed:
    """Return values in 16 bits, in steps of 1/32, or larger ones if they would not fit."""
    largest = float(np.abs(values).max()) if values.size else 0.0
    step = max(1 / 32, largest / largest_integer)
    return Packed(np.rint(values / step).astype(np.int16), {"step": step})


def in_fractions(values: np.ndarray) -> Packed:
    """Return values in [0, 1] as 0 … 255."""
    return Packed(np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8), {"step": 1 / 255})


def facts(result: Result) -> dict[str, Any]:
    """Return the facts of a run: its settings, its geometry and what it found."""
    geometry, matches = result.geometry, result.matches
    length = matches.displacements.norm(dim=1).numpy()
    return {
        "version": __version__,
        "settings": asdict(result.settings),
        "geometry": {
            **{name: getattr(geometry, name) for name in ("alpha", "beta", "gamma", "delta")},
            **{"grid": geometry.grid(0), "levels": geometry.L, "reach": geometry.pool_reach, "corners": CORNERS},
        },
        "matches": len(matches),
        "median": float(np.median(length)) if len(length) else 0.0,
        "largest": float(length.max()) if len(length) else 0.0,
        "judged": matches.confidence is not None,
        "searched": result.is_searched,
        "no_maps": result.no_maps,
        "notes": result.notes,
        "warning": result.warning,
        "flow": result.flow is not None,
        "no_flow": result.no_flow,
        "seconds": {name: round(value, 4) for name, value in result.seconds.items()},
    }


def grid(result: Result) -> bytes:
    """Return the match of every reference point."""
    decoded = result.decoded
    scores = decoded.scores[0].numpy()
    flags = np.isfinite(scores).astype(np.uint8) + 2 * result.kept.astype(np.uint8)
    flags += 4 * decoded.verified[0].numpy().astype(np.uint8)
    arrays: Arrays = {
        "points0": decoded.points0.numpy().astype(np.float32),
        "points1": decoded.points1[0].numpy(),
        "scores": np.where(np.isfinite(scores), scores, 0).astype(np.float32),
        "flags": flags,
        "confidence": None if decoded.confidence is None else decoded.confidence[0].numpy(),
        "hidden": None if decoded.occluded is None else decoded.occluded[0].numpy(),
    }
    return pack({}, arrays)


def layers(result: Result, small: bool = False) -> bytes:
    """Return flow, confidence, occlusion and edges of every pixel of the first image; in fewer bits if ``small``."""
    flow = result.flow
    arrays: Arrays = {"edges": None if result.edges is None else in_fractions(result.edges)}
    if flow is not None:
        arrays["flow"] = in_steps(flow.flow) if small else flow.flow.astype(np.float32)
        arrays["confidence"] = in_fractions(flow.confidence)
        arrays["occlusion"] = None if flow.occlusion is None else in_fractions(flow.occlusion)
    return pack({}, arrays)


def point(inspection: Inspection, small: bool = False) -> bytes:
    """Return the maps, the path and the quadtree of a reference point; maps in bytes if ``small``."""
    arrays: Arrays = {"tree": inspection.tree}
    for item in inspection.maps:
        for letter, scores in (("S", item.S), ("Q", item.Q)):
            arrays[f"{letter}{item.level}"] = in_bytes(scores) if small else scores.astype(np.float32)
    meta = {
        "index": inspection.index,
        "path": [asdict(step) for step in inspection.path],
        "second": None if inspection.second is None else asdict(inspection.second),
        "maps": [{name: getattr(item, name) for name in ("level", "p", "first", "step")} for item in inspection.maps],
    }
    return pack(meta, arrays)
