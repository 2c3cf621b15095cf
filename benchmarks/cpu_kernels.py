"""Time and memory of matching on the CPU, stage by stage.

    python benchmarks/cpu_kernels.py a.png b.png [--radius 80 | --full] [--threads 2] [--runs 10] [--plain]

Prints the minimum and the median of several runs after a first one, and the highest memory above that after imports.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import cv2
import torch
from torch import Tensor

from deepmatching import network as network_module
from deepmatching.descriptors.hog import HOG
from deepmatching.network import Network
from deepmatching.operators import cpu
from deepmatching.operators.kernels import plain_operators

STAGES = (
    "correlate_and_pool",
    "aggregate_and_pool",
    "aggregate",
    "disaggregate",
    "unpool_and_disaggregate",
    "best_pooled",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs=2)
    parser.add_argument("--radius", type=int, default=80)
    parser.add_argument("--full", action="store_true", help="no radius")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--size", type=int, nargs=2, metavar=("WIDTH", "HEIGHT"), help="resize the images first")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--plain", action="store_true", help="the plain operators instead of the kernels")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    images = [read(path, options.size) for path in options.images]
    matcher = Network(HOG(options.downscale), radius=None if options.full else options.radius)
    memory = peak_memory()
    on_disk = cpu.compiled()
    with plain_operators() if options.plain else nullcontext():
        started = time.perf_counter()
        decoded = matcher.decode(images[0], images[1])
        first = time.perf_counter() - started
        times = stage_times(matcher, images, options.runs)

    print(f"{'stage':<36}{'min ms':>10}{'median ms':>12}")
    for stage, seconds in times.items():
        print(f"{stage:<36}{1000 * min(seconds):>10.1f}{1000 * statistics.median(seconds):>12.1f}")
    print(f"first run {first:.2f} s (kernels {'were' if on_disk else 'not'} on disk)")
    print(f"peak memory above imports and images {(peak_memory() - memory) / 2**20:.0f} MiB")
    print(f"{int(decoded.verified.sum())} verified matches, {options.threads} threads")


def stage_times(matcher: Network, images: list[Tensor], runs: int) -> dict[str, list[float]]:
    """Seconds of each stage in each run, the sum over levels; and of the whole."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    originals = {stage: getattr(network_module, stage) for stage in STAGES}
    describe = matcher.describe
    try:
        for _ in range(runs):
            this_run: defaultdict[str, float] = defaultdict(float)
            matcher.describe = timed(describe, "describe (two images)", this_run)  # type: ignore[method-assign]
            for stage, function in originals.items():
                setattr(network_module, stage, timed(function, stage, this_run))
            timed(matcher.decode, "total", this_run)(*images)
            for stage, seconds in this_run.items():
                times[stage].append(seconds)
    finally:
        for stage, function in originals.items():
            setattr(network_module, stage, function)
        matcher.describe = describe  # type: ignore[method-assign]
    return times


def timed(function: Callable[..., Any], name: str, times: defaultdict[str, float]) -> Callable[..., Any]:
    def wrapper(*arguments: Any) -> Any:
        started = time.perf_counter()
        result = function(*arguments)
        times[name] += time.perf_counter() - started
        return result

    return wrapper


def read(path: str, size: tuple[int, int] | None) -> Tensor:
    image = cv2.imread(path)
    if image is None:
        sys.exit(f"cannot read {path}")
    if size:
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return torch.from_numpy(image[:, :, ::-1].copy()).permute(2, 0, 1)[None].float() / 255


def peak_memory() -> int:
    """Bytes; Linux counts in units of 1024."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
