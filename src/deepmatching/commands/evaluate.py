"""``deepmatching evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepmatching.commands import messages, options
from deepmatching.commands.messages import progress_bar, say
from deepmatching.commands.options import argument, option, refuse
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import FLOW_RADIUS, MODEL, PRESET, RADIUS, RECIPROCAL, Rank

if TYPE_CHECKING:
    from torch import Tensor

    from deepmatching.evaluation.running import FlowFunction, PairMatcher
    from deepmatching.flow.pipeline import EdgesLike
    from deepmatching.matcher import DeepMatcher
    from deepmatching.matches import Matches


@options.command(
    *("radius", "levels", "downscale", "reciprocal", "subpixel", "pooling", "search", "rotations", "scales"),
    *("max_size", "half", "memory", "device", "auto"),
    auto=False,
    shown={"radius": f"{RADIUS}; with --flow {FLOW_RADIUS}"},
)
def evaluate(
    dataset: str = argument(
        ...,
        "DATASET",
        "sintel-clean, sintel-final, sintelmini, chairs, kitti2012 (or kitti2012-grey, kitti2012-color), kitti2015, or "
        "a .json list of your own pairs.",
    ),
    *,
    root: Path | None = option(None, "Folder of the data set.", "DIR"),
    split: str | None = option(None, "Split of chairs or sintelmini; all is for chairs.", "train|val|all", "val"),
    passes: Literal["clean", "final"] | None = option(None, "Rendering of Sintel.", shown="clean", flags="--pass"),
    split_file: Path | None = option(None, "Split file of chairs.", "FILE", "FlyingChairs_train_val.txt in its folder"),
    masks: bool = option(True, "Measure visible and occluded pixels separately too, and leave out invalid pixels."),
    only: list[str] | None = option(None, "Evaluate this 'dataset' of a .json list; may be repeated.", "NAME", "all"),
    limit: int | None = option(None, "Evaluate N evenly spaced pairs only.", "N", "all pairs", min=1),
    model: str | None = option(None, options.MODEL_HELP, "NAME|PATH", MODEL),
    method: str | None = option(
        None,
        "Evaluate a method of OpenCV instead of a model: sift, sift-8000, orb, akaze (keypoints); dis, "
        "dis-fast, farneback, deepflow, pcaflow, tvl1, sparse-to-dense, rlof (dense).",
        "NAME",
    ),
    flow: bool = option(False, "Evaluate the dense flow instead of the matches."),
    preset: str | None = option(
        None, "Preset of --flow: default, classic, original, sintel, kitti or middlebury.", "NAME", PRESET
    ),
    edges: options.Edges | None = option(None, "Edge detector of --flow.", shown="network"),
    structured_forest: Path | None = options.STRUCTURED_FOREST,
    rank: Rank | None = option(None, options.RANK_HELP, shown="confidence"),
    min_confidence: float | None = options.LEAST_CONFIDENCE,
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
    json_file: Path | None = options.JSON,
    resume: bool = option(False, "Continue an interrupted evaluation from its --json file."),
    pictures: Path | None = option(None, "Draw each pair into this folder: matches, ground truth, error.", "DIR"),
    per_pair: bool = option(False, "Print the metrics of each pair too."),
) -> None:
    """Measure accuracy on pairs with ground truth.

    acc@T: pixels with ground truth, in %, whose displacement is off by at most T px. A pixel takes the displacement of
    the most confident match within 8 px along each axis (--rank score: of the highest score, as in the paper); without
    one it is wrong. After a search, the displacement changes from the match to the pixel by the match's transformation.
    EPE: mean error of the matches themselves, in px. Means over pairs, as in the paper.

    With --flow, EPE: mean error of all pixels, in px. >3px: pixels off by more than 3 px, in %. Fl: pixels off by more
    than 3 px and 5 % of the true displacement, in %. s0-10, s10-40, s40+: EPE where the true displacement is below 10,
    10 to 40, above 40 px. occlusion: average precision of the stated occlusion, in %. Means over pairs, and over all
    pixels.

    AUC@T: for pairs of a .json list with a homography, points or a pose, the mean of max(0, 1 - error / T), in %. The
    error is that of the geometry that MAGSAC finds in the matches, in px of images of 1024 px, or in degrees.

    Rows are sets of pixels, all: those with ground truth. With masks, noc: those visible in the second image, and occ:
    those hidden in it.
    """
    from deepmatching.data.datasets import Pair, open_dataset
    from deepmatching.evaluation import Evaluation, PairResult, Recorder, evaluate_flow, report
    from deepmatching.evaluation import evaluate as evaluate_matches
    from deepmatching.io.files import new_folders

    of_flow = {"preset": preset, "edges": edges, "structured_forest": structured_forest}
    if method is not None:
        if model is not None:
            raise DeepMatchingError("--model and --method exclude each other: leave one out.")
        changed = {
            **settings,
            "reciprocal": settings["reciprocal"] != RECIPROCAL,
            "device": settings["device"] not in ("auto", "cpu"),
            "max_size": settings["max_size"] if flow else None,
            "subpixel": False,
            "no_subpixel": not settings["subpixel"],
        }
        changed |= {"threads": threads, "rank": rank, "min_confidence": min_confidence, **of_flow}
        refuse(changed, "has no effect on methods of OpenCV: leave it out.")
    elif not flow:
        refuse(of_flow, "is for --flow: leave it out.")
    if flow:
        refuse({"rank": rank, "min_confidence": min_confidence}, "is for matches, not for --flow: leave it out.")
    if resume and json_file is None:
        raise DeepMatchingError("--resume continues a file of metrics: name it with --json FILE.")
    options.check_outputs([(json_file, options.check_json_suffix)], (Path(dataset),))
    first = None if only else limit  # --only comes before --limit
    data = open_dataset(dataset, root, split, passes=passes, split_file=split_file, masks=masks, limit=first)
    messages.say_incomplete(data)
    data = data.only(only) if only else data
    data = data.thinned(limit) if limit is not None else data
    if method is not None:
        name, size = method, settings["max_size"]
        matcher, flow_function = _opencv_method(method, flow, size)
        described: dict[str, Any] = {"method": method} if size is None else {"method": method, "max_size": size}
    else:
        name = model or MODEL
        if settings["radius"] is None and not (flow or settings["auto"]):  # a given radius is never widened
            settings["radius"] = RADIUS
        source = options.edge_source(edges or "network", structured_forest)
        built = options.build_matcher(name, settings, threads)
        used = (preset or PRESET) if flow else None
        matcher, flow_function = _our_method(built, used, source)
        described = options.describe(name, matcher, used, options.edges_in_words(source), rank)
        described |= {} if min_confidence is None else {"min_confidence": min_confidence}
    recorded = {
        **{"dataset": dataset if dataset.endswith(".json") else data.name, "only": sorted(only or [])},
        **{"limit": limit, "masks": masks, **described, "contents": data.contents_hash},
    }
    recorder = Recorder(Evaluation("flow" if flow else "matches", recorded, len(data)), json_file, resume, say)
    folders = () if pictures is None else (pictures,)
    with new_folders(*folders), recorder, progress_bar(name, len(data), len(recorder.done)) as advance:

        def on_pair(pair: Pair, result: PairResult, shown: Any) -> None:
            if pictures is not None:
                report.draw_pair(pictures, pair, result, shown)
            advance(f"{result.group} {result.name}")

        if flow_function is not None:
            evaluation = evaluate_flow(flow_function, data, recorder, on_pair, warm_up=method is None)
        else:
            kept = matcher if min_confidence is None else _Confident(matcher, min_confidence)
            evaluation = evaluate_matches(kept, data, recorder, on_pair, method is None, rank or "confidence")
    title = name if method else _title(name, recorded)
    if any(evaluation.pixel_sets(group) for group in evaluation.groups):
        if per_pair:
            report.print_table(report.pairs_table(evaluation))
        report.print_table(report.means_table(evaluation, title))
    if evaluation.two_view():
        if per_pair:
            report.print_table(report.two_view_pairs_table(evaluation))
        report.print_table(report.two_view_table(evaluation, title))
    messages.say_written(json_file, pictures)


def _title(model: str, recorded: dict[str, Any]) -> str:
    """Return the model, its radius, and settings that differ from the defaults."""
    reciprocal = recorded["reciprocal"]
    return (
        f"{model}, radius {recorded['radius'] or (FLOW_RADIUS if 'preset' in recorded else RADIUS)}"
        + (", auto" if recorded["auto"] else "")
        + (f", reciprocal {reciprocal}" if reciprocal != RECIPROCAL else "")
        + ("" if recorded["subpixel"] else ", matches on cells")
        + (f", {recorded['pooling']} pooling" if "pooling" in recorded else "")
        + (", search" if "search" in recorded else "")
        + (", ranked by score" if "rank" in recorded else "")
        + (f", confidence at least {recorded['min_confidence']}" if "min_confidence" in recorded else "")
        + (f", edges: {recorded['edges']}" if "edges" in recorded else "")
    )


class _Confident:
    """Keeps the matches of a matcher with at least this confidence."""

    def __init__(self, matcher: PairMatcher, min_confidence: float) -> None:
        self._matcher, self._min_confidence = matcher, min_confidence

    def match(self, image0: Tensor, image1: Tensor) -> Matches:
        """Match two images (3, H, W)."""
        return self._matcher.match(image0, image1).filter(self._min_confidence)


def _opencv_method(name: str, flow: bool, max_size: int | None) -> tuple[PairMatcher, FlowFunction | None]:
    """Return a method of OpenCV, and its flow if that is evaluated."""
    from deepmatching.evaluation.baselines import AtReducedSize, DenseMethod, baseline

    method = baseline(name)
    if not flow:
        return method if max_size is None else AtReducedSize(method, max_size), None
    if not isinstance(method, DenseMethod):
        raise DeepMatchingError("--flow needs a method that gives a dense flow: use --method dis, say.")
    return method, method.flow


def _our_method(matcher: DeepMatcher, preset: str | None, edges: EdgesLike) -> tuple[DeepMatcher, FlowFunction | None]:
    """Return the matcher of a model, with the flow of a preset or without flow (None)."""
    from deepmatching.flow import preset as preset_of

    if preset is None:
        return matcher, None
    settings, for_flow = preset_of(preset), matcher.for_flow()
    return for_flow, lambda image0, image1: for_flow.flow(image0, image1, settings, edges=edges).read()
