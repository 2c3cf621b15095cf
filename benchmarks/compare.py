"""Is the second of two recorded evaluations better than the first? The difference, pair by pair.

    python benchmarks/compare.py A.json B.json [--metric epe] [--pixels all] [--plot FILE.png]

The files are those of ``deepmatching evaluate --json``, of the same pairs. Prints, for each data set and for all pairs:

* the mean of A and of B, and their means without the best and the worst tenth of the pairs
* the mean of B − A, with the 95 % interval of 2,000 bootstrap samples of the pairs
* how many pairs B wins and loses
* of errors, the geometric mean of B / A, in which a pair of large errors counts no more than others, with its interval

A difference whose interval excludes zero, or a ratio's one, is marked with a star. The plot has a bar for each mean.
"""

import argparse
import math
from pathlib import Path

import numpy as np

from deepmatching.evaluation.report import blank_table, format_number, print_table
from deepmatching.evaluation.results import TWO_VIEW, Evaluation, bootstrap_interval

LOWER_IS_BETTER = ("epe", "err@3", "fl", "s0-10", "s10-40", "s40+", "seconds")  #: metrics that are better when lower
TRIMMED = 0.1  #: part of the pairs at either end that trimmed means leave out


def metric_by_pair(evaluation: Evaluation, metric: str, pixels: str) -> dict[tuple[str, str], float]:
    """Return the known values by data set and name."""
    known = {}
    for pair in evaluation.pairs:
        metrics = {**pair.metrics.get(TWO_VIEW if metric.startswith("auc@") else pixels, {}), "seconds": pair.seconds}
        if math.isfinite(metrics.get(metric, math.nan)):
            known[pair.group, pair.name] = metrics[metric]
    return known


def trimmed_mean(values: np.ndarray) -> float:
    """Return the mean without the least and the greatest tenth."""
    left_out = int(TRIMMED * len(values))
    return float(np.sort(values)[left_out : len(values) - left_out].mean())


def interval(low: float, high: float, equal: float, decimals: int = 2) -> str:
    """Return an interval as text, with a star if it excludes the value of what is equal."""
    star = " *" if low > equal or high < equal else ""
    return f"{format_number(low, decimals)} … {format_number(high, decimals)}{star}"


def draw_means(path: Path, means: dict[str, tuple[float, float]], labels: list[str], metric: str) -> None:
    """Draw two bars for each data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.6 + 0.36 * len(means)), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(means))
    for n, (label, colour) in enumerate(zip(labels, ("#b0b0b0", "#2a6fbb"), strict=True)):
        axes.barh(places + 0.38 * n, [both[n] for both in means.values()], 0.36, color=colour, label=label)
    axes.set_yticks(places + 0.19, [name.replace("_", " ") for name in means])
    axes.invert_yaxis()
    axes.set_xlabel(metric)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs=2, metavar="FILE.json")
    parser.add_argument("--metric", help="such as epe, acc@5 or auc@10; default: epe for a flow, else acc@5 or auc@10")
    parser.add_argument("--pixels", default="all", choices=("all", "noc", "occ"))
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the means of each data set")
    options = parser.parse_args()
    first, second = (Evaluation.load(path) for path in options.files)
    if first.kind != second.kind:
        raise SystemExit(f"One file is about {first.kind}, the other about {second.kind}: give two of a kind.")
    metric = options.metric or ("epe" if first.kind == "flow" else "auc@10" if first.two_view() else "acc@5")
    before, after = (metric_by_pair(evaluation, metric, options.pixels) for evaluation in (first, second))
    shared = [pair for pair in before if pair in after]
    if not shared:
        raise SystemExit(f"The files share no pair with a known '{metric}': give evaluations of the same pairs.")
    sign = -1 if metric in LOWER_IS_BETTER else 1
    headings = ["pairs", "A", "B", "A trimmed", "B trimmed", "B − A", "95 %", "won", "lost"]
    has_ratio = sign < 0 and all(values[pair] > 0 for values in (before, after) for pair in shared)
    headings += ["B / A", "95 %"] if has_ratio else []
    table = blank_table(["data set"], headings, f"{metric}: {options.files[0]} (A) and {options.files[1]} (B)")
    if alone := len(before.keys() ^ after.keys()):
        print(f"Left out, since known in one file only: {alone} pairs.")
    groups = {group: [pair for pair in shared if pair[0] == group] for group, _ in shared}
    means: dict[str, tuple[float, float]] = {}
    for name, pairs in {**groups, "all": shared}.items():
        values = np.array([[before[pair], after[pair]] for pair in pairs])
        difference = values[:, 1] - values[:, 0]
        low, high = bootstrap_interval([difference])
        numbers = [*values.mean(axis=0), *(trimmed_mean(column) for column in values.T), difference.mean()]
        counts = (int((way * sign * difference > 0).sum()) for way in (1, -1))
        cells = [*map(format_number, numbers), interval(low, high, 0), *map(str, counts)]
        if has_ratio:
            logs = np.log(values[:, 1] / values[:, 0])
            low, high = np.exp(bootstrap_interval([logs]))
            cells += [format_number(math.exp(logs.mean()), 3), interval(low, high, 1, 3)]
        table.add_row(name, str(len(pairs)), *cells)
        means[name] = (float(values[:, 0].mean()), float(values[:, 1].mean()))
    print_table(table)
    if options.plot:
        draw_means(options.plot, means, [Path(file).stem for file in options.files], metric)


if __name__ == "__main__":
    main()
