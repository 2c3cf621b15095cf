"""``deepmatching reproduce``: the paper's tables, ours beside the paper's figures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepmatching.commands.common import Device, Radius, build_matcher, say
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from rich.table import Table

    from deepmatching.datasets import FilePairs
    from deepmatching.evaluation import Evaluation
    from deepmatching.matcher import DeepMatcher


class TableChoice(str, Enum):
    """The paper's tables."""

    table1 = "table1"
    table2 = "table2"


@dataclass(frozen=True)
class Row:
    """A method of the paper, and what we run for it.

    Attributes:
        key: by which ``--checkpoint KEY=FILE`` gives it a model.
        label: the method, in the paper's words.
        training: what the paper trained it on.
        model: that we run; None if there is none.
        ours: what we trained that on.
        is_given: whether the user named the model; otherwise it may be missing.
    """

    key: str
    label: str
    training: str = "–"
    model: str | None = None
    ours: str = ""
    is_given: bool = False


#: acc@2, acc@5, acc@10, EPE (matches); of the flow EPE, Err-OCC and, of Table 2, EPE-NOC, Err-NOC (KITTI's are in the
#: text). None, or left off at the end, where the paper gives no figure.
PaperFigures = tuple[float | None, ...]
_COLUMNS = ("acc@2", "acc@5", "acc@10", "EPE", "EPE flow", ">3px")
COLUMNS = {"table1": _COLUMNS, "table2": (*_COLUMNS, "EPE noc", ">3px noc")}

_TABLE1_ROWS = (
    Row("a", "HOG", model="hog"),
    Row("b", "HOG, exponents", "Mini"),
    Row("c", "CNN"),
    Row("d", "CNN, exponents", "Mini"),
    Row("e", "CNN, features", "Mini"),
    Row("f", "CNN, both", "Mini"),
    Row("g", "CNN, both", "Chairs", "vgg", "synthetic"),
    Row("h", "compact (ours)", "–", "compact", "synthetic"),
)
_TABLE2_ROWS = (
    Row("flownet", "FlowNet +v", "Chairs"),
    Row("dm", "DM (original)"),
    Row("hog", "DM-HOG", model="hog"),
    Row("cnn", "DM-CNN"),
    Row("vgg", "DM-CNN", "Chairs", "vgg", "synthetic"),
    Row("compact", "compact (ours)", "–", "compact", "synthetic"),
)

#: Table → data set → key of the row → the paper's figures.
PAPER: dict[str, dict[str, dict[str, PaperFigures]]] = {
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
            "flownet": (None, None, None, None, 6.50),
            "hog": (60.50, 79.34, 84.27, 11.39, 3.59, 16.56, 1.51, 7.84),
            "cnn": (61.21, 78.81, 84.01, 12.29, 4.11, 17.78),
            "vgg": (63.90, 80.11, 84.71, 11.12, 3.61, 16.41, 1.43, 7.41),
        },
        "sintel-final": {
            "flownet": (None, None, None, None, 4.76),
            "dm": (None, None, 89.2, None, 4.10),
            "hog": (74.37, 85.26, 89.39, 7.08, 3.72, 11.44),
            "cnn": (75.15, 85.42, 89.48, 7.03, 3.63, 11.52),
            "vgg": (76.55, 86.22, 90.03, 6.77, 3.50, 11.10),
        },
        "sintel-clean": {
            "flownet": (None, None, None, None, 3.57),
            "hog": (82.51, 90.18, 92.70, 5.26, 2.32, 7.00),
            "cnn": (83.03, 90.24, 92.87, 5.22, 2.25, 6.85),
            "vgg": (84.16, 90.85, 93.31, 4.78, 2.14, 6.51),
        },
    },
}
_ROWS = {"table1": _TABLE1_ROWS, "table2": _TABLE2_ROWS}
_FOLDERS = {"sintelmini": "sintel", "sintel-clean": "sintel", "sintel-final": "sintel", "kitti2012": "kitti2012"}


