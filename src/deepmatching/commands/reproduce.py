"""``deepmatching reproduce``: the paper's tables, our numbers beside the published ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepmatching.commands import options
from deepmatching.commands.messages import progress_bar, say, say_incomplete
from deepmatching.commands.options import argument, option
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import FLOW_RADIUS, PRESET, RADIUS, RECIPROCAL, RECIPROCAL_IN_PAPER, Rank

if TYPE_CHECKING:
    from deepmatching.data.datasets import FilePairs
    from deepmatching.evaluation import PairResult, Recorder
    from deepmatching.evaluation.paper_tables import Method, TableRow
    from deepmatching.flow.pipeline import EdgesLike
    from deepmatching.matcher import DeepMatcher

Table = Literal["table1", "table2"]


@options.command("radius", "reciprocal", "device", radius=RADIUS, reciprocal=RECIPROCAL_IN_PAPER)
def reproduce(
    table: Table = argument(..., "TABLE", "Table of the paper: table1 or table2."),
    root: Path = option(..., "Folder with the data sets: sintel/ and, for table2, kitti2012/.", "DIR"),
    *,
    checkpoint: list[str] | None = option(
        None,
        "Model of a row, such as b=runs/b/last.safetensors; may be repeated. Give last.safetensors: best.safetensors "
        "is chosen on the validation pairs, so report it on other pairs only. Rows are a to h in table1; hog, cnn, vgg "
        "and compact in table2. Rows c and cnn also take ImageNet's VGG-16: c=vgg16.npz, c=vgg16.safetensors or "
        "c=download.",
        "ROW=FILE",
    ),
    settings: dict[str, Any],
    subpixel: bool | None = option(None, options.SUBPIXEL_HELP, shown="on cells in the paper's rows, as in the paper"),
    rank: Rank | None = option(None, options.RANK_HELP, shown="by score in the paper's rows, as in the paper"),
    limit: int | None = option(None, "Evaluate N evenly spaced pairs of each data set only.", "N", "all pairs", min=1),
    masks: bool = option(True, "Leave out pixels that the data sets' masks call invalid, and measure NOC."),
    rows: str | None = option(None, "Only these rows of the table, such as a,c,g.", "ROW,…", "all"),
    datasets: str | None = option(
        None, "Only these data sets of table2: kitti2012, sintel-final, sintel-clean.", "NAME,…", "all below the root"
    ),
    kitti_images: Literal["grey", "color"] | None = option(
        None, "KITTI's grey images (image_0) or those in colour (colored_0).", shown="grey, if any"
    ),
    edges: options.Edges = option("network", "Edge detector of the flow; the paper's is the structured forest."),
    structured_forest: Path | None = options.STRUCTURED_FOREST,
    default_flow: bool = option(
        False, f"Add a line to each row with the flow of `deepmatching flow`: radius {FLOW_RADIUS}, preset {PRESET}."
    ),
    out: Path | None = option(
        None, "Keep the metrics of all pairs in this folder; the same command then continues from there.", "DIR"
    ),
    threads: int | None = options.THREADS,
) -> None:
    """Run a table of the paper on the real data sets.

    Rows without a model and data sets that are not below the root get a dash. Matches are verified, ranked and lie on
    cells as in the paper, unless options say otherwise; our own model (h, compact) has sub-pixel matches, ranked by its
    confidence. Flow is made from the same matches as in the paper, with EpicFlow's settings for Sintel and KITTI. The
    paper's EpicFlow had the edges of a structured forest: give its model with --structured-forest. The paper does not
    name SintelMini's scenes, so ours differ: compare the rows of table1 with each other, not with the paper's.
    """
    from deepmatching.evaluation.paper_tables import METHODS, PAPER, comparison_table
    from deepmatching.evaluation.report import print_table
    from deepmatching.io.files import new_folders

    keys = _listed("--rows", rows, [row.key for row in METHODS[table]])
    chosen = _with_checkpoints([row for row in METHODS[table] if row.key in keys], checkpoint or [])
    names = _listed("--datasets", datasets, list(PAPER[table]))
    edge_source = options.edge_source(edges, structured_forest)
    protocol = Protocol(table, rank, limit, masks, edge_source, default_flow, out)
    opened, matchers = protocol.open(names, root, kitti_images), {}
    for row in chosen:
        own = {**settings, "subpixel": row.is_ours if subpixel is None else subpixel}
        if (matcher := _matcher(row, own, threads)) is not None:
            matchers[row] = matcher
        _warn_if_chosen_on(opened, row)
    with new_folders(*filter(None, [out])):
        pairs = product(opened.items(), matchers.items())
        ours = {(name, row.key): protocol.measure(name, data, row, own) for (name, data), (row, own) in pairs}
    own_rows = ", ".join(row.key for row in chosen if row.is_ours)
    words = [f"radius {settings['radius']}", f"reciprocal {settings['reciprocal']}"]
    words += ["sub-pixel matches where the model has learned them" if subpixel else "matches on cells"]
    words += [f"sub-pixel matches in row {own_rows}"] * (subpixel is None and own_rows != "")
    words += [f"ranked by {rank or 'score'}"]
    words += [f"by confidence in row {own_rows}"] * (rank is None and own_rows != "")
    words += [f"edges: {options.edges_in_words(edge_source)}"]
    print_table(comparison_table(table, chosen, names, ours, masks, ", ".join(words)))


def _listed(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Return the known words that a comma-separated option lists, in their order; all without the option."""
    keys = list(known) if text is None else [key.strip() for key in text.split(",")]
    if not set(keys) <= set(known):
        raise DeepMatchingError(f"{option} must list some of {', '.join(known)}, separated by commas, not '{text}'.")
    return [key for key in known if key in keys]


