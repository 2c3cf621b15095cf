"""Time and memory of matching: the cases that we promise, the curves of cost, and the start of the command.

    python benchmarks/speed.py [--device cpu] [--json FILE] [--plot docs/images/cost.png]

Every case runs in a process of its own: the first run is reported apart from the median of the later ones. Cost should
grow linearly in the number of reference points and in the area of the window; the curves show whether it does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path

from rich.console import Console
from rich.table import Table

from deepmatching.benchmark import Case, Timing, measure

PROMISED = [
    (Case(), 20),
    (Case(radius="full"), 3),
    (Case(radius=256), 5),
    (Case(width=3840, height=2160), 3),
]
RADII = (16, 32, 48, 64, 80, 112, 144, 176)
SIZES = ((256, 192), (512, 384), (640, 480), (1024, 436), (1242, 375), (1280, 720), (1600, 900), (1920, 1080))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()

    def timed(case: Case, repeats: int) -> Timing:
        case = Case(**{**case.__dict__, "device": options.device})
        timing = measure(case, repeats)
        table.add_row(
            f"{case.width}x{case.height}", str(case.radius), f"{timing.first:.2f} s", f"{timing.time:.3f} s",
            f"{timing.floor:.3f} s", f"{timing.ratio:.1f}", f"{timing.peak / 1e6:.0f} MB",
        )  # fmt: skip
        return timing

    table = Table("size", "radius", "first run", "median", "floor", "ratio", "peak memory", title="promised")
    promised = [timed(case, repeats) for case, repeats in PROMISED]
    Console().print(table)
    start = command_start()
    print(f"deepmatching match on the demo pair, from the shell, kernels compiled before: {start:.2f} s")
    table = Table("size", "radius", "first run", "median", "floor", "ratio", "peak memory", title="curves, 1024x436")
    by_radius = [timed(Case(radius=radius), 7) for radius in RADII]
    by_size = [timed(Case(width=width, height=height), 7) for width, height in SIZES]
    Console().print(table)
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "promised": [t.as_dict() for t in promised],
                    "command": start,
                    "by_radius": [t.as_dict() for t in by_radius],
                    "by_size": [t.as_dict() for t in by_size],
                },
                indent=1,
            )
        )
    if options.plot:
        plot(by_radius, by_size, options.plot)


def command_start() -> float:
    """Seconds from the shell to the matches of the demo pair on disk, the best of three."""
    pictures = [str(files("deepmatching") / "data" / "demo" / f"bunny_{i}.jpg") for i in (0, 1)]
    command = [sys.executable, "-m", "deepmatching", "match", *pictures]
    times = []
    for _ in range(4):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def plot(by_radius: list[Timing], by_size: list[Timing], path: Path) -> None:
    """Time against the area of the window and against the number of reference points, with lines through the origin."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    windows = [(int(t.case.radius) + 1) ** 2 / 1000 for t in by_radius]  # cells of 2 px: (2 · R/2 + 1)²
    points = [(t.case.width // 8) * (t.case.height // 8) / 1000 for t in by_size]
    for axis, x, timings, label in (
        (axes[0], windows, by_radius, "target cells of a point, thousands (1024×436)"),
        (axes[1], points, by_size, "reference points, thousands (radius 80)"),
    ):
        times = [t.time for t in timings]
        axis.plot(x, times, "o-", label="measured")
        floors = [t.floor for t in timings]
        axis.plot(x, floors, "k--", label="floor")
        slope = times[-1] / x[-1]
        axis.plot([0, x[-1]], [0, slope * x[-1]], ":", color="grey", label="proportional to the last")
        axis.set(xlabel=label, ylabel="seconds a pair", xlim=(0, None), ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