def reproduce(
    table: Annotated[TableChoice, typer.Argument(help="Which table of the paper.", show_default=False)],
    root: Annotated[
        Path,
        typer.Option(metavar="DIR", help="The folder that has sintel/ and (table2) kitti2012/.", show_default=False),
    ],
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW=FILE",
            help="The model of a row, such as b=runs/b/best.safetensors; may be repeated. Rows: a to h in table1, hog, "
            "cnn, vgg, compact in table2. ImageNet's VGG-16 (rows c, cnn): c=vgg16.npz, .pth, .safetensors, or "
            "c=download.",
            show_default=False,
        ),
    ] = None,
    radius: Radius = "80",
    device: Device = "auto",
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Only N pairs of each data set, evenly spread.", show_default=False),
    ] = None,
    masks: Annotated[
        bool,
        typer.Option(
            "--masks/--no-masks", help="Use the masks of the data sets; without, all pixels with ground truth count."
        ),
    ] = True,
    default_flow: Annotated[
        bool, typer.Option("--default-flow", help="One more line each: the flow as `deepmatching flow` makes it.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep the figures of all pairs here, and go on with what is there.", show_default=False
        ),
    ] = None,
) -> None:
    """Run a table of the paper on the real data sets.

    Rows without a model and data sets that are not below the root get a dash.
    Flow is made as in the paper: EpicFlow's settings for Sintel and KITTI.
    SintelMini's scenes are our choice, as the paper does not name its own:
    compare its rows with each other, not with the paper's.
    """
    from deepmatching.commands.evaluating import print_table
    from deepmatching.io.files import make_folder

    rows = _with_checkpoints(_ROWS[table.value], checkpoint or [])
    datasets = _open(table.value, root, limit, masks)
    matchers = {row.key: _matcher(row, radius, device) for row in rows}
    if out is not None:
        make_folder(out)
    ours: dict[tuple[str, str], dict[str, PaperFigures]] = {}
    for name, dataset in datasets.items():
        for row in rows:
            matcher = matchers[row.key]
            if matcher is not None:
                prefix = out / f"{table.value}-{name}-{row.key}" if out is not None else None
                ours[name, row.key] = _figures(row, matcher, dataset, prefix, limit, masks, default_flow)
    print_table(_table(table.value, rows, ours, masks))


def _with_checkpoints(rows: tuple[Row, ...], checkpoints: list[str]) -> tuple[Row, ...]:
    from deepmatching.descriptors.pretrained import is_published

    given = {}
    for text in checkpoints:
        key, equals, path = text.partition("=")
        if not equals or key not in [row.key for row in rows]:
            keys = ", ".join(row.key for row in rows)
            raise DeepMatchingError(f"--checkpoint needs ROW=FILE with a row out of {keys}, not '{text}'.")
        given[key] = {"model": path, "ours": "ImageNet" if is_published(path) else "yours"}
    return tuple(replace(row, **given[row.key], is_given=True) if row.key in given else row for row in rows)


def _matcher(row: Row, radius: str, device: str) -> DeepMatcher | None:
    """The matcher of a row; None for a model that this version does not have."""
    from deepmatching.commands.evaluating import published_vgg
    from deepmatching.models import model_path

    if row.model is None:
        return None
    if row.is_given and (matcher := published_vgg(row.model, radius, device)) is not None:
        return matcher
    if not row.is_given and row.model != "hog":
        try:
            model_path(row.model)
        except DeepMatchingError:
            return None
    return build_matcher(row.model, radius=radius, device=device)


