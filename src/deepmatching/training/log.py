"""The metrics of a run over time: summed over steps, written to ``log.csv`` and, if it is installed, TensorBoard."""

import contextlib
import csv
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import atomic_write
from deepmatching.network.network import Network
from deepmatching.training.checkpoints import Progress
from deepmatching.training.processes import World

Row = dict[str, float]


class StepMetrics:
    """Sums over steps of the loss, its metrics and the gradient norm, kept on the device."""

    def __init__(self, progress: Progress, world: World) -> None:
        self.world, self.count = world, progress.count
        self.sums = {name: torch.tensor(value, device=world.device) for name, value in progress.sums.items()}
        self._last_row = time.monotonic(), progress.step

    def add(self, batches: Sequence[dict[str, Tensor]], norm: Tensor) -> None:
        """Add a step: the metrics of its batches and its gradient norm."""
        means = {name: torch.stack([batch[name] for batch in batches]).mean() for name in batches[0]}
        for name, value in {**means, "gradient": norm}.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.count += 1

    def totals(self) -> dict[str, float]:
        """Return the sums, averaged over the processes, so that any number of processes can continue from them."""
        if not self.sums:
            return {}
        means = self.world.sum(torch.stack(list(self.sums.values()))) / self.world.size
        return dict(zip(self.sums, means.tolist(), strict=True))

    def row(self, progress: Progress, network: Network, rate: float, elapsed: float) -> Row:
        """Return a row for the log, with the means since the last row, and start over."""
        means = {name: total / max(1, self.count) for name, total in self.totals().items()}
        now, (then, step) = time.monotonic(), self._last_row
        row: Row = {"step": progress.step, "seconds": elapsed, "lr": rate, **means, "skipped": progress.skipped}
        row["steps_per_s"] = (progress.step - step) / max(now - then, 1e-9)
        row |= {f"nu_{l}": value for l, value in enumerate(network.exponents.tolist())}
        if network.sharpness is not None:
            row["kappa"] = network.sharpness.item()
        if network.log_temperatures is not None:
            row |= {f"beta_{l}": value for l, value in enumerate(network.log_temperatures.exp().tolist())}
        self.sums, self.count, self._last_row = {}, 0, (now, progress.step)
        return row


class CsvLog:
    """A table that grows by whole lines. Any row may add columns.

    It drops rows after ``step``, which the resumed run repeats, and validations after ``validated``, which were not
    saved; None keeps them.
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
            return
        try:
            with open(self.path, "a", encoding="utf-8", newline="") as file:
                csv.DictWriter(file, self.columns, lineterminator="\n").writerow(_formatted(row))
        except OSError as error:
            failure = f"The log '{self.path}' cannot be written ({error.strerror})"
            raise DeepMatchingError(f"{failure}: free some disk space, or close what has it open.") from error

    def _rewrite(self) -> None:
        if self.columns:
            with atomic_write(self.path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, self.columns, lineterminator="\n")
                writer.writeheader()
                writer.writerows(map(_formatted, self.rows))


def _formatted(row: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{value:.0f}" if value % 1 == 0 else f"{value:.6g}" for name, value in row.items()}


def read_log(path: Path) -> list[Row]:
    """Return the rows of a log, each with the columns it has; an incomplete last line is left out."""
    try:
        text = path.read_text(encoding="utf-8").replace("\0", "")  # a power failure may leave zeros
        table = list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DeepMatchingError(f"The log '{path}' cannot be read ({error}): move it away.") from error
    rows = []
    for values in table:
        with contextlib.suppress(TypeError, ValueError):
            rows.append({name: float(value) for name, value in values.items() if name and value})
    return [row for row in rows if "step" in row]


class TensorBoard:
    """The rows as TensorBoard events in a folder."""

    def __init__(self, folder: Path, step: int) -> None:
        """Raise ImportError if TensorBoard is not installed."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)  # type: ignore[no-untyped-call]

    def add(self, row: Mapping[str, float]) -> None:
        for name in sorted(row.keys() - {"step"}):
            self._writer.add_scalar(name, row[name], int(row["step"]))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self._writer.close()  # type: ignore[no-untyped-call]
