"""``deepmatching reproduce``: the paper's tables, our numbers beside the published ones."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deepmatching.commands.common import (
    SUBPIXEL_HELP,
    Device,
    Radius,
    ReciprocalOption,
    build_matcher,
    say,
)
from deepmatching.commands.progress import progress_bar
from deepmatching.defaults import FLOW_RADIUS, PAPERS_RECIPROCAL, PRESET, RADIUS, RECIPROCAL
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from deepmatching.datasets import FilePairs
    from deepmatching.evaluation import Evaluation
    from deepmatching.evaluation.paper_tables import Row
    from deepmatching.matcher import DeepMatcher


def reproduce(
    table: Annotated[
        Literal["table1", "table2"], typer.Argument(metavar="TABLE", help="Table of the paper: table1 or table2.")
    ],
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with the data sets: sintel/ and, for table2, kitti2012/.")
    ],
    checkpoint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROW=FILE",
            help="Model of a row, such as b=runs/b/last.safetensors; may be repeated. Give last.safetensors: "
            "best.safetensors is chosen on the validation pairs, so report it on other pairs only. Rows are a to h in "
            "table1; hog, cnn, vgg and compact in table2. Rows c and cnn also take ImageNet's VGG-16: c=vgg16.npz, "
            ".pth or .safetensors, or c=download.",
        ),
    ] = None,
    radius: Radius = str(RADIUS),
    reciprocal: ReciprocalOption = PAPERS_RECIPROCAL,
    subpixel: Annotated[
        bool | None,
        typer.Option(
            "--subpixel/--no-subpixel", help=SUBPIXEL_HELP, show_default="on cells in the paper's rows, as in the paper"
        ),
    ] = None,
    device: Device = "auto",
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Evaluate N evenly spaced pairs of each data set only.", show_default="all pairs"
        ),
    ] = None,
    masks: Annotated[
        bool,
        typer.Option(
            "--masks/--no-masks", help="Leave out pixels that the data sets' masks call invalid, and measure NOC."
        ),
    ] = True,
    default_flow: Annotated[
        bool,
        typer.Option(
            "--default-flow",
            help=f"Add a line to each row with the flow of `deepmatching flow`: radius {FLOW_RADIUS}, preset {PRESET}.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the metrics of all pairs in this folder; the same command then continues from there.",
        ),
    ] = None,
) -> None:
    """Run a table of the paper on the real data sets.

    Rows without a model and data sets that are not below the root get a dash.
    Matches are verified and lie on cells as in the paper, unless options say otherwise;
    our own model (h, compact) has sub-pixel matches. Flow is made from the same matches
    as in the paper, with EpicFlow's settings for Sintel and KITTI.
    The paper does not name SintelMini's scenes, so ours differ: compare the rows
    of table1 with each other, not with the paper's.
    """
    from deepmatching.evaluation.paper_tables import ROWS, comparison_table, measure_row
    from deepmatching.evaluation.tables import print_table
    from deepmatching.io.files import make_folder

    rows = _with_checkpoints(ROWS[table], checkpoint or [])
    datasets = _open(table, root, limit, masks)
    matchers = {}
    for row in rows:
        between = row.is_ours if subpixel is None else subpixel
        matchers[row] = _matcher(row, radius=radius, device=device, reciprocal=reciprocal, subpixel=between)
    for row in rows:
        _warn_if_chosen_on(list(datasets), row)
    if out is not None:
        make_folder(out)
    ours = {}
    for name, dataset in datasets.items():
        for row, matcher in matchers.items():
            if matcher is not None:
                prefix = out / f"{table}-{name}-{row.key}" if out is not None else None
                run = partial(_evaluate, row, matcher, dataset, limit, masks, prefix)
                ours[name, row.key] = measure_row(dataset.name, run, default_flow)
    protocol = f"ours: reciprocal {reciprocal}, {_describe_subpixel(rows, subpixel)}"
    print_table(comparison_table(table, rows, ours, masks, protocol))


def _describe_subpixel(rows: tuple[Row, ...], subpixel: bool | None) -> str:
    """Which of the rows have matches between the cells."""
    if subpixel is not None:
        return "sub-pixel matches where the model has learned them" if subpixel else "matches on cells"
    own = [row.key for row in rows if row.is_ours]
    return "matches on cells" + (f", sub-pixel matches in row {', '.join(own)}" if own else "")


def _evaluate(
    row: Row,
    matcher: DeepMatcher,
    dataset: FilePairs,
    limit: int | None,
    masks: bool,
    prefix: Path | None,
    kind: str,
    preset: str | None,
    radius: int | None,
) -> Evaluation:
    """Evaluate the matches or, with a preset, the flow; continue from the file if there is one."""
    from deepmatching.datasets import Pair
    from deepmatching.evaluation import Evaluation, PairResult, Recorder, evaluate, evaluate_flow
    from deepmatching.models import describe_model

    assert row.model is not None
    method = matcher if radius is None else _like_deepmatching_flow(matcher, radius)
    settings = {
        **{"dataset": dataset.name, "limit": limit, **describe_model(row.model), **method.describe()},
        **({} if masks else {"masks": False}),
        **({} if preset is None else {"preset": preset}),
        "contents": dataset.contents_hash,
    }
    empty = Evaluation("matches" if preset is None else "flow", settings, len(dataset))
    file = prefix.with_name(f"{prefix.name}-{kind}.json") if prefix is not None else None
    recorder = Recorder(empty, file, resume=True, report=say, hint="run the same command to continue")
    with recorder, progress_bar(f"{dataset.name} {row.key}", len(dataset), len(recorder.done)) as advance:

        def on_pair(pair: Pair, result: PairResult, shown: Any) -> None:
            advance(f"{result.group} {result.name}")

        if preset is None:
            return evaluate(method, dataset, recorder, on_pair, warm_up=True)
        return evaluate_flow(lambda a, b: method.flow(a, b, preset).flow, dataset, recorder, on_pair, warm_up=True)


def _with_checkpoints(rows: tuple[Row, ...], checkpoints: list[str]) -> tuple[Row, ...]:
    from deepmatching.descriptors.pretrained import is_published

    given = {}
    for text in checkpoints:
        key, equals, path = text.partition("=")
        if not equals or key not in [row.key for row in rows]:
            keys = ", ".join(row.key for row in rows)
            raise DeepMatchingError(f"--checkpoint must be ROW=FILE with one of the rows {keys}, not '{text}'.")
        given[key] = {"model": path, "ours": "ImageNet" if is_published(path) else _trained_on(path)}
    return tuple(replace(row, **given[row.key], is_given=True) if row.key in given else row for row in rows)


def _card(path: str) -> dict[str, str]:
    """The model card of a file; empty if there is none, which the matcher complains about."""
    from deepmatching.models import model_path, read_model

    try:
        return read_model(model_path(path))[1]
    except DeepMatchingError:
        return {}


def _trained_on(path: str) -> str:
    """The training data that a model's card names, and which checkpoint of the run it is."""
    card = _card(path)
    try:
        names = [Path(name).name for name in json.loads(card["config"])["data"]["train"]]
    except (KeyError, TypeError, ValueError):
        return "yours"
    return f"{'+'.join(names)}, {'best' if 'score' in card else 'last'}"


