"""Measuring a method on every pair of a data set."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from deepmatching.data.datasets.pairs import Entry, FilePairs, Pair, PairDataset
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.metrics import PairMetrics, flow_metrics, match_metrics
from deepmatching.evaluation.results import TWO_VIEW, Evaluation, PairResult, Recorder
from deepmatching.evaluation.two_view import two_view_metrics
from deepmatching.flow import FlowResult
from deepmatching.geometry.homographies import Size
from deepmatching.io.images import size_of
from deepmatching.matches import Matches
from deepmatching.settings import PROPAGATION_RADIUS, Rank


class PairMatcher(Protocol):
    """A matcher of two images (3, H, W). It may have an attribute ``spread``, see ``match_metrics``."""

    def match(self, image0: Tensor, image1: Tensor, /) -> Matches: ...


#: From two images (3, H, W) in [0, 1] to a flow (H, W, 2), or to a result whose occlusion is measured too.
FlowFunction = Callable[[Tensor, Tensor], np.ndarray | FlowResult]

#: Called after each pair with the pair, its result, and either (matches, field or None) or the flow.
OnPair = Callable[[Pair, PairResult, Any], None]


def evaluate(
    matcher: PairMatcher,
    dataset: PairDataset,
    recorder: Recorder | None = None,
    on_pair: OnPair | None = None,
    warm_up: bool = False,
    rank: Rank = "confidence",
) -> Evaluation:
    """Measure a matcher on every pair of a data set, as the paper does with the ``rank`` ``score``.

    Of pairs in files, those with a homography, points or a pose also get :mod:`deepmatching.evaluation.two_view`.

    >>> evaluation = evaluate(DeepMatcher.from_pretrained("hog"), open_dataset("sintel-clean", "MPI-Sintel"))
    >>> evaluation.means("sintel-clean")["acc@10"]

    Args:
        recorder: keeps results in a file and skips the pairs that are done.
        on_pair: receives each pair, its result, and (matches, field).
        warm_up: match the first pair once before the clock starts, since that may compile kernels.
    """
    recorder = recorder or Recorder(Evaluation("matches", total=len(dataset)))
    _run([_matching(matcher, recorder, rank)], dataset, on_pair, warm_up)
    return recorder.evaluation


def evaluate_flow(
    function: FlowFunction,
    dataset: PairDataset,
    recorder: Recorder | None = None,
    on_pair: OnPair | None = None,
    warm_up: bool = False,
) -> Evaluation:
    """Measure a dense flow on every pair of a data set; see :func:`evaluate`. ``on_pair`` receives the flow last."""
    recorder = recorder or Recorder(Evaluation("flow", total=len(dataset)))
    stage = Stage(lambda image0, image1, before: function(image0, image1), _measure_flow, recorder)
    _run([stage], dataset, on_pair, warm_up)
    return recorder.evaluation


def evaluate_with_flow(
    matcher: PairMatcher,
    flow: Callable[[Tensor, Tensor, Matches], np.ndarray],
    dataset: PairDataset,
    recorders: tuple[Recorder, Recorder],
    on_pair: OnPair | None = None,
    warm_up: bool = False,
    rank: Rank = "confidence",
) -> tuple[Evaluation, Evaluation]:
    """Measure a matcher and the ``flow`` that is made from its matches, with a recorder for either.

    Each pair is matched once; its time for the flow includes that for the matches. See :func:`evaluate`. ``on_pair``
    receives the last result and what was measured for it.
    """
    stages = [_matching(matcher, recorders[0], rank), Stage(flow, _measure_flow, recorders[1])]
    _run(stages, dataset, on_pair, warm_up)
    return recorders[0].evaluation, recorders[1].evaluation


class Truth(NamedTuple):
    """What is known of a pair."""

    sizes: tuple[Size, Size]  #: (rows, columns) of both images
    flow: np.ndarray | None  #: (H, W, 2), NaN where unknown; None if it is unknown everywhere
    occluded: np.ndarray | None  #: (H, W) bool; None without masks
    views: Entry | None  #: of a pair with a homography, points or a pose


@dataclass(frozen=True)
class Stage:
    """A step from two images to something that is measured."""

    compute: Callable[[Tensor, Tensor, Any], Any]  #: from two images and the output of the stage before to its own
    measure: Callable[[Any, Truth], tuple[PairMetrics, Any]]  #: to metrics and what ``on_pair`` gets
    recorder: Recorder


def _matching(matcher: PairMatcher, recorder: Recorder, rank: Rank) -> Stage:
    spread = float(getattr(matcher, "spread", PROPAGATION_RADIUS))

    def measure(matches: Matches, truth: Truth) -> tuple[PairMetrics, Any]:
        metrics: PairMetrics = {}
        field = None
        if truth.flow is not None:
            metrics, field = match_metrics(matches, truth.flow, truth.occluded, spread, rank)
        if truth.views is not None:
            metrics[TWO_VIEW] = two_view_metrics(matches, truth.views, *truth.sizes)
        return metrics, (matches, field)

    return Stage(lambda image0, image1, before: matcher.match(image0, image1), measure, recorder)


def _measure_flow(found: np.ndarray | FlowResult, truth: Truth) -> tuple[PairMetrics, Any]:
    assert truth.flow is not None
    flow, stated = (found.flow, found.occlusion) if isinstance(found, FlowResult) else (np.asarray(found), None)
    return flow_metrics(flow, truth.flow, truth.occluded, stated), flow


def _run(stages: Sequence[Stage], dataset: PairDataset, on_pair: OnPair | None, warm_up: bool) -> None:
    """Run the stages on all pairs but those without any known ground truth; at least one pair must have some."""
    if not len(dataset):
        raise DeepMatchingError("The data set has no pairs; there is nothing to evaluate.")
    done, left_out = [stage.recorder.done for stage in stages], []
    needs_flow = any(stage.recorder.evaluation.kind == "flow" for stage in stages)
    if warm_up and any(len(indices) < len(dataset) for indices in done):
        with _naming_pair(dataset, 0):
            output = None
            for stage in stages:
                output = stage.compute(*dataset[0][:2], output)
    for index in range(len(dataset)):
        missing = [n for n, indices in enumerate(done) if index not in indices]
        if not missing:
            continue
        with _naming_pair(dataset, index):
            pair = dataset[index]
            group, truth = _known(dataset, index, pair)
            if truth.flow is None and (needs_flow or truth.views is None):
                left_out.append(pair.name)
                continue
            output, seconds, results = None, 0.0, []
            for n, stage in enumerate(stages[: missing[-1] + 1]):
                start = time.perf_counter()
                output = stage.compute(pair.image0, pair.image1, output)
                seconds += time.perf_counter() - start
                if n in missing:
                    metrics, shown = stage.measure(output, truth)
                    results.append((stage, PairResult(index, group, pair.name, seconds, metrics)))
        if on_pair is not None:
            on_pair(pair, results[-1][1], shown)
        for stage, result in results:
            stage.recorder.add(result)
    if not all(stage.recorder.evaluation.pairs for stage in stages):
        raise DeepMatchingError(
            "No pair has a pixel with known ground truth, so there is nothing to measure; "
            "check the flows, homographies and masks."
        )
    for stage in stages:
        stage.recorder.leave_out(left_out)


@contextlib.contextmanager
def _naming_pair(dataset: PairDataset, index: int) -> Iterator[None]:
    """Add the number and the name of the pair to an error that the user can fix."""
    try:
        yield
    except DeepMatchingError as error:
        entry = dataset.entries[index] if isinstance(dataset, FilePairs) else None
        name = f" ('{entry.name}' of {entry.group})" if entry else ""
        raise type(error)(f"Pair {index + 1} of {len(dataset)}{name}: {error}") from error


def _known(dataset: PairDataset, index: int, pair: Pair) -> tuple[str, Truth]:
    """Return the group of a pair, and what is known of it."""
    entry = dataset.entries[index] if isinstance(dataset, FilePairs) else None
    has_masks = bool(pair.occluded.any()) if entry is None else entry.knows_occlusion
    flow, occluded = pair.flow.cpu().numpy(), pair.occluded.cpu().numpy() if has_masks else None
    known = flow if np.isfinite(flow).all(axis=2).any() else None
    sizes = size_of(pair.image0), size_of(pair.image1)
    if entry is None:
        return str(getattr(dataset, "name", "data")), Truth(sizes, known, occluded, None)
    return entry.group, Truth(sizes, known, occluded, entry if entry.flow is None else None)
