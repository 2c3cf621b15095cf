"""Accuracy of the matches on pairs with ground truth, as the paper measures it.

    python benchmarks/accuracy.py MANIFEST.json [--model hog] [--radius 80] [--dataset sintel_clean …] [--json FILE]

The manifest is a list of {"dataset", "image0", "image1", "flow" or "homography"} with paths relative to it. Every
pixel with ground truth takes the displacement of the most confident match within an L∞ radius of 8 pixels;
acc@T is the share of pixels off by at most T pixels, and no match counts as wrong. Means over pairs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import deepmatching as dm
from deepmatching.flow_files import read_flow
from deepmatching.images import load_image
from deepmatching.metrics import accuracy, coverage, endpoint_error_of_matches, homography_flow, propagate

THRESHOLDS = (2, 5, 10)


def ground_truth(entry: dict[str, str], root: Path) -> np.ndarray:
    """(rows, columns, 2) displacement, NaN where unknown."""
    if "flow" in entry:
        return read_flow(root / entry["flow"])
    sizes = [tuple(load_image(root / entry[name]).shape[1:]) for name in ("image0", "image1")]
    return homography_flow(np.loadtxt(root / entry["homography"]), *sizes[0], *sizes[1])


def evaluate(matcher: dm.DeepMatcher, entry: dict[str, str], root: Path) -> dict[str, float]:
    """The figures of one pair."""
    start = time.perf_counter()
    matches = matcher.match(root / entry["image0"], root / entry["image1"])
    seconds = time.perf_counter() - start
    keypoints0, keypoints1, scores = matches.numpy()
    truth = ground_truth(entry, root)
    field = propagate(keypoints0, keypoints1, scores, *truth.shape[:2])
    shares = accuracy(field, truth, THRESHOLDS)
    return {
        **{f"acc@{t}": 100 * float(shares[t]) for t in THRESHOLDS},
        "EPE (matches)": endpoint_error_of_matches(keypoints0, keypoints1, truth),
        "coverage": 100 * coverage(field),
        "matches": float(len(matches)),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--model", default="hog")
    parser.add_argument("--radius", default="80", help="pixels, or 'full'")
    parser.add_argument("--reciprocal", default="bins")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--half", action="store_true", help="half precision (CUDA)")
    parser.add_argument("--dataset", action="append", help="only these; may be repeated")
    parser.add_argument("--json", type=Path, help="write the figures of every pair")
    options = parser.parse_args()

    entries = [
        entry
        for entry in json.loads(options.manifest.read_text())
        if not options.dataset or entry["dataset"] in options.dataset
    ]
    radius = "full" if options.radius == "full" else int(options.radius)
    matcher = dm.DeepMatcher.from_pretrained(
        options.model, radius=radius, reciprocal=options.reciprocal, device=options.device, half=options.half
    )
    figures: dict[str, list[dict[str, float]]] = defaultdict(list)
    every = []
    for entry in track(entries, description="matching", console=Console(stderr=True)):
        result = evaluate(matcher, entry, options.manifest.parent)
        figures[entry["dataset"]].append(result)
        every.append({**entry, **result})
    if options.json:
        options.json.write_text(json.dumps(every, indent=1))

    names = list(next(iter(figures.values()))[0])
    table = Table("data set", "pairs", *names, title=f"{options.model}, radius {options.radius}")
    for dataset, rows in figures.items():
        means = [np.mean([row[name] for row in rows]) for name in names]
        table.add_row(dataset, str(len(rows)), *(f"{mean:.2f}" for mean in means))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
