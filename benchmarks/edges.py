"""Edges against the boundaries that people drew: ODS, OIS and average precision on BSDS500.

    PYTHONPATH=tools python benchmarks/edges.py BSDS500 [--model edges.safetensors …] [--forest model.yml.gz]

The network is compared with detectors that need no model (Sobel, Canny, the gradient) and with people: each annotator
against the others. ``edge_network.evaluation`` describes the protocol and where it differs from the original.
"""

import argparse
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from deepmatching.evaluation.report import print_table
from deepmatching.flow.edges import (
    EdgeNetwork,
    detect_edges,
    gradient_edges,
    load_edge_network,
    structured_forest_edges,
)
from deepmatching.io.images import load_image
from edge_network.bsds import Annotated, read_split
from edge_network.evaluation import TOLERANCE, count_pixels, summarise, suppress_non_maxima

Detector = Callable[[np.ndarray], np.ndarray]  # uint8 RGB → ridges (H, W) in [0, 1]


def sobel(image: np.ndarray) -> np.ndarray:
    """Return the gradient magnitude of the grey picture, unsmoothed."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
    return np.minimum(np.hypot(cv2.Sobel(grey, -1, 1, 0), cv2.Sobel(grey, -1, 0, 1)) / 1000, 1)


def canny(image: np.ndarray, levels: int = 60) -> np.ndarray:
    """Return the highest threshold at which Canny's detector (σ = 2) keeps a pixel, as a fraction of all thresholds."""
    grey = cv2.GaussianBlur(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (0, 0), 2.0)
    edges = np.zeros(grey.shape, np.float32)
    for level in range(levels):
        high = 5 * (level + 1)
        edges[cv2.Canny(grey, 0.4 * high, high, L2gradient=True) > 0] = (level + 1) / levels
    return edges


def ridges_of(network: EdgeNetwork, image: np.ndarray) -> np.ndarray:
    return suppress_non_maxima(detect_edges(load_image(image), network))


def detectors(models: list[str], forest: Path | None) -> dict[str, Detector]:
    """Return the detectors to compare, by name."""
    chosen: dict[str, Detector] = {
        "Sobel": lambda image: suppress_non_maxima(sobel(image)),
        "Canny": canny,  # thin already
        "gradient_edges": lambda image: suppress_non_maxima(gradient_edges(load_image(image))),
    }
    for model in models:
        network = load_edge_network(None if model == "shipped" else model)
        chosen[f"network ({model})"] = functools.partial(ridges_of, network)
    if forest:
        chosen["structured forest"] = lambda image: suppress_non_maxima(
            structured_forest_edges(load_image(image), forest)
        )
    return chosen


def count_people(photograph: Annotated, tolerance: float) -> np.ndarray:
    """Count (1, 4) pixels of every annotator's map against those of the others."""
    everyone = range(len(photograph.boundaries))
    counts = [
        count_pixels(photograph.boundaries[k], np.delete(photograph.boundaries, k, 0), np.array([0.5]), tolerance)
        for k in everyone
    ]
    return np.sum(counts, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--model", nargs="*", default=["shipped"], help="files, or 'shipped'")
    parser.add_argument("--forest", type=Path, help="OpenCV's structured-forest model")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, help="largest number of photographs, evenly chosen")
    parser.add_argument("--thresholds", type=int, default=33)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="fraction of the diagonal")
    parser.add_argument("--only-models", action="store_true", help="leave out detectors without a model")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    photographs = list(read_split(options.root, options.split))
    if options.limit:
        photographs = photographs[:: max(1, len(photographs) // options.limit)][: options.limit]
    thresholds = np.arange(1, options.thresholds + 1) / (options.thresholds + 1)
    chosen = detectors(options.model, options.forest)
    if options.only_models:
        chosen = {
            name: detector for name, detector in chosen.items() if name not in ("Sobel", "Canny", "gradient_edges")
        }
    table = Table(
        *("detector", "ODS", "OIS", "AP", "threshold", "minutes"),
        title=f"{options.split}, {len(photographs)} photographs",
    )
    with Progress(console=Console(stderr=True)) as progress, ThreadPoolExecutor(options.workers) as pool:
        for name, detector in chosen.items():
            start = time.perf_counter()
            maps = [detector(photograph.image) for photograph in photographs]
            jobs = pool.map(
                lambda edges, photograph: count_pixels(edges, photograph.boundaries, thresholds, options.tolerance),
                maps,
                photographs,
            )
            counts = np.stack(list(progress.track(jobs, len(photographs), description=escape(name))))
            scores = summarise(counts, thresholds)
            minutes = (time.perf_counter() - start) / 60
            table.add_row(
                name,
                *(f"{value:.3f}" for value in (scores.ods, scores.ois, scores.ap, scores.threshold)),
                f"{minutes:.1f}",
            )
        if not options.only_models:
            jobs = pool.map(lambda photograph: count_people(photograph, options.tolerance), photographs)
            people = np.stack(list(progress.track(jobs, len(photographs), description="people")))
            scores = summarise(people, np.array([0.5]))
            table.add_row("people", f"{scores.ods:.3f}", f"{scores.ois:.3f}", "", "", "")
    print_table(table)


if __name__ == "__main__":
    main()