def _open(table: str, root: Path, limit: int | None, masks: bool) -> dict[str, FilePairs]:
    """The data sets of a table that are there; one at least must be."""
    from deepmatching.datasets import open_dataset

    found = {}
    for name in PAPER[table]:
        folder = root / _FOLDERS[name]
        if not folder.is_dir():
            say(f"there is no folder '{folder}': {name} is left out")
            continue
        dataset = open_dataset(name, folder, masks=masks)
        found[name] = dataset.thinned(limit) if limit is not None else dataset
    if not found:
        folders = " or ".join(dict.fromkeys(str(root / _FOLDERS[name]) for name in PAPER[table]))
        raise DeepMatchingError(f"There is nothing to evaluate: put the data set into {folders}, or link it there.")
    return found


def _figures(
    row: Row,
    matcher: DeepMatcher,
    dataset: FilePairs,
    prefix: Path | None,
    limit: int | None,
    masks: bool,
    default_flow: bool,
) -> dict[str, PaperFigures]:
    """The lines of a row that are ours: under the paper's protocol and, if wanted, with our own flow."""
    from deepmatching.commands.evaluating import describe_method, flow_function, run_evaluation
    from deepmatching.defaults import FLOW_RADIUS

    def measure(kind: str, method: DeepMatcher, preset: str | None) -> Evaluation:
        assert row.model is not None
        settings = {"dataset": dataset.name, "limit": limit, **describe_method(method, row.model)}
        settings |= {} if masks else {"masks": False}
        return run_evaluation(
            method,
            dataset,
            settings if preset is None else {**settings, "preset": preset},
            flow_function(method, preset) if preset is not None else None,
            json_file=prefix.with_name(f"{prefix.name}-{kind}.json") if prefix is not None else None,
            resume=True,
            title=f"{dataset.name} {row.key}",
            hint="the same command goes on",
        )

    def flow_figures(kind: str, method: DeepMatcher, preset: str) -> PaperFigures:
        evaluation = measure(kind, method, preset)
        everywhere, visible = evaluation.means(dataset.name), evaluation.means(dataset.name, "noc")
        return everywhere["epe"], everywhere["err@3"], visible.get("epe"), visible.get("err@3")

    matches = measure("matches", matcher, None).means(dataset.name)
    accuracy = (matches["acc@2"], matches["acc@5"], matches["acc@10"], matches["epe"])
    epicflow = "kitti" if dataset.name.startswith("kitti") else "sintel"
    lines = {"ours": (*accuracy, *flow_figures("flow", matcher, epicflow))}
    if default_flow:
        own = flow_figures("default-flow", matcher.for_flow(FLOW_RADIUS), "default")
        lines["ours, default flow"] = (*(None for _ in accuracy), *own)
    return lines


def _table(
    name: str, rows: tuple[Row, ...], ours: dict[tuple[str, str], dict[str, PaperFigures]], masks: bool
) -> Table:
    """Two lines for each row or more: the paper's figures and ours."""
    from rich import box
    from rich.table import Table

    title = f"Table {name[-1]} of the paper" + ("" if masks else "; ours without masks: all pixels with ground truth")
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, title=title, title_justify="left")
    for heading in ("", "method", "trained on", ""):
        table.add_column(heading, no_wrap=True)
    for heading in COLUMNS[name]:
        table.add_column(heading, justify="right", no_wrap=True)
    for dataset, paper in PAPER[name].items():
        if len(PAPER[name]) > 1:
            table.add_row("", f"[bold]{dataset}[/bold]")
        for row in rows:
            published = paper.get(row.key)
            measured = ours.get((dataset, row.key))
            if published is None and row.model is None:
                continue  # such as the original DM, which the paper has for one data set only
            lines: dict[str, PaperFigures] = {"paper": published} if published is not None else {}
            if row.key not in ("flownet", "dm") or measured is not None:
                lines.update(measured or {"ours": ()})
            for number, (kind, figures) in enumerate(lines.items()):
                words = (row.key, row.label) if number == 0 else ("", "")
                training = row.training if kind == "paper" else row.ours if figures else ""
                numbers = dict(zip(COLUMNS[name], figures, strict=False))
                table.add_row(*words, training, kind, *(_number(numbers.get(column)) for column in COLUMNS[name]))
    return table


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.2f}"