def _warn_if_chosen_on(datasets: list[str], row: Row) -> None:
    """Say so if the model of a row is the best one of a run on pairs that it is reported on here."""
    from deepmatching.evaluation.paper_tables import FOLDERS

    card = _card(row.model) if row.is_given and row.model is not None else {}
    if "score" not in card:
        return  # not the best of a run
    try:
        config = json.loads(card["config"])
        names = config["validation"]["data"]
        names = config["data"]["train"] if names == ["train"] or config["data"]["overfit"] else names
        families = {name.partition("-")[0].replace("sintelmini", "sintel") for name in names}
    except (KeyError, TypeError, ValueError, AttributeError):
        return
    same = [name for name in datasets if FOLDERS[name] in families]
    if same:
        say(
            f"note: row {row.key} is the best checkpoint on pairs of {', '.join(names)} and is reported on "
            f"{', '.join(same)}: give last.safetensors beside it, or a model that was validated elsewhere"
        )


def _like_deepmatching_flow(matcher: DeepMatcher, radius: int) -> DeepMatcher:
    """The same network with the settings of ``deepmatching flow``."""
    from deepmatching.matcher import DeepMatcher

    settings = replace(matcher.settings, radius=radius, reciprocal=RECIPROCAL, subpixel=True)
    return DeepMatcher(matcher.network.at_radius(radius), settings)


def _matcher(row: Row, **settings: Any) -> DeepMatcher | None:
    """The matcher of a row; None if it has no model, or one that this version of the package lacks."""
    from deepmatching.descriptors import VGG
    from deepmatching.descriptors.pretrained import is_published, load_vgg
    from deepmatching.matcher import DeepMatcher
    from deepmatching.models import build_network, model_path

    if row.model is None:
        return None
    if row.is_given and is_published(row.model):
        like = build_matcher("hog", **settings)
        network = build_network("vgg", like.network.radius)
        assert isinstance(network.descriptor, VGG)
        load_vgg(network.descriptor, row.model)
        return DeepMatcher(network, like.settings)
    if not row.is_given and row.model != "hog":
        try:
            model_path(row.model)
        except DeepMatchingError:
            return None
    return build_matcher(row.model, **settings)


def _open(table: str, root: Path, limit: int | None, masks: bool) -> dict[str, FilePairs]:
    """The data sets of a table that are below the root; there must be at least one."""
    from deepmatching.datasets import open_dataset
    from deepmatching.evaluation.paper_tables import FOLDERS, PAPER

    found = {}
    for name in PAPER[table]:
        folder = root / FOLDERS[name]
        if not folder.is_dir():
            say(f"there is no folder '{folder}': {name} is left out")
            continue
        dataset = open_dataset(name, folder, masks=masks)
        found[name] = dataset.thinned(limit) if limit is not None else dataset
    if not found:
        folders = " or ".join(dict.fromkeys(str(root / FOLDERS[name]) for name in PAPER[table]))
        raise DeepMatchingError(f"There is nothing to evaluate: put or link the data set to {folders}.")
    return found
