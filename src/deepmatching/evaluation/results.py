"""Results of an evaluation: figures pair by pair, their means, and the file that holds them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.figures import PIXEL_SETS, PairFigures
from deepmatching.io.files import atomic_write

Kind = Literal["matches", "flow"]
_FORMAT = "deepmatching evaluation 1"


@dataclass(frozen=True)
class PairResult:
    """The figures of one pair.

    Attributes:
        index: of the pair in its data set.
        group: what it is averaged with.
        name: scene and frame.
        seconds: from two images in memory to their matches or flow.
        figures: for each set of pixels, see ``deepmatching.evaluation.figures``.
    """

    index: int
    group: str
    name: str
    seconds: float
    figures: PairFigures


@dataclass(frozen=True)
class Evaluation:
    """What a method reaches on a data set.

    Attributes:
        kind: of the figures: ``"matches"`` or ``"flow"``.
        settings: what was evaluated on what, as JSON can hold it; only equal settings may be continued.
        total: how many pairs there are to evaluate.
        pairs: those that have been, by index.
        unknown: how many have no pixel with known ground truth, and are left out.
    """

    kind: Kind
    settings: Mapping[str, Any] = field(default_factory=dict)
    total: int = 0
    pairs: tuple[PairResult, ...] = ()
    unknown: int = 0

    @property
    def is_finished(self) -> bool:
        return len(self.pairs) + self.unknown == self.total

    def with_pair(self, pair: PairResult) -> Evaluation:
        return replace(self, pairs=(*self.pairs, pair))

    @property
    def groups(self) -> list[str]:
        """In the order of the data set."""
        return list(dict.fromkeys(pair.group for pair in self.pairs))

    def means(self, group: str, pixels: str = "all") -> dict[str, float]:
        """Means over pairs, as in the paper: every pair counts the same. Pairs without a figure (NaN) do not count.

        ``pairs`` is the number of pairs that have these pixels, ``seconds`` is the median over them.
        """
        rows = self._rows(group, pixels)
        names = [name for name in (rows[0].figures[pixels] if rows else {}) if not name.startswith("pixels")]
        means = {name: _mean([row.figures[pixels][name] for row in rows]) for name in names}
        return {"pairs": float(len(rows)), **means, "seconds": _median([row.seconds for row in rows])}

    def pixel_means(self, group: str, pixels: str = "all") -> dict[str, float]:
        """Means over the pixels of all pairs together, as Sintel and KITTI 2015 publish them; for ``"flow"`` only."""
        rows = self._rows(group, pixels)
        means = {}
        for name in [name for name in (rows[0].figures[pixels] if rows else {}) if not name.startswith("pixels")]:
            count = f"pixels {name}" if f"pixels {name}" in rows[0].figures[pixels] else "pixels"
            weighted = [(row.figures[pixels][name], row.figures[pixels][count]) for row in rows]
            means[name] = _weighted_mean([(value, weight) for value, weight in weighted if weight])
        return {"pairs": float(len(rows)), **means, "seconds": _median([row.seconds for row in rows])}

    def pixel_sets(self, group: str) -> list[str]:
        """The sets of pixels that have figures in a group."""
        return [name for name in PIXEL_SETS if self._rows(group, name)]

    def _rows(self, group: str, pixels: str) -> list[PairResult]:
        """The pairs of a group that have these pixels."""
        first = {"matches": "acc@2", "flow": "epe"}[self.kind]
        return [
            pair
            for pair in self.pairs
            if pair.group == group and pixels in pair.figures and not math.isnan(pair.figures[pixels][first])
        ]

    # ------------------------------------------------------------------ files

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it: NaN is null. The means are for readers and are not read again."""
        kinds: dict[str, Callable[[str, str], dict[str, float]]] = {"means": self.means}
        if self.kind == "flow":
            kinds["pixel_means"] = self.pixel_means
        return {
            "format": _FORMAT,
            "kind": self.kind,
            "settings": dict(self.settings),
            "total": self.total,
            "unknown": self.unknown,
            **{
                name: {
                    group: {pixels: _without_nan(means(group, pixels)) for pixels in self.pixel_sets(group)}
                    for group in self.groups
                }
                for name, means in kinds.items()
            },
            "pairs": [
                {
                    "index": pair.index,
                    "dataset": pair.group,
                    "name": pair.name,
                    "seconds": pair.seconds,
                    **{pixels: _without_nan(figures) for pixels, figures in pair.figures.items()},
                }
                for pair in self.pairs
            ],
        }

    @classmethod
    def from_json(cls, content: Any) -> Evaluation:
        """What :meth:`to_json` gave; raises ValueError, KeyError or TypeError for anything else."""
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError("it has another format")
        if content["kind"] not in ("matches", "flow"):
            raise ValueError("it is of another kind")
        pairs = tuple(
            PairResult(
                int(pair["index"]),
                str(pair["dataset"]),
                str(pair["name"]),
                float(pair["seconds"]),
                {name: _with_nan(pair[name]) for name in PIXEL_SETS if name in pair},
            )
            for pair in content["pairs"]
        )
        unknown = int(content.get("unknown", 0))
        return cls(content["kind"], dict(content["settings"]), int(content["total"]), pairs, unknown)

    def save(self, path: str | os.PathLike[str]) -> None:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(self.to_json(), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Evaluation:
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DeepMatchingError(f"There is no evaluation file '{path}'; check the path.") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DeepMatchingError(
                f"'{path}' is not an evaluation that deepmatching wrote ({error}); give another name."
            ) from error


def _mean(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if not ordered:
        return math.nan
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _weighted_mean(values: list[tuple[float, float]]) -> float:
    total = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / total if total else math.nan


def _without_nan(figures: dict[str, float]) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def _with_nan(figures: Mapping[str, Any]) -> dict[str, float]:
    return {name: math.nan if value is None else float(value) for name, value in figures.items()}