@dataclass(frozen=True)
class Protocol:
    """How all rows are measured; see the options."""

    table: Table
    rank: Rank | None
    limit: int | None
    masks: bool
    edges: EdgesLike
    default_flow: bool
    out: Path | None

    def open(self, names: Iterable[str], root: Path, kitti_images: str | None) -> dict[str, FilePairs]:
        """Return the data sets that are below the root; raise if there is none."""
        from deepmatching.data.datasets import open_dataset
        from deepmatching.evaluation.paper_tables import FOLDERS

        folders = {name: root / FOLDERS[name] for name in names}
        if not any(map(os.path.isdir, folders.values())):
            places = " or ".join(dict.fromkeys(map(str, folders.values())))
            raise DeepMatchingError(f"There is nothing to evaluate: put or link the data set to {places}.")
        opened = {}
        for name, folder in folders.items():
            if os.path.isdir(folder):
                images = f"-{kitti_images}" if kitti_images is not None and name == "kitti2012" else ""
                opened[name] = open_dataset(name + images, folder, masks=self.masks, limit=self.limit)
                say_incomplete(opened[name])
            else:
                say(f"there is no folder '{folder}': {name} is left out")
        return opened

    def measure(self, name: str, dataset: FilePairs, row: Method, matcher: DeepMatcher) -> dict[str, TableRow]:
        """Return our lines of a row, continued from its files. Each pair is matched once for matches and flow."""
        from deepmatching.evaluation import evaluate_flow, evaluate_with_flow
        from deepmatching.evaluation.paper_tables import epicflow_preset, lines_of
        from deepmatching.matcher import DeepMatcher

        def on_pair(pair: object, result: PairResult, shown: object) -> None:
            advance(f"{result.group} {result.name}")

        title, preset = f"{dataset.name} {row.key}", epicflow_preset(dataset.name)
        recorder = partial(self.recorder, name, dataset, row)
        with (
            recorder("matches", matcher) as of_matches,
            recorder("flow", matcher, preset) as of_flow,
            progress_bar(title, len(dataset), len(of_matches.done & of_flow.done)) as advance,
        ):
            evaluations = evaluate_with_flow(
                matcher,
                lambda a, b, matches: matcher.flow(a, b, preset, edges=self.edges, matches=matches).flow,
                *(dataset, (of_matches, of_flow), on_pair, True, self.rank_of(row)),
            )
        if not self.default_flow:
            return lines_of(*evaluations)
        of_command = replace(matcher.settings, radius=FLOW_RADIUS, reciprocal=RECIPROCAL, subpixel=True)
        default_matcher = DeepMatcher(matcher.network.at_radius(FLOW_RADIUS), of_command)
        with (
            recorder("default-flow", default_matcher, PRESET) as of_default,
            progress_bar(f"{title}, default flow", len(dataset), len(of_default.done)) as advance,
        ):
            flow = partial(default_matcher.flow, preset=PRESET, edges=self.edges)
            by_default = evaluate_flow(lambda a, b: flow(a, b).flow, dataset, of_default, on_pair, warm_up=True)
        return lines_of(*evaluations, by_default)

    def rank_of(self, row: Method) -> Rank:
        """Return what ranks the matches of a row: Q_0 in the paper's, unless an option says otherwise."""
        return self.rank or ("confidence" if row.is_ours else "score")

    def recorder(
        self, name: str, dataset: FilePairs, row: Method, kind: str, matcher: DeepMatcher, preset: str | None = None
    ) -> Recorder:
        """Return the keeper of a row's results of that kind, which knows what is in its file already."""
        from deepmatching.evaluation import Evaluation, Recorder

        assert row.model is not None
        edges, rank = options.edges_in_words(self.edges), self.rank_of(row)
        settings = {
            **{"dataset": dataset.name, "limit": self.limit, **({} if self.masks else {"masks": False})},
            **options.describe(row.model, matcher, preset, edges, rank),
            "contents": dataset.contents_hash,
        }
        empty = Evaluation("matches" if preset is None else "flow", settings, len(dataset))
        file = None if self.out is None else self.out / f"{self.table}-{name}-{row.key}-{kind}.json"
        report = say if preset is not None else lambda line: None  # matches and flow are of the same pairs
        return Recorder(empty, file, resume=True, report=report, hint="run the same command to continue")


