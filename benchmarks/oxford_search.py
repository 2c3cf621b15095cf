"""Search over rotation and scale on pairs with a known homography, such as Oxford's: plain, --search, and SIFT.

    python benchmarks/oxford_search.py pairs.json [--only oxford_affine] [--radius 80] [--cache FOLDER] [--limit N]

acc@2/5/10 in %, as ``deepmatching evaluate`` measures it. Each pair stands with the rotation and the zoom of its true
homography at the centre of the first image. SIFT's matches pass the ratio test (0.8, mutual) and follow the homography
that RANSAC finds (3 px). They count in two ways: as matches, like ours, and as the dense flow of that homography, which
knows that the scene is a plane. "By displacement" is the search without its matches' transformations: a pixel then
takes the displacement of a match as it is, which is wrong in a turned image however exact the matches are.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from rich.table import Table

from deepmatching import DeepMatcher, Matches
from deepmatching.data.datasets.pairs import homography_flow
from deepmatching.evaluation.baselines import baseline
from deepmatching.evaluation.metrics import accuracy, match_metrics
from deepmatching.evaluation.report import print_table
from deepmatching.geometry.homographies import centre, jacobians, rotation_and_zoom
from deepmatching.io.images import load_image, size_of
from deepmatching.settings import RADIUS, THRESHOLDS

METHODS = ("plain", "search", "by displacement", "SIFT matches", "SIFT homography")

Accuracy = tuple[float, ...]  # at each of THRESHOLDS, in %


def sift(image0: torch.Tensor, image1: torch.Tensor) -> tuple[Matches, np.ndarray]:
    """Return SIFT's matches that follow one homography, and the flow of that homography; NaN if there is none."""
    matches = baseline("sift").match(image0, image1)
    start, end, _ = matches.numpy()
    flow = np.full((*size_of(image0), 2), np.nan, np.float32)
    found = cv2.findHomography(start, end, cv2.RANSAC, 3.0) if len(matches) >= 4 else (None, None)
    if found[0] is None:
        return matches[:0], flow
    return matches[torch.from_numpy(found[1].ravel() > 0)], homography_flow(
        found[0], *size_of(image0), *size_of(image1)
    )


def of_matches(matches: Matches, truth: np.ndarray) -> Accuracy:
    metrics = match_metrics(matches, truth)[0]["all"]
    return tuple(metrics[f"acc@{threshold}"] for threshold in THRESHOLDS)


def measure(entry: dict[str, str], folder: Path, plain: DeepMatcher, search: DeepMatcher) -> dict[str, Any]:
    """All that the table shows about a pair; processor time in seconds."""
    image0, image1 = (load_image(folder / entry[name]) for name in ("image0", "image1"))
    homography = np.loadtxt(folder / entry["homography"])
    truth = homography_flow(homography, *size_of(image0), *size_of(image1))
    rotation, zoom = rotation_and_zoom(jacobians(homography, centre(size_of(image0))[None])[0])

    def timed(match: Callable[..., Matches]) -> tuple[Matches, float]:
        start = time.process_time()
        return match(image0, image1), time.process_time() - start

    (upright, seconds), (searched, search_seconds) = timed(plain.match), timed(search.match)
    follow, flow = sift(image0, image1)
    dense = accuracy(flow, truth, THRESHOLDS)
    return {
        "name": f"{entry.get('scene', '')} {Path(entry['image1']).stem}",
        "rotation": rotation,
        "zoom": zoom,
        "seconds": [seconds, search_seconds],
        "plain": of_matches(upright, truth),
        "search": of_matches(searched, truth),
        "by displacement": of_matches(replace(searched, transformation=None, transformations=None), truth),
        "SIFT matches": of_matches(follow, truth),
        "SIFT homography": tuple(100 * dense[threshold] for threshold in THRESHOLDS),
    }


def shown(values: Any) -> str:
    return " ".join(f"{value:5.1f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, help="a .json list of pairs; those with a homography count")
    parser.add_argument("--only", help="only the pairs of this 'dataset'")
    parser.add_argument("--radius", type=int, default=RADIUS)
    parser.add_argument("--limit", type=int, help="only the first pairs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="folder for the result of each pair, which is not computed again")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    cv2.setNumThreads(arguments.threads)

    listed = json.loads(arguments.pairs.read_text(encoding="utf-8"))
    entries = [entry for entry in listed if "homography" in entry and arguments.only in (None, entry.get("dataset"))]
    plain = DeepMatcher.from_pretrained(radius=arguments.radius)
    search = DeepMatcher.from_pretrained(radius=arguments.radius, search=True)
    results = []
    for number, entry in enumerate(entries[: arguments.limit]):
        cached = None if arguments.cache is None else arguments.cache / f"{number}.json"
        if cached is None or not cached.is_file():
            result = measure(entry, arguments.pairs.parent, plain, search)
            if cached is not None:
                cached.parent.mkdir(parents=True, exist_ok=True)
                cached.write_text(json.dumps(result), encoding="utf-8")
        else:
            result = json.loads(cached.read_text(encoding="utf-8"))
        results.append(result)

    table = Table("pair", "rotation", "zoom", *METHODS, "time", title="acc@2/5/10 in %; time of search / plain")
    for result in results:
        methods = [shown(result[method]) for method in METHODS]
        ratio = result["seconds"][1] / result["seconds"][0]
        table.add_row(result["name"], f"{result['rotation']:.0f}", f"{result['zoom']:.2f}", *methods, f"{ratio:.1f}")
    halves = {"even numbers": results[::2], "odd numbers": results[1::2], "all": results}
    for name, half in halves.items():
        if half:
            means = [shown(np.mean([result[method] for result in half], axis=0)) for method in METHODS]
            seconds = np.sum([result["seconds"] for result in half], axis=0)
            table.add_row(name, "", "", *means, f"{seconds[1] / seconds[0]:.1f}")
    print_table(table)


if __name__ == "__main__":
    main()
