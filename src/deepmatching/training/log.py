"""The metrics of a run over time: ``log.csv``, and TensorBoard if it is installed."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import atomic_write

Row = dict[str, float]


class CsvLog:
    """A table that grows by whole lines. Any row may add columns.

    Args:
        path: the file; created by the first row.
        step: later rows are dropped, since the resumed run repeats those steps.
        validated: rows of later validations, those without a learning rate, are dropped too; None to keep them. The
            run may have been killed after a validation and before it was saved.
    """

    def __init__(self, path: Path, step: int, validated: int | None = None) -> None:
        self.path = path
        last_validation = step if validated is None else validated
        self.rows = [row for row in read_log(path) if row["step"] <= (step if "lr" in row else last_validation)]
        self.columns = list(dict.fromkeys(name for row in self.rows for name in row))
        self._rewrite()

    def add(self, row: Mapping[str, float]) -> None:
        """Append a row and write it at once."""
        self.rows.append(dict(row))
        if new := [name for name in row if name not in self.columns]:
            self.columns += new
            self._rewrite()
        else:
            try:
                with open(self.path, "a", encoding="utf-8", newline="") as file:
                    self._writer(file).writerow(_formatted(row))
            except OSError as error:
                raise DeepMatchingError(
                    f"The log '{self.path}' cannot be written ({error.strerror}): free some disk space, or close the "
                    "program that has the file open."
                ) from error

    def _rewrite(self) -> None:
        if self.columns:
            with atomic_write(self.path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
                writer = self._writer(file)
                writer.writeheader()
                writer.writerows(map(_formatted, self.rows))

    def _writer(self, file: TextIO) -> csv.DictWriter[str]:
        return csv.DictWriter(file, self.columns, lineterminator="\n")


def _formatted(row: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{value:.0f}" if value % 1 == 0 else f"{value:.6g}" for name, value in row.items()}


def read_log(path: Path) -> list[Row]:
    """The rows of a log, each with the columns it has; an incomplete last line is left out."""
    try:
        text = path.read_text(encoding="utf-8").replace("\0", "")  # a power failure may leave zeros
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DeepMatchingError(f"The log '{path}' cannot be read ({error}): move it away.") from error
    lines = text[: text.rfind("\n") + 1].splitlines()
    rows = []
    for values in _records(lines, path):
        try:
            row = {name: float(value) for name, value in values.items() if name and value}
        except (TypeError, ValueError):
            continue
        if "step" in row:
            rows.append(row)
    return rows


def _records(lines: list[str], path: Path) -> list[dict[str, str]]:
    try:
        return list(csv.DictReader(lines))
    except csv.Error as error:
        raise DeepMatchingError(f"The log '{path}' cannot be read ({error}): move it away.") from error


class TensorBoard:
    """The rows as TensorBoard events in a folder."""

    def __init__(self, folder: Path, step: int) -> None:
        """Raises ImportError if TensorBoard is not installed."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)  # type: ignore[no-untyped-call]

    def add(self, row: Mapping[str, float]) -> None:
        step = int(row["step"])
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._writer.close()  # type: ignore[no-untyped-call]
