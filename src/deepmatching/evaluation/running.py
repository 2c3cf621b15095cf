"""Measuring a method on every pair of a data set."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
from torch import Tensor

from deepmatching.datasets.base import Pair
from deepmatching.datasets.pairs import FilePairs
from deepmatching.defaults import SPREAD
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.metrics import PairMetrics, flow_metrics, match_metrics
from deepmatching.evaluation.recording import Recorder
from deepmatching.evaluation.results import Evaluation, PairResult
from deepmatching.matches import Matches


class PairMatcher(Protocol):
    """A matcher of two images (3, H, W). It may have an attribute ``spread``, see ``match_metrics``."""

    def match(self, image0: Tensor, image1: Tensor, /) -> Matches: ...


class PairDataset(Protocol):
    """Pairs by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Pair: ...


#: From two images (3, H, W) to a flow (H, W, 2).
FlowFunction = Callable[[Tensor, Tensor], np.ndarray]

#: Called after each pair with the pair, its result, and either (matches, field) or the flow.
OnPair = Callable[[Pair, PairResult, Any], None]

Output = TypeVar("Output")


def evaluate(
    matcher: PairMatcher,
    dataset: PairDataset,
    recorder: Recorder | None = None,
    on_pair: OnPair | None = None,
    warm_up: bool = False,
) -> Evaluation:
    """Measure a matcher on every pair of a data set, as the paper does.

    >>> evaluation = evaluate(DeepMatcher.from_pretrained("hog"), open_dataset("sintel-clean", "MPI-Sintel"))
    >>> evaluation.means("sintel-clean")["acc@10"]

    Args:
        matcher: any object with ``match(image0, image1) -> Matches``.
        dataset: see ``deepmatching.datasets``.
        recorder: keeps results in a file and skips the pairs that are done.
        on_pair: receives each pair, its result, and (matches, field).
        warm_up: match the first pair once before the clock starts, so that no pair's time contains compilation.
    """
    spread = float(getattr(matcher, "spread", SPREAD))

    def measure(matches: Matches, truth: np.ndarray, occluded: np.ndarray | None) -> tuple[PairMetrics, Any]:
        metrics, field = match_metrics(matches, truth, occluded, spread)
        return metrics, (matches, field)

    recorder = recorder or Recorder(Evaluation("matches", total=len(dataset)))
    return _run(matcher.match, measure, dataset, recorder, on_pair, warm_up)


def evaluate_flow(
    function: FlowFunction,
    dataset: PairDataset,
    recorder: Recorder | None = None,
    on_pair: OnPair | None = None,
    warm_up: bool = False,
) -> Evaluation:
    """Measure a dense flow on every pair of a data set.

    Args:
        function: from two images (3, H, W) in [0, 1] to a flow (H, W, 2) in pixels.
        dataset, recorder, warm_up: as for :func:`evaluate`.
        on_pair: receives each pair, its result, and the flow.
    """

    def measure(flow: np.ndarray, truth: np.ndarray, occluded: np.ndarray | None) -> tuple[PairMetrics, Any]:
        return flow_metrics(np.asarray(flow), truth, occluded), flow

    recorder = recorder or Recorder(Evaluation("flow", total=len(dataset)))
    return _run(function, measure, dataset, recorder, on_pair, warm_up)


def _run(
    compute: Callable[[Tensor, Tensor], Output],
    measure: Callable[[Output, np.ndarray, np.ndarray | None], tuple[PairMetrics, Any]],
    dataset: PairDataset,
    recorder: Recorder,
    on_pair: OnPair | None,
    warm_up: bool,
) -> Evaluation:
    """Pairs without any known ground truth are left out; at least one pair must have some."""
    if not len(dataset):
        raise DeepMatchingError("The data set has no pairs; there is nothing to evaluate.")
    done, left_out = recorder.done, []
    if warm_up and len(done) < len(dataset):
        with _naming_pair(dataset, 0):
            compute(*dataset[0][:2])
    for index in range(len(dataset)):
        if index in done:
            continue
        with _naming_pair(dataset, index):
            pair = dataset[index]
            truth = pair.flow.cpu().numpy()
            if not np.isfinite(truth).all(axis=2).any():
                left_out.append(pair.name)
                continue
            group, has_masks = _describe(dataset, index, pair)
            start = time.perf_counter()
            output = compute(pair.image0, pair.image1)
            seconds = time.perf_counter() - start
            metrics, shown = measure(output, truth, pair.occluded.cpu().numpy() if has_masks else None)
        result = PairResult(index, group, pair.name, seconds, metrics)
        if on_pair is not None:
            on_pair(pair, result, shown)
        recorder.add(result)
    if not recorder.evaluation.pairs:
        raise DeepMatchingError(
            "No pair has a pixel with known ground truth, so there is nothing to measure; "
            "check the flows, homographies and masks."
        )
    recorder.leave_out(left_out)
    return recorder.evaluation


@contextlib.contextmanager
def _naming_pair(dataset: PairDataset, index: int) -> Iterator[None]:
    """Add the number and the name of the pair to an error that the user can fix."""
    try:
        yield
    except DeepMatchingError as error:
        name = ""
        if isinstance(dataset, FilePairs):
            entry = dataset.entries[index]
            name = f" ('{entry.name}' of {entry.group})"
        raise type(error)(f"Pair {index + 1} of {len(dataset)}{name}: {error}") from error


def _describe(dataset: PairDataset, index: int, pair: Pair) -> tuple[str, bool]:
    """The group of a pair, and whether its mask of occluded pixels means anything."""
    if isinstance(dataset, FilePairs):
        entry = dataset.entries[index]
        return entry.group, entry.knows_occlusion
    return str(getattr(dataset, "name", "data")), bool(pair.occluded.any())
