"""The flow on a GPU: time of each stage and of the whole, and how far it is from the flow on the CPU.

    PYTHONPATH=src python benchmarks/gpu_flow.py A B [--model compact] [--preset default] [--repeats 20] [--json FILE]

Stages are replayed as CUDA graphs and timed by CUDA events. "whole" is the wall-clock time of ``DeepMatcher.flow`` from
two tensors on the GPU until flow and confidence are there; "host" is how long the call itself takes. Medians.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import deepmatching as dm
from deepmatching.flow import FlowSettings, preset
from deepmatching.flow.confidence import probability
from deepmatching.flow.edges import edge_strength
from deepmatching.flow.filters import MatchTensors
from deepmatching.flow.interpolation import sparse_to_dense
from deepmatching.flow.operators.geodesic import FLOOR, cell_graph, distance_transform, nearest_seeds
from deepmatching.flow.refinement import refine_finite
from deepmatching.io.images import load_image
from deepmatching.kernels.cuda_graphs import record
from deepmatching.settings import MODEL, PRESET
from gpu_kernels import milliseconds, require_cuda


class Stages:
    """The times of stages in milliseconds, in order."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.times: dict[str, float] = {}

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """Time some work on the GPU; returns its result."""
        graph, result = record(work)
        self.times[name] = milliseconds(graph.replay, self.repeats)
        return result

    def whole(self, work: Callable[[], Any]) -> Any:
        """Time what users call, after it was recorded; returns its result."""
        calls, walls = [], []
        result = None
        for n in range(self.repeats + 4):
            torch.cuda.synchronize()
            start = time.perf_counter()
            result = work()
            called = time.perf_counter()
            torch.cuda.synchronize()
            if n >= 4:
                calls.append(called - start)
                walls.append(time.perf_counter() - start)
        self.times["whole"], self.times["host"] = (1000 * statistics.median(times) for times in (walls, calls))
        return result


@torch.no_grad()
def measure(images: list[torch.Tensor], model: str, settings: FlowSettings, stages: Stages) -> dict[str, float]:
    """Time the stages; returns the differences from the CPU."""
    image0, image1 = images
    matcher = dm.DeepMatcher.from_pretrained(model, device="cuda")
    found = stages.whole(lambda: matcher.flow(image0, image1, settings))
    network = matcher.for_flow().network
    size = image0.shape[1], image0.shape[2]
    geometry, exponents = network.geometry(size, size), network.exponents.tolist()

    cells0, cells1 = stages("descriptors", lambda: network.describe(image0[None], image1[None], geometry))
    forward = stages(
        "matching, one direction", lambda: network.decode_descriptors(cells0, cells1, geometry, exponents=exponents)
    )
    backward = network.decode_descriptors(cells1, cells0, geometry, exponents=exponents)
    edges = stages("edges", lambda: edge_strength(image0))
    fields = (
        MatchTensors.of_decoded(forward),
        MatchTensors.of_decoded(backward) if settings.interpolation.backward else None,
    )
    interpolated = stages(
        "interpolation", lambda: sparse_to_dense(fields[0], edges, image0, fields[1], settings.interpolation)
    )
    cost, pixels = edges**settings.interpolation.contrast + FLOOR, (fields[0].points0 + 0.5).floor().long()
    counts = interpolated.counts
    distance, label = stages("  geodesic distances, once", lambda: distance_transform(cost, pixels, counts))
    graph = stages("  graph of cells, once", lambda: cell_graph(distance, label, len(pixels)))
    stages("  nearest matches", lambda: nearest_seeds(graph, settings.interpolation.neighbours))
    flow = stages("refinement", lambda: refine_finite(interpolated.flow, image0, image1, settings.refinement))
    stages("confidence", lambda: probability(flow, interpolated.source, image0, image1, forward.unmatched(0)))

    expected = dm.DeepMatcher.from_pretrained(model, device="cpu").flow(image0.cpu(), image1.cpu(), settings)
    difference = np.hypot(*np.moveaxis(found.flow - expected.flow, 2, 0))
    return {
        "mean difference from the CPU, px": float(difference.mean()),
        "pixels that differ by more than 0.1 px, %": float(100 * (difference > 0.1).mean()),
        "matches": found.matches,
        "matches on the CPU": expected.matches,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs=2, metavar=("A", "B"))
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    require_cuda()
    stages = Stages(options.repeats)
    images = [load_image(path).cuda() for path in options.images]
    differences = measure(images, options.model, preset(options.preset), stages)
    table = Table("stage", "ms", title=torch.cuda.get_device_name())
    for name, value in stages.times.items():
        table.add_row(name, f"{value:.2f}")
    Console().print(table)
    for name, value in differences.items():
        print(f"{name}: {value:.3g}")
    if options.json:
        options.json.write_text(json.dumps({"ms": stages.times, **differences}, indent=1))


if __name__ == "__main__":
    main()
