"""``deepmatching reproduce``: the paper's tables, our numbers beside the published ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from deepmatching.commands.common import (
    SUBPIXEL_HELP,
    Device,
    Radius,
    ReciprocalOption,
    StructuredForest,
    build_matcher,
    edge_source,
    say,
    say_incomplete,
)
from deepmatching.commands.progress import progress_bar
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import FLOW_RADIUS, PRESET, RADIUS, RECIPROCAL, RECIPROCAL_IN_PAPER

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from deepmatching.data.datasets import FilePairs
    from deepmatching.evaluation import Recorder
    from deepmatching.evaluation.paper_tables import Numbers, Row
    from deepmatching.flow.pipeline import EdgesLike
    from deepmatching.matcher import DeepMatcher
    from deepmatching.matches import Matches


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
    reciprocal: ReciprocalOption = RECIPROCAL_IN_PAPER,
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
    rows: Annotated[
        str | None,
        typer.Option(metavar="ROW,…", help="Only these rows of the table, such as a,c,g.", show_default="all"),
    ] = None,
    datasets: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Only these data sets of table2: kitti2012, sintel-final, sintel-clean.",
            show_default="all below the root",
        ),
    ] = None,
    kitti_images: Annotated[
        Literal["grey", "color"] | None,
        typer.Option(help="KITTI's grey images (image_0) or those in colour (colored_0).", show_default="grey, if any"),
    ] = None,
    edges: Annotated[
        Literal["network", "gradient"],
        typer.Option(help="Edge detector of the flow; the paper's is the structured forest."),
    ] = "network",
    structured_forest: StructuredForest = None,
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
    as in the paper, with EpicFlow's settings for Sintel and KITTI. The paper's EpicFlow
    had the edges of a structured forest: give its model with --structured-forest.
    The paper does not name SintelMini's scenes, so ours differ: compare the rows
    of table1 with each other, not with the paper's.
    """
    from deepmatching.evaluation.paper_tables import PAPER, ROWS, comparison_table
    from deepmatching.evaluation.tables import print_table
    from deepmatching.io.files import make_folder

    chosen = _chosen("--rows", rows, {row.key: row for row in ROWS[table]})
    named = _with_checkpoints(chosen, checkpoint or [])
    names = [name for name in PAPER[table] if name in _chosen("--datasets", datasets, {n: n for n in PAPER[table]})]
    protocol = Protocol(limit, masks, edge_source(edges, structured_forest), _edges_in_words(edges, structured_forest))
    opened = _open(names, root, protocol, kitti_images)
    matchers = {}
    for row in named:
        between = row.is_ours if subpixel is None else subpixel
        matchers[row] = _matcher(row, radius=radius, device=device, reciprocal=reciprocal, subpixel=between)
        _warn_if_chosen_on(list(opened), row)
    if out is not None:
        make_folder(out)
    ours = {}
    for name, dataset in opened.items():
        for row, matcher in matchers.items():
            if matcher is not None:
                prefix = out / f"{table}-{name}-{row.key}" if out is not None else None
                ours[name, row.key] = _measure(row, matcher, dataset, protocol, prefix, default_flow)
    words = f"radius {radius}, reciprocal {reciprocal}, {_describe_subpixel(named, subpixel)}"
    words += f", edges: {protocol.edges_in_words}"
    print_table(comparison_table(table, named, names, ours, masks, words))


@dataclass(frozen=True)
class Protocol:
    """What all rows are measured with.

    Attributes:
        limit, masks: as the options.
        edges: where the flow's edges come from.
        edges_in_words: the same as a word.
    """

    limit: int | None
    masks: bool
    edges: EdgesLike
    edges_in_words: str


def _edges_in_words(edges: str, structured_forest: Path | None) -> str:
    return edges if structured_forest is None else "structured forest"


Item = TypeVar("Item")


def _chosen(option: str, text: str | None, known: Mapping[str, Item]) -> tuple[Item, ...]:
    """The items whose keys a comma-separated option lists, in the order of the table; all without the option."""
    keys = list(known) if text is None else [key.strip() for key in text.split(",")]
    for key in keys:
        if key not in known:
            raise DeepMatchingError(
                f"{option} must list some of {', '.join(known)}, separated by commas, not '{text}'."
            )
    return tuple(item for key, item in known.items() if key in keys)


def _describe_subpixel(rows: tuple[Row, ...], subpixel: bool | None) -> str:
    """Which of the rows have matches between the cells."""
    if subpixel is not None:
        return "sub-pixel matches where the model has learned them" if subpixel else "matches on cells"
    own = [row.key for row in rows if row.is_ours]
    return "matches on cells" + (f", sub-pixel matches in row {', '.join(own)}" if own else "")


