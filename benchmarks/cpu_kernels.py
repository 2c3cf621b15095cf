"""Time and memory of matching on the CPU, stage by stage.

    python benchmarks/cpu_kernels.py a.png b.png [--radius 80 | --full] [--threads 2] [--runs 10] [--plain]

Prints the minimum and the median of several runs after a first one, and the peak memory above that after imports.
"""

import argparse
import resource
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import cv2
import torch
from torch import Tensor

from deepmatching.kernels.cpu.compilation import announce_compilation
from deepmatching.kernels.registry import OPERATORS, plain_operators
from deepmatching.network.descriptors.hog import HOG
from deepmatching.network.network import Network
from deepmatching.settings import RADIUS

#: The operators of inference, in order.
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
    parser.add_argument("--radius", type=int, default=RADIUS, help=f"in pixels, default {RADIUS}")
    parser.add_argument("--full", action="store_true", help="no limit on the displacement")
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--size", type=int, nargs=2, metavar=("WIDTH", "HEIGHT"), help="resize the images first")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--plain", action="store_true", help="run the definitions instead of the kernels")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    images = [read(path, options.size) for path in options.images]
    matcher = Network(HOG(options.downscale), radius=None if options.full else options.radius)
    memory = peak_memory()
    with plain_operators() if options.plain else nullcontext():
        started = time.perf_counter()
        decoded = matcher.decode(images[0], images[1])
        first = time.perf_counter() - started
        compiled = announce_compilation.cache_info().currsize > 0
        times = stage_times(matcher, images, options.runs)

    print(f"{'stage':<36}{'min ms':>10}{'median ms':>12}")
    for stage, seconds in times.items():
        print(f"{stage:<36}{1000 * min(seconds):>10.1f}{1000 * statistics.median(seconds):>12.1f}")
    print(f"first run {first:.2f} s (kernels {'not' if compiled else 'were'} on disk)")
    print(f"peak memory above imports and images {(peak_memory() - memory) / 2**20:.0f} MiB")
    print(f"{int(decoded.verified.sum())} verified matches, {options.threads} threads")


def stage_times(matcher: Network, images: list[Tensor], runs: int) -> dict[str, list[float]]:
    """Return the seconds of each stage in each run, the sum over levels; and of the whole."""
    times: defaultdict[str, list[float]] = defaultdict(list)
    describe = matcher.describe
    for _ in range(runs):
        run = Stopwatch()
        matcher.describe = run.timed("describe (two images)", describe)  # type: ignore[method-assign]
        with timed_operators(run):
            started = time.perf_counter()
            matcher.decode(images[0], images[1])
            run.seconds["total"] = time.perf_counter() - started
        for stage, seconds in run.seconds.items():
            times[stage].append(seconds)
    matcher.describe = describe  # type: ignore[method-assign]
    return times


class Stopwatch:
    """Seconds spent in each stage. A stage inside another counts to the outer one."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running = False

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its time added to a stage."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return function(*args, **kwargs)
            self._running, started = True, time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - started
                self._running = False

        return wrapper


@contextmanager
def timed_operators(stopwatch: Stopwatch) -> Iterator[None]:
    """Time whatever the registry chooses for each stage, kernel or definition."""
    for name in STAGES:
        choose = OPERATORS[name].implementation

        def timed(*args: Any, choose: Any = choose, name: str = name, **kwargs: Any) -> Callable[..., Any]:
            return stopwatch.timed(name, choose(*args, **kwargs))

        OPERATORS[name].implementation = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        for name in STAGES:
            del OPERATORS[name].implementation  # the class's own method is found again


def read(path: str, size: tuple[int, int] | None) -> Tensor:
    image = cv2.imread(path)
    if image is None:
        sys.exit(f"cannot read {path}")
    if size:
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return torch.from_numpy(image[:, :, ::-1].copy()).permute(2, 0, 1)[None].float() / 255


def peak_memory() -> int:
    """Return bytes; Linux counts in units of 1024."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
