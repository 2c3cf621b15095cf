"""Time and memory of matching: the reference cases, whole programs, and cost by radius and by image size.

    python benchmarks/speed.py [--device cpu] [--json FILE] [--plot docs/images/cost.png] [--original PATH] [--quick]

Figures are of two kinds. In memory, a loaded model matches two tensors; the time is warm and the memory is above what
the process held before. A whole program reads two files and ends, and counts everything; --original measures another
program in this way beside ours, such as the original DeepMatching.

Each case runs in a process of its own. The first run is reported apart from the median of the later ones. Cost should
be linear in the number of reference points and in the area of the window; the plot shows whether it is. With --quick, a
few small cases show in seconds that everything runs; their numbers mean nothing.
"""

import argparse
import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from deepmatching.evaluation.speed import (
    Case,
    Timing,
    WholeProgram,
    demo_files,
    measure,
    measure_match,
    measure_program,
)

MODELS = ("compact", "hog")  #: models whose whole program is measured

#: Each case with its number of timed runs.
REFERENCE = [
    (Case(), 20),
    (Case(radius="full"), 3),
    (Case(radius=256), 5),
    (Case(width=3840, height=2160), 3),
]
BY_RADIUS = [(Case(radius=radius), 7) for radius in (16, 32, 48, 64, 80, 112, 144, 176)]
SIZES = ((256, 192), (512, 384), (640, 480), (1024, 436), (1242, 375), (1280, 720), (1600, 900), (1920, 1080))
BY_SIZE = [(Case(width=width, height=height), 7) for width, height in SIZES]

QUICK = [(Case("hog", 64, 48, radius=16), 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    parser.add_argument("--plot", type=Path, help="draw the cost by radius and by image size")
    parser.add_argument("--original", default="", help="another program: its command line, without the two images")
    parser.add_argument("--quick", action="store_true", help="one small case of each kind")
    options = parser.parse_args()
    reference, by_radius, by_size = (
        time_cases(title, QUICK if options.quick else cases, options.device)
        for title, cases in (("reference", REFERENCE), ("by radius", BY_RADIUS), ("by size", BY_SIZE))
    )
    case = replace((QUICK if options.quick else REFERENCE)[0][0], device=options.device)
    programs = whole_programs(case, options.original, repeats=1 if options.quick else 3)
    if options.json:
        timings = {"reference": reference, "by_radius": by_radius, "by_size": by_size}
        content = {name: [timing.as_dict() for timing in group] for name, group in timings.items()}
        whole = {name: asdict(program) for name, program in programs.items()}
        options.json.write_text(json.dumps({**content, "whole_programs": whole}, indent=1))
    if options.plot:
        plot(by_radius, by_size, options.plot)


def time_cases(title: str, cases: list[tuple[Case, int]], device: str) -> list[Timing]:
    """Time the cases and print them as a table."""
    title = f"{title}, in memory: from tensors to matches, and the peak above the memory of the process"
    table = Table("size", "radius", "first run", "median", "floor", "ratio", "peak memory", title=title)
    timings = []
    for case, repeats in cases:
        timing = measure(replace(case, device=device), repeats)
        timings.append(timing)
        table.add_row(
            f"{case.width}x{case.height}", str(case.radius), f"{timing.first:.2f} s", f"{timing.time:.3f} s",
            f"{timing.floor:.3f} s", f"{timing.ratio:.1f}", f"{timing.peak / 1e6:.0f} MB",
        )  # fmt: skip
    Console().print(table)
    return timings


def whole_programs(case: Case, original: str, repeats: int) -> dict[str, WholeProgram]:
    """Measure programs on the files of a case, from start to end, and print them as a table; kernels are compiled."""
    programs = {f"deepmatching match --model {m}": measure_match(replace(case, model=m), repeats) for m in MODELS}
    if original:
        with demo_files(case.width, case.height) as pictures:
            programs[original] = measure_program([*shlex.split(original), *pictures], repeats)
    size = f"{case.width}x{case.height}"
    table = Table("program", "time", "peak memory", title=f"whole programs, {size}, radius {case.radius} (ours)")
    for name, program in programs.items():
        table.add_row(name, f"{program.time:.2f} s", f"{program.peak / 1e6:.0f} MB")
    Console().print(table)
    return programs


def plot(by_radius: list[Timing], by_size: list[Timing], path: Path) -> None:
    """Time against the area of the window and against the number of reference points, with lines through the origin."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    windows = [(int(t.case.radius) + 1) ** 2 / 1000 for t in by_radius]  # cells of 2 px: (2 · R/2 + 1)²
    points = [(t.case.width // 8) * (t.case.height // 8) / 1000 for t in by_size]
    for axis, x, timings, label in (
        (axes[0], windows, by_radius, "target cells per point, thousands (1024×436)"),
        (axes[1], points, by_size, "reference points, thousands (radius 80)"),
    ):
        times = [t.time for t in timings]
        axis.plot(x, times, "o-", label="measured")
        axis.plot(x, [t.floor for t in timings], "k--", label="floor")
        slope = times[-1] / x[-1]
        axis.plot([0, x[-1]], [0, slope * x[-1]], ":", color="grey", label="proportional to the last")
        axis.set(xlabel=label, ylabel="seconds per pair", xlim=(0, None), ylim=(0, None))
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
