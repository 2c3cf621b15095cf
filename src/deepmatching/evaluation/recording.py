"""The file of an evaluation: written as pairs are done, and resumed after an interruption."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation.results import Evaluation, PairResult
from deepmatching.io.files import check_writable
from deepmatching.io.store import check_same_settings


class Recorder:
    """Collects results, keeps them in a file, and knows which pairs are done.

    As a context manager it leaves the file complete, however the block ends. The file is written after each pair, and
    less often once writing takes a tenth of the time.

    Args:
        empty: the evaluation to fill.
        path: the JSON file, or None. A finished evaluation is replaced, an interrupted one can only be resumed.
        resume: take over the pairs of the file, whose settings must be equal.
        report: receives a line about pairs that are left out, and one, with the ``hint``, if the block ends early.
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
        self.evaluation = self.evaluation.with_pair(result)
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

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        raise DeepMatchingError(
            f"'{path}' holds {len(before.pairs)} of the {before.total} pairs of this evaluation already; "
            "go on with --resume (resume=True) or name another file."
        )
    return before
