"""Tables 1 and 2 of the paper: their rows, the published numbers, and ours beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deepmatching.evaluation.report import blank_table, format_number
from deepmatching.evaluation.results import Evaluation

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Method:
    """A method of the paper, and the model that we run for it."""

    key: str  #: identifies the row in ``--checkpoint KEY=FILE``
    label: str  #: in the paper's words
    training: str = "–"  #: what the paper trained it on
    model: str | None = None  #: that we run; None if there is none
    ours: str = ""  #: what that model was trained on
    is_given: bool = False  #: whether the user named the model
    is_ours: bool = False  #: whether the row is not the paper's


METHODS = {
    "table1": (
        Method("a", "HOG", model="hog"),
        Method("b", "HOG, exponents", "Mini"),
        Method("c", "CNN"),
        Method("d", "CNN, exponents", "Mini"),
        Method("e", "CNN, features", "Mini"),
        Method("f", "CNN, both", "Mini"),
        Method("g", "CNN, both", "Chairs", "vgg", "synthetic"),
        Method("h", "compact (ours)", "–", "compact", "synthetic", is_ours=True),
    ),
    "table2": (
        Method("flownet-s", "FlowNet S+v", "Chairs"),
        Method("flownet-c", "FlowNet C+v", "Chairs"),
        Method("dm", "DM (original)"),
        Method("hog", "DM-HOG", model="hog"),
        Method("cnn", "DM-CNN"),
        Method("vgg", "DM-CNN", "Chairs", "vgg", "synthetic"),
        Method("compact", "compact (ours)", "–", "compact", "synthetic", is_ours=True),
    ),
}

#: acc@2, acc@5, acc@10 and EPE of the matches; EPE and Err-OCC of the flow and, in Table 2, EPE-NOC and Err-NOC (for
#: KITTI from the text). None, or left off at the end, where the paper gives no number.
TableRow = tuple[float | None, ...]
_COLUMNS = ("acc@2", "acc@5", "acc@10", "EPE", "EPE flow", ">3px")
COLUMNS = {"table1": _COLUMNS, "table2": (*_COLUMNS, "EPE noc", ">3px noc")}
#: Table → data set → key of the row → the published numbers.
PAPER: dict[str, dict[str, dict[str, TableRow]]] = {
    "table1": {
        "sintelmini": {
            "a": (84.52, 91.89, 94.36, 3.83, 1.88),
            "b": (84.59, 92.03, 94.49, 3.73, 1.84),
            "c": (85.28, 92.25, 94.83, 3.58, 1.80),
            "d": (85.30, 92.27, 94.87, 3.70, 1.64),
            "e": (86.81, 92.52, 94.86, 3.37, 1.60),
            "f": (86.79, 92.58, 94.90, 3.34, 1.57),
            "g": (86.11, 92.47, 94.88, 3.33, 1.65),
        }
    },
    "table2": {
        "kitti2012": {
            "flownet-s": (None, None, None, None, 6.50),
            "hog": (60.50, 79.34, 84.27, 11.39, 3.59, 16.56, 1.51, 7.84),
            "cnn": (61.21, 78.81, 84.01, 12.29, 4.11, 17.78),
            "vgg": (63.90, 80.11, 84.71, 11.12, 3.61, 16.41, 1.43, 7.41),
        },
        "sintel-final": {
            "flownet-s": (None, None, None, None, 4.76),
            "dm": (None, None, 89.2, None, 4.10),
            "hog": (74.37, 85.26, 89.39, 7.08, 3.72, 11.44),
            "cnn": (75.15, 85.42, 89.48, 7.03, 3.63, 11.52),
            "vgg": (76.55, 86.22, 90.03, 6.77, 3.50, 11.10),
        },
        "sintel-clean": {
            "flownet-c": (None, None, None, None, 3.57),
            "hog": (82.51, 90.18, 92.70, 5.26, 2.32, 7.00),
            "cnn": (83.03, 90.24, 92.87, 5.22, 2.25, 6.85),
            "vgg": (84.16, 90.85, 93.31, 4.78, 2.14, 6.51),
        },
    },
}
NOT_OURS = ("flownet-s", "flownet-c", "dm")  #: rows that only the paper has, unless a model is given for them
#: Data set → its folder below the root.
FOLDERS = {"sintelmini": "sintel", "sintel-clean": "sintel", "sintel-final": "sintel", "kitti2012": "kitti2012"}


def epicflow_preset(dataset: str) -> str:
    """Return the preset of the flow that the paper's EpicFlow used for a data set."""
    return "kitti" if dataset.startswith("kitti") else "sintel"


def lines_of(matches: Evaluation, flow: Evaluation, default_flow: Evaluation | None = None) -> dict[str, TableRow]:
    """Return our lines of a row: under the paper's protocol and, if there is one, with the default flow."""

    def flow_numbers(evaluation: Evaluation) -> TableRow:
        (group,) = evaluation.groups
        everywhere, visible = evaluation.means(group), evaluation.means(group, "noc")
        return everywhere["epe"], everywhere["err@3"], visible.get("epe"), visible.get("err@3")

    (group,) = matches.groups
    means = matches.means(group)
    of_matches = (means["acc@2"], means["acc@5"], means["acc@10"], means["epe"])
    lines: dict[str, TableRow] = {"ours": (*of_matches, *flow_numbers(flow))}
    if default_flow is not None:
        lines["ours, default flow"] = (None, None, None, None, *flow_numbers(default_flow))
    return lines


def comparison_table(
    name: str,
    rows: Sequence[Method],
    datasets: Sequence[str],
    ours: Mapping[tuple[str, str], Mapping[str, TableRow]],
    masks: bool,
    protocol: str,
) -> Table:
    """Return a table of the published numbers and ours, by (data set, key of the method), measured by ``protocol``."""
    from rich.text import Text

    title = f"Table {name[-1]} of the paper" + ("" if masks else "; ours without masks: all pixels with ground truth")
    title += f"\nours: {protocol}"
    table = blank_table(["", "method", "trained on", ""], list(COLUMNS[name]), title)
    for dataset in datasets:
        paper = PAPER[name][dataset]
        if len(PAPER[name]) > 1:
            table.add_row("", Text(dataset, style="bold"))
        for row in rows:
            published = paper.get(row.key)
            measured = ours.get((dataset, row.key))
            if published is None and row.model is None:
                continue  # such as the original DM, which the paper has for one data set only
            lines: dict[str, TableRow] = {"paper": published} if published is not None else {}
            if row.key not in NOT_OURS or measured is not None:
                lines.update(measured or {"ours": ()})
            for line, (kind, numbers) in enumerate(lines.items()):
                words = ("", "") if line else (row.key, row.label)
                training = row.training if kind == "paper" else row.ours if numbers else ""
                padded = (*numbers, *(None for _ in COLUMNS[name]))[: len(COLUMNS[name])]
                table.add_row(*words, training, kind, *(format_number(number) for number in padded))
    return table
