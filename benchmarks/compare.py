"""Is the second of two recorded evaluations better than the first? The difference, pair by pair.

    python benchmarks/compare.py A.json B.json [--metric epe] [--pixels all]

The files are those of ``deepmatching evaluate --json``, of the same pairs. Prints, for each data set and for all pairs:

* the mean of A and of B, and their means without the best and the worst tenth of the pairs
* the mean of B − A, with the 95 % interval of 2,000 bootstrap samples of the pairs
* how many pairs B wins and loses

A difference whose interval excludes zero is marked with a star.
"""

import argparse
import math

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs=2, metavar="FILE.json")
    parser.add_argument("--metric", help="such as epe, acc@5 or auc@10; default: epe for a flow, else acc@5 or auc@10")
    parser.add_argument("--pixels", default="all", choices=("all", "noc", "occ"))
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
    table = blank_table(["data set"], headings, f"{metric}: {options.files[0]} (A) and {options.files[1]} (B)")
    if alone := len(before.keys() ^ after.keys()):
        print(f"Left out, since known in one file only: {alone} pairs.")
    groups = {group: [pair for pair in shared if pair[0] == group] for group, _ in shared}
    for name, pairs in {**groups, "all": shared}.items():
        values = np.array([[before[pair], after[pair]] for pair in pairs])
        difference = values[:, 1] - values[:, 0]
        low, high = bootstrap_interval([difference])
        numbers = [*values.mean(axis=0), *(trimmed_mean(column) for column in values.T), difference.mean()]
        star = " *" if low > 0 or high < 0 else ""
        counts = (int((way * sign * difference > 0).sum()) for way in (1, -1))
        interval = f"{format_number(low)} … {format_number(high)}{star}"
        table.add_row(name, str(len(pairs)), *map(format_number, numbers), interval, *map(str, counts))
    print_table(table)


if __name__ == "__main__":
    main()