def _with_checkpoints(rows: Sequence[Method], checkpoints: Iterable[str]) -> tuple[Method, ...]:
    """Return the rows with the models that ``--checkpoint`` gives them."""
    from deepmatching.network.descriptors.pretrained import is_published

    known = {row.key: row for row in rows}
    for text in checkpoints:
        key, _, path = text.partition("=")
        if key not in known or not path:
            raise DeepMatchingError(f"--checkpoint must be ROW=FILE with a row of {', '.join(known)}, not '{text}'.")
        train, _, is_best = _card(path)
        training = f"{'+'.join(train)}, {'best' if is_best else 'last'}" if train else "yours"
        ours = "ImageNet" if is_published(path) else training
        known[key] = replace(known[key], model=path, ours=ours, is_given=True)
    return tuple(known.values())


def _card(path: str) -> tuple[list[str], list[str], bool]:
    """Return the training data and the validation data that a model's card names, and whether it is its run's best."""
    from deepmatching.io.structured import parse_json
    from deepmatching.models import model_path, read_model

    try:
        card = read_model(model_path(path))[1]
        config = parse_json(card["config"])
        train = [Path(name).name for name in config["data"]["train"]]
        is_same = config["validation"]["data"] == ["train"] or config["data"]["overfit"]
        return train, train if is_same else list(config["validation"]["data"]), "score" in card
    except (DeepMatchingError, KeyError, ValueError, TypeError):  # a wrong path is reported when the matcher is built
        return [], [], False


def _warn_if_chosen_on(datasets: Iterable[str], row: Method) -> None:
    """Say so if the model of a row is the best one of a run on pairs that it is reported on here."""
    from deepmatching.evaluation.paper_tables import FOLDERS

    _, names, is_best = _card(row.model) if row.is_given and row.model else ([], [], False)
    families = {name.partition("-")[0].replace("sintelmini", "sintel") for name in names}
    if is_best and (same := [name for name in datasets if FOLDERS[name] in families]):
        say(
            f"note: row {row.key} is the best checkpoint on pairs of {', '.join(names)} and is reported on "
            f"{', '.join(same)}: give last.safetensors beside it, or a model that was validated elsewhere"
        )


def _matcher(row: Method, settings: dict[str, Any], threads: int | None) -> DeepMatcher | None:
    """Return the matcher of a row; None if it has no model."""
    from deepmatching.matcher import DeepMatcher
    from deepmatching.models import build_network
    from deepmatching.network.descriptors import VGG
    from deepmatching.network.descriptors.pretrained import is_published, load_vgg

    if row.model is None:
        return None
    if row.is_given and is_published(row.model):
        like = options.build_matcher("hog", settings, threads)
        network = build_network("vgg", like.network.radius)
        assert isinstance(network.descriptor, VGG)
        load_vgg(network.descriptor, row.model)
        return DeepMatcher(network, like.settings)
    return options.build_matcher(row.model, settings, threads)
