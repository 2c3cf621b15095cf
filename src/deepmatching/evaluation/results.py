"""Results of an evaluation: metrics of each pair, their means, and their file, which an interrupted run resumes."""

import json
import math
import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.metrics import PIXEL_SETS, PairMetrics
from deepmatching.io.files import check_writable, read_bytes, write_file
from deepmatching.io.store import check_same_settings
from deepmatching.io.structured import parse_json

Kind = Literal["matches", "flow"]
_FORMAT = "deepmatching evaluation 1"
TWO_VIEW = "two_view"  #: the metrics of the geometry of the two views
_SETS = (*PIXEL_SETS, TWO_VIEW)  #: all names of sets of metrics
LIMITS = (5, 10, 20)  #: errors T of AUC@T, in pixels or degrees: a pair counts max(0, 1 − error / T)
_DRAWS = 2000  #: times that a bootstrap draws all pairs
_KEY_METRIC = {"matches": "acc@2", "flow": "epe"}  #: the metric that is NaN if a pair has none of the pixels


@dataclass(frozen=True)
class PairResult:
    """The metrics of one pair."""

    index: int  #: of the pair in its data set
    group: str  #: the pairs it is averaged with
    name: str  #: scene and frame
    seconds: float  #: from two images in memory to their matches or flow
    metrics: PairMetrics  #: for each set of pixels, see ``deepmatching.evaluation.metrics``


