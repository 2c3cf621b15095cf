"""Evaluations as tables for a terminal and as pictures of their pairs."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepmatching.data.datasets import Pair
from deepmatching.drawing import write_image
from deepmatching.drawing.flow import draw_flow_errors, draw_match_errors
from deepmatching.evaluation.metrics import PIXEL_SETS
from deepmatching.evaluation.results import LIMITS, TWO_VIEW, Evaluation, PairResult, bootstrap_interval

if TYPE_CHECKING:
    from rich.table import Table

#: Metric, heading, decimals.
_COLUMNS = {
    "matches": (
        *((name, name, 2) for name in ("acc@2", "acc@5", "acc@10")),
        *(("epe", "EPE", 2), ("coverage", "cover", 1), ("matches", "matches", 0)),
    ),
    "flow": (
        *(("epe", "EPE", 2), ("err@3", ">3px", 2), ("fl", "Fl", 2)),
        *((name, name, 2) for name in ("s0-10", "s10-40", "s40+")),
        ("occlusion", "occlusion", 1),
    ),
}


def means_table(evaluation: Evaluation, title: str = "") -> Table:
    """Return a row for each group and set of pixels; for a flow, one with means over pairs and one over pixels."""
    is_flow, columns = evaluation.kind == "flow", _COLUMNS[evaluation.kind]
    words = ["data set", "pixels"] + ["mean of"] * is_flow
    table = blank_table(words, ["pairs", *(heading for _, heading, _ in columns), "s"], title)
    for group in evaluation.groups:
        for number, pixels in enumerate(evaluation.pixel_sets(group)):
            kinds = {"pairs": evaluation.means(group, pixels)}
            if is_flow:
                kinds["pixels"] = evaluation.pixel_means(group, pixels)
            for place, (kind, means) in enumerate(kinds.items()):
                first = "" if number or place else group
                words = [first, "" if place else pixels] + [kind] * is_flow
                numbers = [f"{means['pairs']:.0f}", *(format_number(means.get(n), d) for n, _, d in columns)]
                table.add_row(*words, *numbers, format_number(means["seconds"]) if first else "")
    return table


def two_view_table(evaluation: Evaluation, title: str = "") -> Table:
    """Return a row for each group of pairs with a known geometry of their views, and one for the mean of the groups."""
    table = blank_table(["data set"], ["pairs", *(f"AUC@{limit}" for limit in LIMITS), "AUC@10: 95 %"], title)
    rows = {group: [group] for group in evaluation.two_view()}
    for name, groups in {**rows, f"mean of {len(rows)} data sets": list(rows)}.items():
        means = [np.mean([evaluation.two_view(limit)[group].mean() for group in groups]) for limit in LIMITS]
        values = [evaluation.two_view()[group] for group in groups]
        low, high = bootstrap_interval(values)
        table.add_row(name, str(sum(map(len, values))), *(f"{mean:.1f}" for mean in means), f"{low:.1f} – {high:.1f}")
    return table


def two_view_pairs_table(evaluation: Evaluation) -> Table:
    """Return a row with the error of each pair with a known geometry of its views."""
    table = blank_table(["data set", "pair"], ["error", "s"])
    for pair in evaluation.pairs:
        if TWO_VIEW in pair.metrics:
            error = format_number(pair.metrics[TWO_VIEW]["error"])
            table.add_row(pair.group, pair.name, error, format_number(pair.seconds))
    return table


def pairs_table(evaluation: Evaluation) -> Table:
    """Return a row for each pair and set of pixels."""
    columns = _COLUMNS[evaluation.kind]
    table = blank_table(["data set", "pair", "pixels"], [*(heading for _, heading, _ in columns), "s"])
    for pair in evaluation.pairs:
        for number, pixels in enumerate(name for name in PIXEL_SETS if name in pair.metrics):
            words = ["", ""] if number else [pair.group, pair.name]
            numbers = [format_number(pair.metrics[pixels].get(name), decimals) for name, _, decimals in columns]
            table.add_row(*words, pixels, *numbers, "" if number else format_number(pair.seconds))
    return table


def print_table(table: Table) -> None:
    """Print to standard output at full width, so that a narrow terminal wraps long lines instead of cutting them."""
    from rich.console import Console

    console = Console(markup=False, emoji=False)  # users' data may be called ``[final]`` or ``:tree:``
    console.width = max(console.width, console.measure(table, options=console.options.update(width=1000)).maximum)
    console.print(table)


def blank_table(words: list[str], numbers: list[str], title: str = "") -> Table:
    """Return a table without rows: columns of words to the left, columns of numbers to the right."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, box=box.SIMPLE_HEAD, collapse_padding=True, title_justify="left")
    for word in words:
        table.add_column(word, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def format_number(value: float | None, decimals: int = 2) -> str:
    """Return the number as text, a dash for None and NaN."""
    return "–" if value is None or math.isnan(value) else f"{value:.{decimals}f}"


def draw_pair(folder: Path, pair: Pair, result: PairResult, shown: Any) -> None:
    """Write a picture of what ``on_pair`` receives: matches or flow, the ground truth, and the error."""
    metrics, truth = result.metrics.get("all", {}), pair.flow.numpy()
    caption = f"{result.group} {result.name}: "
    if not metrics:  # only the geometry of the views is known
        picture = shown[0].draw(pair.image0, pair.image1)
    elif isinstance(shown, tuple):
        matches, field = shown
        accuracies = " / ".join(f"{metrics[name]:.1f}" for name in ("acc@2", "acc@5", "acc@10"))
        caption += f"acc@2/5/10 {accuracies} %, EPE of the matches {metrics['epe']:.2f} px"
        confidence = None if matches.confidence is None else matches.confidence.cpu().numpy()
        picture = draw_match_errors(pair.image0, pair.image1, matches.numpy(), field, truth, caption, confidence)
    else:
        caption += f"EPE {metrics['epe']:.2f} px, {metrics['err@3']:.1f} % off by more than 3 px"
        picture = draw_flow_errors(pair.image0, shown, truth, caption)
    name = re.sub(r"[^\w.-]+", "_", f"{result.index:05d}_{result.group}_{result.name}")
    write_image(folder / f"{name}.jpg", picture)
