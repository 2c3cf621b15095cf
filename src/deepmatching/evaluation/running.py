"""Going through a data set, pair by pair."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from deepmatching.datasets.base import Pair
from deepmatching.datasets.pairs import FilePairs
from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.figures import flow_figures, match_figures
from deepmatching.evaluation.results import Evaluation, PairResult
from deepmatching.io.files import check_writable
from deepmatching.matches import Matches


class PairMatcher(Protocol):
    """What is asked of a matcher. A ``spread`` other than 8 px may be an attribute, see ``match_figures``."""

    def match(self, image0: Tensor, image1: Tensor) -> Matches: ...


class PairDataset(Protocol):
    """What is asked of a data set: pairs by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Pair: ...


#: From two images (3, H, W) to a flow (H, W, 2).
FlowFunction = Callable[[Tensor, Tensor], np.ndarray]


class Recorder:
    """Collects results, keeps them in a file, and knows which pairs need not be evaluated again.

    As a context manager it leaves the file complete, however the block ends. The file is written after each pair;
    less often once writing takes a tenth of the time.

    Args:
        empty: the evaluation that is to be filled.
        path: the JSON file, or None. One that is there already must be an evaluation; a finished one is replaced, and
            one that has been interrupted is only gone on with.
        resume: take over the pairs of the file, whose settings must be equal.
    """

    def __init__(self, empty: Evaluation, path: str | os.PathLike[str] | None = None, resume: bool = False) -> None:
        self.evaluation, self.path = empty, path
        if path is not None:
            check_writable(path)
            if Path(path).exists() and Path(path).stat().st_size:
                self.evaluation = _continued(empty, Evaluation.load(path), path, resume)
        self._unsaved, self._saved_at, self._cost = False, time.perf_counter(), 0.0

    @property
    def done(self) -> frozenset[int]:
        """Indices of the pairs that are there."""
        return frozenset(pair.index for pair in self.evaluation.pairs)

    def add(self, result: PairResult) -> None:
        self.evaluation = self.evaluation.with_pair(result)
        self._unsaved = True
        if time.perf_counter() - self._saved_at >= 10 * self._cost:
            self._save()

    def leave_out(self, unknown: int) -> None:
        """Record how many pairs there is nothing to know of, once all have been seen."""
        self._unsaved |= unknown != self.evaluation.unknown
        self.evaluation = replace(self.evaluation, unknown=unknown)

    def _save(self) -> None:
        start = time.perf_counter()
        if self.path is not None:
            self.evaluation.save(self.path)
        self._unsaved, self._saved_at = False, time.perf_counter()
        self._cost = self._saved_at - start

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unsaved:
            self._save()


def _continued(empty: Evaluation, before: Evaluation, path: str | os.PathLike[str], resume: bool) -> Evaluation:
    """The evaluation of the file, if it is of the same thing and to be gone on with."""
    if not resume and (before.is_finished or not before.pairs):
        return empty
    old, new = ({"kind": e.kind, **e.settings, "pairs": e.total} for e in (before, empty))
    for name in {**new, **old}:
        if old.get(name) != new.get(name):
            what = "cannot be resumed" if resume else "holds another, unfinished evaluation"
            raise DeepMatchingError(
                f"'{path}' {what}: its {name} is {old.get(name)!r}, and now it is {new.get(name)!r}; "
                f"{'use the same settings, or name' if resume else 'name'} another file or folder."
            )
    if not resume:
        raise DeepMatchingError(
            f"'{path}' holds {len(before.pairs)} of the {before.total} pairs of this evaluation already; "
            "go on with --resume (resume=True) or name another file."
        )
    return before


#: Called after each pair: with the pair, its result, and the matches or flow with the field that was compared.
OnPair = Callable[[Pair, PairResult, Any], None]


