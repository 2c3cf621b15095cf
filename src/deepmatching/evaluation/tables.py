"""Evaluations as tables for a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from deepmatching.evaluation.figures import PIXEL_SETS

if TYPE_CHECKING:
    from rich.table import Table

    from deepmatching.evaluation.results import Evaluation

#: Figure, heading, decimals.
_MATCH_COLUMNS = (
    ("acc@2", "acc@2", 2),
    ("acc@5", "acc@5", 2),
    ("acc@10", "acc@10", 2),
    ("epe", "EPE", 2),
    ("coverage", "cover", 1),
    ("matches", "matches", 0),
)
_FLOW_COLUMNS = (
    ("epe", "EPE", 2),
    ("err@3", ">3px", 2),
    ("fl", "Fl", 2),
    ("s0-10", "s0-10", 2),
    ("s10-40", "s10-40", 2),
    ("s40+", "s40+", 2),
)


def means_table(evaluation: Evaluation, title: str = "") -> Table:
    """A row for each group and set of pixels; for a flow one with means over pairs and one over pixels."""
    is_flow = evaluation.kind == "flow"
    columns = _FLOW_COLUMNS if is_flow else _MATCH_COLUMNS
    table = _table(title, ["data set", "pixels"] + ["mean of"] * is_flow, ["pairs", *(c[1] for c in columns), "s"])
    for group in evaluation.groups:
        for number, pixels in enumerate(evaluation.pixel_sets(group)):
            kinds = {"pairs": evaluation.means(group, pixels)}
            if is_flow:
                kinds["pixels"] = evaluation.pixel_means(group, pixels)
            for place, (kind, means) in enumerate(kinds.items()):
                first = "" if number or place else group
                words = [first, "" if place else pixels] + [kind] * is_flow
                numbers = [f"{means['pairs']:.0f}", *(_number(means[n], d) for n, _, d in columns)]
                table.add_row(*words, *numbers, _number(means["seconds"], 2) if first else "")
    return table


def pairs_table(evaluation: Evaluation, title: str = "") -> Table:
    """A row for each pair and set of pixels."""
    columns = _FLOW_COLUMNS if evaluation.kind == "flow" else _MATCH_COLUMNS
    table = _table(title, ["data set", "pair", "pixels"], [*(c[1] for c in columns), "s"])
    for pair in evaluation.pairs:
        for number, pixels in enumerate(name for name in PIXEL_SETS if name in pair.figures):
            words = ["", ""] if number else [pair.group, pair.name]
            numbers = [_number(pair.figures[pixels][name], decimals) for name, _, decimals in columns]
            table.add_row(*words, pixels, *numbers, "" if number else _number(pair.seconds, 2))
    return table


def _table(title: str, words: list[str], numbers: list[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, box=box.SIMPLE_HEAD, collapse_padding=True, title_justify="left")
    for word in words:
        table.add_column(word, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def _number(value: float, decimals: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{decimals}f}"