@dataclass(frozen=True)
class Evaluation:
    """The accuracy of a method on a data set."""

    kind: Kind  #: what was measured
    #: the method, the data set and their options, JSON-serializable; resuming needs equal settings
    settings: Mapping[str, Any] = field(default_factory=dict)
    total: int = 0  #: number of pairs to evaluate
    pairs: tuple[PairResult, ...] = ()  #: results so far, by index
    unknown: int = 0  #: number of pairs that were left out because none of their ground truth is known

    @property
    def is_finished(self) -> bool:
        return len(self.pairs) + self.unknown == self.total

    @property
    def groups(self) -> list[str]:
        """Return the groups in the order of the data set."""
        return list(dict.fromkeys(pair.group for pair in self.pairs))

    def means(self, group: str, pixels: str = "all") -> dict[str, float]:
        """Return means over pairs, as in the paper: every pair counts the same, unless it lacks the metric (NaN).

        ``pairs`` is the number of pairs that have these pixels, ``seconds`` is the median over them.
        """
        return self._summary(group, pixels, lambda row, name: 1.0)

    def pixel_means(self, group: str, pixels: str = "all") -> dict[str, float]:
        """Return means over all pixels of all pairs, as Sintel and KITTI 2015 publish them; for ``"flow"`` only."""
        means = self._summary(group, pixels, lambda row, name: row.get(f"pixels {name}", row["pixels"]))
        means.pop("occlusion", None)  # pixels have no average precision of their own
        return means

    def _summary(self, group: str, pixels: str, weight: Callable[[dict[str, float], str], float]) -> dict[str, float]:
        pairs = self._pairs_with(group, pixels)
        rows = [pair.metrics[pixels] for pair in pairs]
        names = [name for name in (rows[0] if rows else {}) if name != "error" and not name.startswith("pixels")]
        return {
            "pairs": float(len(rows)),
            **{name: _mean([(row[name], weight(row, name)) for row in rows]) for name in names},
            "seconds": statistics.median(pair.seconds for pair in pairs) if pairs else math.nan,
        }

    def pixel_sets(self, group: str) -> list[str]:
        """Return the sets of pixels that a group has metrics for."""
        return [name for name in PIXEL_SETS if self._pairs_with(group, name)]

    def two_view(self, limit: int = 10) -> dict[str, np.ndarray]:
        """Return AUC@limit, in %, of the pairs of each group that has pairs with a known geometry."""
        pairs = {group: self._pairs_with(group, TWO_VIEW) for group in self.groups}
        return {g: np.array([p.metrics[TWO_VIEW][f"auc@{limit}"] for p in rows]) for g, rows in pairs.items() if rows}

    def _pairs_with(self, group: str, pixels: str) -> list[PairResult]:
        """Return the pairs of a group that have any of these pixels."""
        first = "auc@5" if pixels == TWO_VIEW else _KEY_METRIC[self.kind]
        pairs = [pair for pair in self.pairs if pair.group == group and pixels in pair.metrics]
        return [pair for pair in pairs if not math.isnan(pair.metrics[pixels][first])]

    def to_json(self) -> dict[str, Any]:
        """Return everything, JSON-serializable: NaN is null. The means are for readers and are not read again."""
        kinds = {"means": self.means, "pixel_means": self.pixel_means} if self.kind == "flow" else {"means": self.means}
        means = {
            kind: {
                group: {name: _without_nan(mean(group, name)) for name in _SETS if self._pairs_with(group, name)}
                for group in self.groups
            }
            for kind, mean in kinds.items()
        }
        pairs = [
            {"index": pair.index, "dataset": pair.group, "name": pair.name, "seconds": pair.seconds}
            | {pixels: _without_nan(metrics) for pixels, metrics in pair.metrics.items()}
            for pair in self.pairs
        ]
        head = {"format": _FORMAT, "kind": self.kind, "settings": dict(self.settings)}
        return {**head, "total": self.total, "unknown": self.unknown, **means, "pairs": pairs}

    @classmethod
    def from_json(cls, content: Any) -> "Evaluation":
        """Invert :meth:`to_json`; raise ValueError, LookupError, TypeError or AttributeError otherwise."""
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError("it has another format")
        if content["kind"] not in ("matches", "flow"):
            raise ValueError("it is of another kind")
        pairs = []
        for pair in content["pairs"]:
            metrics = {name: _with_nan(pair[name]) for name in _SETS if name in pair}
            index, group, name, seconds = (pair[key] for key in ("index", "dataset", "name", "seconds"))
            pairs.append(PairResult(int(index), str(group), str(name), float(seconds), metrics))
        of_pixels = {_KEY_METRIC[content["kind"]]} | ({"pixels"} if content["kind"] == "flow" else set())
        for pixels in _SETS:  # means take the metrics of the first pair
            needed = {f"auc@{limit}" for limit in LIMITS} if pixels == TWO_VIEW else of_pixels
            names = {frozenset(pair.metrics[pixels]) for pair in pairs if pixels in pair.metrics}
            if len(names) > 1 or not all(needed <= found for found in names):
                raise ValueError("its pairs have different metrics")
        unknown = int(content.get("unknown", 0))
        return cls(content["kind"], dict(content["settings"]), int(content["total"]), tuple(pairs), unknown)

    def save(self, path: str | os.PathLike[str]) -> None:
        write_file(path, json.dumps(self.to_json(), indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Evaluation":
        data = read_bytes(path, "evaluation file")
        try:
            return cls.from_json(parse_json(data))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DeepMatchingError(f"'{path}' is not an evaluation of ours ({error}); give another name.") from error


class Recorder:
    """Collects results, keeps them in a file, and knows which pairs are done.

    As a context manager it leaves the file complete, however the block ends. The file is written after each pair, and
    less often once writing takes a tenth of the time. A finished evaluation is replaced; an interrupted one can only be
    resumed, with equal settings. ``report`` receives a line about pairs that are left out, and one, with the ``hint``,
    if the block ends early.
    """

    def __init__(
        self,
        empty: Evaluation,
        path: str | os.PathLike[str] | None = None,
        resume: bool = False,
        report: Callable[[str], object] = lambda line: None,
        hint: str = "go on with --resume",
    ) -> None:
        self.evaluation, self.path = empty, path
        if path is not None:
            check_writable(path)
            if os.path.isfile(path) and os.path.getsize(path):
                self.evaluation = _continued(empty, Evaluation.load(path), path, resume)
        self._report, self._hint, self._before = report, hint, len(self.evaluation.pairs)
        self._unsaved, self._saved_at, self._cost = False, time.perf_counter(), 0.0

    @property
    def done(self) -> frozenset[int]:
        """Return the indices of the finished pairs."""
        return frozenset(pair.index for pair in self.evaluation.pairs)

    def add(self, result: PairResult) -> None:
        self.evaluation = replace(self.evaluation, pairs=(*self.evaluation.pairs, result))
        self._unsaved = True
        if time.perf_counter() - self._saved_at >= 10 * self._cost:
            self._save()

    def leave_out(self, names: Sequence[str]) -> None:
        """Record, after the last pair, those without any known ground truth."""
        self._unsaved |= len(names) != self.evaluation.unknown
        self.evaluation = replace(self.evaluation, unknown=len(names))
        if names:
            listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            total = self.evaluation.total
            self._report(f"left out {len(names)} of {total} pairs, whose ground truth is unknown: {listed}")

    def _save(self) -> None:
        start = time.perf_counter()
        if self.path is not None:
            self.evaluation.save(self.path)
        self._unsaved, self._saved_at = False, time.perf_counter()
        self._cost = self._saved_at - start

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._unsaved:
            self._save()
        kept = len(self.evaluation.pairs)
        if error is not None and self.path is not None and kept > self._before:
            first = "fix the error below, then " if isinstance(error, DeepMatchingError) else ""
            self._report(f"{kept} of {self.evaluation.total} pairs are kept in {self.path}: {first}{self._hint}")


def _continued(empty: Evaluation, before: Evaluation, path: str | os.PathLike[str], resume: bool) -> Evaluation:
    """Return the evaluation to go on with: that of the file, or an empty one that will replace it."""
    if not resume and (before.is_finished or not before.pairs):
        return empty
    old, new = ({"kind": e.kind, **e.settings, "pairs": e.total} for e in (before, empty))
    if old.get("sha256") is not None and old.get("sha256") == new.get("sha256"):
        old["model"] = new["model"]  # the same file by another path
    advice = "use the same settings" if resume else "continue that unfinished evaluation"
    check_same_settings(f"The results in '{path}'", old, new, f"{advice}, or name another file or folder")
    if not resume:
        done = f"{len(before.pairs)} of the {before.total} pairs of this evaluation"
        raise DeepMatchingError(f"'{path}' holds {done}: go on with --resume (resume=True) or name another file.")
    return before


def bootstrap_interval(groups: Collection[np.ndarray]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of the groups' means, when pairs are drawn anew within each group."""
    generator = np.random.default_rng(0)
    means = [values[generator.integers(len(values), size=(_DRAWS, len(values)))].mean(axis=1) for values in groups]
    low, high = np.percentile(np.mean(means, axis=0), (2.5, 97.5))
    return float(low), float(high)


def _mean(weighted: list[tuple[float, float]]) -> float:
    """Return the weighted mean of the values that are not NaN."""
    known = [(value, weight) for value, weight in weighted if weight and not math.isnan(value)]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else math.nan


def _without_nan(metrics: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in metrics.items()}


def _with_nan(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: math.nan if value is None else float(value) for name, value in metrics.items()}
