"""What the page shows, as blocks of arrays: the grid of matches, the dense layers and the maps of a point.

Positions are pixel corners: x = 0 is the left border of the picture. The page subtracts half a pixel from what it
prints, as everywhere in this package.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from deepmatching import __version__
from deepmatching.explorer.packing import Packed, fractions, in_bytes, in_steps, pack
from deepmatching.explorer.results import Result
from deepmatching.geometry.discretization import CORNERS
from deepmatching.network.inspection import Inspection, Step


def about(result: Result) -> dict[str, Any]:
    """The facts of a run: its settings, its geometry and what it found."""
    geometry, matches = result.geometry, result.matches
    length = matches.displacements.norm(dim=1).numpy()
    return {
        "version": __version__,
        "settings": result.choice.about(),
        "geometry": {
            "grid": list(geometry.grid(0)),
            "alpha": geometry.alpha,
            "beta": geometry.beta,
            "gamma": geometry.gamma,
            "delta": geometry.delta,
            "levels": geometry.L,
            "reach": geometry.pool_reach,
            "corners": [list(corner) for corner in CORNERS],
        },
        "matches": len(matches),
        "median": float(np.median(length)) if len(length) else 0.0,
        "largest": float(length.max()) if len(length) else 0.0,
        "judged": result.decoded.confidence is not None,
        "flow": result.flow is not None,
        "no_flow": result.no_flow,
        "seconds": {name: round(value, 4) for name, value in result.seconds.items()},
    }


def grid(result: Result) -> bytes:
    """The match of every reference point."""
    decoded = result.decoded
    scores = decoded.scores[0].numpy()
    flags = np.isfinite(scores).astype(np.uint8) + 2 * result.kept.astype(np.uint8)
    flags += 4 * decoded.verified[0].numpy().astype(np.uint8)
    arrays: dict[str, np.ndarray | Packed | None] = {
        "points1": decoded.points1[0].numpy(),
        "scores": np.where(np.isfinite(scores), scores, 0).astype(np.float32),
        "flags": flags,
        "confidence": None if decoded.confidence is None else decoded.confidence[0].numpy(),
        "hidden": None if decoded.occluded is None else decoded.occluded[0].numpy(),
    }
    return pack({}, arrays)


def layers(result: Result, small: bool = False) -> bytes:
    """Flow, confidence, occlusion and edges of every pixel of the first image; in fewer bits if ``small``."""
    flow = result.flow
    arrays: dict[str, np.ndarray | Packed | None] = {"edges": None if result.edges is None else fractions(result.edges)}
    if flow is not None:
        arrays["flow"] = in_steps(flow.flow) if small else flow.flow.astype(np.float32)
        arrays["confidence"] = fractions(flow.confidence)
        arrays["occlusion"] = None if flow.occlusion is None else fractions(flow.occlusion)
    return pack({}, arrays)


def point(inspection: Inspection, small: bool = False) -> bytes:
    """The maps, the path and the quadtree of a reference point; maps in bytes if ``small``."""
    arrays: dict[str, np.ndarray | Packed | None] = {"tree": inspection.tree}
    for item in inspection.maps:
        for letter, scores in (("S", item.S), ("Q", item.Q)):
            arrays[f"{letter}{item.level}"] = in_bytes(scores) if small else scores.astype(np.float32)
    meta = {
        "index": inspection.index,
        "path": [_step(step) for step in inspection.path],
        "second": None if inspection.second is None else _step(inspection.second),
        "maps": [
            {"level": item.level, "p": item.p, "first": item.first, "step": item.step} for item in inspection.maps
        ],
    }
    return pack(meta, arrays)


def _step(step: Step) -> dict[str, Any]:
    return asdict(step)
