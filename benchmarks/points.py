"""How far off are points in the second image? Ours beside OpenCV's, at the same points.

    python benchmarks/points.py ../shared/flow/manifest.json ../shared/pairs/manifest.json [--points 300] [--json FILE]

The points are visible pixels with a known flow, drawn at random from each pair. The methods:

* ``ours``: ``DeepMatcher.match_points``; ``ours, sure``: the same, where the confidence is at least 0.5
* ``LK``: ``cv2.calcOpticalFlowPyrLK`` with OpenCV's own parameters
* ``DIS``: OpenCV's dense flow, medium preset
* ``SIFT``: the motion of the nearest SIFT match that starts at most 5 pixels away

Prints two tables: for each data set the median error in pixels and the share of the points within 3 pixels, in %; and
over all pairs, with the 95 % interval of 2,000 bootstrap samples of the pairs. A point without an answer counts as
wrong; ``found`` is the share that has one, and ``right`` is the share of these within 3 pixels. The seconds are those
of the processor, for a pair.
"""

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rich.console import Console
from rich.progress import track

import deepmatching as dm
from deepmatching.data.datasets import Pair
from deepmatching.data.datasets.opening import Manifest
from deepmatching.drawing import to_uint8_rgb
from deepmatching.evaluation.baselines import baseline
from deepmatching.evaluation.report import blank_table, format_number, print_table
from deepmatching.evaluation.results import bootstrap_interval
from deepmatching.settings import MIN_CONFIDENCE, MODEL

METHODS = ("ours", "ours, sure", "LK", "DIS", "SIFT")
LIMITS = (1, 3, 5)  #: errors in pixels
NEAR = 5.0  #: farthest SIFT match whose motion a point takes, in pixels


def sample(pair: Pair, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return visible pixels of the first image (N, 2), at most this many, and where they are in the second."""
    flow = pair.flow.numpy()
    known = np.isfinite(flow).all(axis=2)
    if pair.occluded is not None:
        known &= ~pair.occluded.numpy()
    y, x = np.nonzero(known)
    chosen = np.random.default_rng(0).permutation(len(y))[:count]
    points = np.stack([x, y], axis=1)[chosen].astype(np.float64)
    return points, points + flow[y[chosen], x[chosen]]


def sift(pair: Pair, points: np.ndarray) -> np.ndarray:
    """Return where the nearest SIFT match takes each point; NaN if none is near."""
    start, end, _ = baseline("sift").match(pair.image0, pair.image1).numpy()  # type: ignore[union-attr]
    if not len(start):
        return np.full_like(points, np.nan)
    apart = np.linalg.norm(points[:, None] - start, axis=2)
    nearest = apart.argmin(axis=1)
    moved = points + (end - start)[nearest]
    return np.where(apart.min(axis=1)[:, None] <= NEAR, moved, np.nan)


def lucas_kanade(pair: Pair, points: np.ndarray) -> np.ndarray:
    """Return where OpenCV's pyramidal Lucas-Kanade takes each point; NaN where it has lost it."""
    grey = [cv2.cvtColor(to_uint8_rgb(image), cv2.COLOR_RGB2GRAY) for image in (pair.image0, pair.image1)]
    ends, status, _ = cv2.calcOpticalFlowPyrLK(*grey, points[:, None].astype(np.float32), None)  # type: ignore[call-overload]
    return np.where(status == 1, ends[:, 0], np.nan)


def measure(matcher: dm.DeepMatcher, pair: Pair, count: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the errors of each method at the points of a pair, NaN without an answer, and its processor seconds."""
    points, truth = sample(pair, count)

    def ours() -> dict[str, np.ndarray]:
        found = matcher.match_points(pair.image0, pair.image1, points)
        is_sure = (found.confidence >= MIN_CONFIDENCE)[:, None]
        return {"ours": found.points, "ours, sure": np.where(is_sure, found.points, np.nan)}

    def dis() -> np.ndarray:
        x, y = points.astype(int).T
        return points + baseline("dis").flow(pair.image0, pair.image1)[y, x]  # type: ignore[union-attr]

    others = {"LK": lambda: lucas_kanade(pair, points), "DIS": dis, "SIFT": lambda: sift(pair, points)}
    start = time.process_time()
    ends = ours()
    seconds = {"ours": time.process_time() - start}
    for name, method in others.items():
        start = time.process_time()
        ends[name] = method()
        seconds[name] = time.process_time() - start
    errors = {name: np.linalg.norm(found - truth, axis=1).astype(float).tolist() for name, found in ends.items()}
    return errors, seconds


def median(rows: list[dict[str, Any]], method: str) -> float:
    """Return the median error of all points, NaN if half of them have no answer."""
    middle = float(np.median(np.nan_to_num(np.concatenate([row["errors"][method] for row in rows]), nan=np.inf)))
    return middle if np.isfinite(middle) else np.nan


def shares(rows: list[dict[str, Any]], method: str, limit: float) -> np.ndarray:
    """Return the share of the points of each pair with a smaller error, in %."""
    return np.array([100 * (np.array(row["errors"][method]) < limit).mean() for row in rows])


def show(rows: list[dict[str, Any]]) -> None:
    """Print both tables."""
    table = blank_table(["data set"], ["pairs", *(f"{m}: median, <3 px" for m in METHODS if m != "ours, sure")])
    for group in dict.fromkeys(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == group]
        cells = [
            f"{format_number(median(own, method))}, {shares(own, method, 3).mean():.1f}"
            for method in METHODS
            if method != "ours, sure"
        ]
        table.add_row(group, str(len(own)), *cells)
    print_table(table)
    headings = ["median", *(f"<{limit} px" for limit in LIMITS), "<3 px: 95 %", "found", "right", "seconds"]
    table = blank_table(
        ["method"], headings, f"{len(rows)} pairs, {sum(len(r['errors']['ours']) for r in rows)} points"
    )
    for method in METHODS:
        low, high = bootstrap_interval([shares(rows, method, 3)])
        found = float(shares(rows, method, np.inf).mean())
        right = 100 * shares(rows, method, 3).mean() / found if found else np.nan
        seconds = np.mean([row["seconds"].get(method, np.nan) for row in rows])
        means = [f"{shares(rows, method, limit).mean():.1f}" for limit in LIMITS]
        numbers = [format_number(median(rows, method)), *means, f"{low:.1f} – {high:.1f}"]
        table.add_row(method, *numbers, f"{found:.1f}", format_number(right, 1), format_number(float(seconds)))
    print_table(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifests", type=Path, nargs="+", metavar="MANIFEST")
    parser.add_argument("--points", type=int, default=300, help="points of a pair (default: 300)")
    parser.add_argument("--model", default=MODEL, help=f"name or .safetensors file (default: {MODEL})")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="write the errors of every point to this file")
    options = parser.parse_args()
    matcher, rows = dm.DeepMatcher.from_pretrained(options.model, device=options.device), []
    entries = [entry for path in options.manifests for entry in Manifest(path).entries if entry.flow is not None]
    for entry in track(entries, "points", console=Console(stderr=True)):
        errors, seconds = measure(matcher, entry.read(), options.points)
        if errors["ours"]:  # a pair may have no visible pixel with a known flow
            rows.append({"dataset": entry.group, "pair": entry.name, "errors": errors, "seconds": seconds})
    if options.json:
        options.json.write_text(re.sub(r"\bNaN\b", "null", json.dumps(rows)))
    show(rows)


if __name__ == "__main__":
    main()