def evaluate(
    matcher: PairMatcher,
    dataset: PairDataset,
    recorder: Recorder | None = None,
    on_pair: OnPair | None = None,
) -> Evaluation:
    """The paper's figures of a matcher on every pair of a data set.

    >>> evaluation = evaluate(DeepMatcher.from_pretrained("hog"), open_dataset("sintel-clean", "MPI-Sintel"))
    >>> evaluation.means("sintel-clean")["acc@10"]

    Args:
        matcher: anything with ``match(image0, image1) -> Matches``.
        dataset: see ``deepmatching.datasets``.
        recorder: keeps results in a file and skips pairs that it has.
        on_pair: gets each pair, its result, and (matches, field).
    """
    spread = float(getattr(matcher, "spread", 8))

    def measure(pair: Pair, truth: np.ndarray, occluded: np.ndarray | None) -> tuple[float, Any, Any]:
        start = time.perf_counter()
        matches = matcher.match(pair.image0, pair.image1)
        seconds = time.perf_counter() - start
        figures, field = match_figures(matches, truth, occluded, spread)
        return seconds, figures, (matches, field)

    return _run(measure, dataset, recorder or Recorder(Evaluation("matches", total=len(dataset))), on_pair)


def evaluate_flow(
    function: FlowFunction,
    dataset: PairDataset,
    recorder: Recorder | None = None,
    on_pair: OnPair | None = None,
) -> Evaluation:
    """The figures of a dense flow on every pair of a data set.

    Args:
        function: from two images (3, H, W) in [0, 1] to a flow (H, W, 2) in pixels.
        dataset, recorder: as for :func:`evaluate`.
        on_pair: gets each pair, its result, and the flow.
    """

    def measure(pair: Pair, truth: np.ndarray, occluded: np.ndarray | None) -> tuple[float, Any, Any]:
        start = time.perf_counter()
        flow = np.asarray(function(pair.image0, pair.image1))
        seconds = time.perf_counter() - start
        return seconds, flow_figures(flow, truth, occluded), flow

    return _run(measure, dataset, recorder or Recorder(Evaluation("flow", total=len(dataset))), on_pair)


def _run(
    measure: Callable[[Pair, np.ndarray, np.ndarray | None], tuple[float, Any, Any]],
    dataset: PairDataset,
    recorder: Recorder,
    on_pair: OnPair | None,
) -> Evaluation:
    """Pairs without a pixel of known ground truth are left out; one pair at least must have some."""
    if not len(dataset):
        raise DeepMatchingError("The data set has no pairs; there is nothing to evaluate.")
    done, unknown = recorder.done, 0
    for index in range(len(dataset)):
        if index in done:
            continue
        with naming_pair(dataset, index):
            pair = dataset[index]
            truth = pair.flow.cpu().numpy()
            if not np.isfinite(truth).all(axis=2).any():
                unknown += 1
                continue
            group, knows_occlusion = _described(dataset, index, pair)
            occluded = pair.occluded.cpu().numpy() if knows_occlusion else None
            seconds, figures, shown = measure(pair, truth, occluded)
        result = PairResult(index, group, pair.name, seconds, figures)
        if on_pair is not None:
            on_pair(pair, result, shown)
        recorder.add(result)
    if not recorder.evaluation.pairs:
        raise DeepMatchingError(
            "No pair has a pixel with known ground truth, so there is nothing to measure; "
            "check the flows, homographies and masks."
        )
    recorder.leave_out(unknown)
    return recorder.evaluation


@contextlib.contextmanager
def naming_pair(dataset: PairDataset, index: int) -> Iterator[None]:
    """What the user can put right about a pair is said with its place and name in the data set."""
    try:
        yield
    except DeepMatchingError as error:
        name = ""
        if isinstance(dataset, FilePairs):
            entry = dataset.entries[index]
            name = f" ('{entry.name}' of {entry.group})"
        raise type(error)(f"Pair {index + 1} of {len(dataset)}{name}: {error}") from error


def _described(dataset: PairDataset, index: int, pair: Pair) -> tuple[str, bool]:
    """The group of a pair, and whether its mask of occluded pixels means something."""
    if isinstance(dataset, FilePairs):
        entry = dataset.entries[index]
        return entry.group, entry.knows_occlusion
    return str(getattr(dataset, "name", "data")), bool(pair.occluded.any())