def _measure(
    row: Row, matcher: DeepMatcher, dataset: FilePairs, protocol: Protocol, prefix: Path | None, default_flow: bool
) -> dict[str, Numbers]:
    """Our lines of a row; continue from its files if there are any. Each pair is matched once for matches and flow."""
    from deepmatching.data.datasets import Pair
    from deepmatching.evaluation import PairResult, evaluate_flow, evaluate_with_flow
    from deepmatching.evaluation.paper_tables import epicflow_preset, lines_of

    def flow(image0: Tensor, image1: Tensor, matches: Matches) -> np.ndarray:
        return matcher.flow(image0, image1, preset, edges=protocol.edges, matches=matches).flow

    preset = epicflow_preset(dataset.name)
    recorder = partial(_recorder, row, dataset, protocol, prefix)
    with recorder("matches", matcher) as of_matches, recorder("flow", matcher, preset) as of_flow:
        done = len(of_matches.done & of_flow.done)
        with progress_bar(f"{dataset.name} {row.key}", len(dataset), done) as advance:

            def on_pair(pair: Pair, result: PairResult, shown: Any) -> None:
                advance(f"{result.group} {result.name}")

            evaluations = evaluate_with_flow(matcher, flow, dataset, (of_matches, of_flow), on_pair, warm_up=True)
    if not default_flow:
        return lines_of(*evaluations)
    plain = _like_deepmatching_flow(matcher)
    title = f"{dataset.name} {row.key}, default flow"
    with (
        recorder("default-flow", plain, PRESET) as of_default,
        progress_bar(title, len(dataset), len(of_default.done)) as advance,
    ):
        by_default = evaluate_flow(
            lambda image0, image1: plain.flow(image0, image1, PRESET, edges=protocol.edges).flow,
            dataset,
            of_default,
            on_pair,
            warm_up=True,
        )
    return lines_of(*evaluations, by_default)


def _recorder(
    row: Row,
    dataset: FilePairs,
    protocol: Protocol,
    prefix: Path | None,
    kind: str,
    matcher: DeepMatcher,
    preset: str | None = None,
) -> Recorder:
    """Keeps the results of a row in its file of that kind, and knows what is there already."""
    from deepmatching.evaluation import Evaluation, Recorder
    from deepmatching.flow import describe_preset
    from deepmatching.models import describe_model

    assert row.model is not None
    is_other = preset is not None and protocol.edges_in_words != "network"
    settings = {
        **{"dataset": dataset.name, "limit": protocol.limit, **describe_model(row.model), **matcher.describe()},
        **({} if protocol.masks else {"masks": False}),
        **({} if preset is None else describe_preset(preset)),
        **({"edges": protocol.edges_in_words} if is_other else {}),
        "contents": dataset.contents_hash,
    }
    empty = Evaluation("matches" if preset is None else "flow", settings, len(dataset))
    file = prefix.with_name(f"{prefix.name}-{kind}.json") if prefix is not None else None
    report = say if preset is not None else lambda line: None  # matches and flow are of the same pairs
    return Recorder(empty, file, resume=True, report=report, hint="run the same command to continue")


def _with_checkpoints(rows: tuple[Row, ...], checkpoints: list[str]) -> tuple[Row, ...]:
    from deepmatching.network.descriptors.pretrained import is_published

    given: dict[str, dict[str, Any]] = {}
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
    from deepmatching.io.structured import parse_json

    card = _card(path)
    try:
        names = [Path(name).name for name in parse_json(card["config"])["data"]["train"]]
    except (KeyError, TypeError, ValueError):
        return "yours"
    return f"{'+'.join(names)}, {'best' if 'score' in card else 'last'}"


def _warn_if_chosen_on(datasets: list[str], row: Row) -> None:
    """Say so if the model of a row is the best one of a run on pairs that it is reported on here."""
    from deepmatching.evaluation.paper_tables import FOLDERS
    from deepmatching.io.structured import parse_json

    card = _card(row.model) if row.is_given and row.model is not None else {}
    if "score" not in card:
        return  # not the best of a run
    try:
        config = parse_json(card["config"])
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


def _like_deepmatching_flow(matcher: DeepMatcher) -> DeepMatcher:
    """The same network with the settings of ``deepmatching flow``."""
    from deepmatching.matcher import DeepMatcher

    settings = replace(matcher.settings, radius=FLOW_RADIUS, reciprocal=RECIPROCAL, subpixel=True)
    return DeepMatcher(matcher.network.at_radius(FLOW_RADIUS), settings)


def _matcher(row: Row, **settings: Any) -> DeepMatcher | None:
    """The matcher of a row; None if it has no model, or one that this version of the package lacks."""
    from deepmatching.matcher import DeepMatcher
    from deepmatching.models import build_network, model_path
    from deepmatching.network.descriptors import VGG
    from deepmatching.network.descriptors.pretrained import is_published, load_vgg

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


def _open(
    names: list[str], root: Path, protocol: Protocol, kitti_images: Literal["grey", "color"] | None
) -> dict[str, FilePairs]:
    """The data sets that are below the root; there must be at least one."""
    from deepmatching.data.datasets import open_dataset
    from deepmatching.evaluation.paper_tables import FOLDERS

    found = {}
    for name in names:
        folder = root / FOLDERS[name]
        if not os.path.isdir(folder):
            say(f"there is no folder '{folder}': {name} is left out")
            continue
        images = f"-{kitti_images}" if kitti_images is not None and name == "kitti2012" else ""
        found[name] = open_dataset(name + images, folder, masks=protocol.masks, limit=protocol.limit)
        say_incomplete(found[name])
    if not found:
        folders = " or ".join(dict.fromkeys(str(root / FOLDERS[name]) for name in names))
        raise DeepMatchingError(f"There is nothing to evaluate: put or link the data set to {folders}.")
    return found
