"""One training run: its parts, and how they are saved, resumed and validated."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.models import read_model
from deepmatching.settings import FULL
from deepmatching.training.checkpoints import Progress, RunFolder
from deepmatching.training.config import Config
from deepmatching.training.config_file import write_config
from deepmatching.training.data import TrainingData
from deepmatching.training.log import CsvLog, Row, StepMetrics
from deepmatching.training.model import TrainedModel, build_model, check_sizes, untrained_parts
from deepmatching.training.optimization import Learner
from deepmatching.training.processes import Interruption, World
from deepmatching.training.validation import Validation


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    progress: Progress
    best: float  #: the best validation score; −∞ without validation
    signal: int = 0  #: signal that interrupted the run; 0 for none
    has_failed: bool = False  #: whether an error ended the run; it is raised next


class Watcher(Protocol):
    """Notified of the events of a run by the main process."""

    def started(self, config: Config, progress: Progress) -> None:
        """Receive that everything is ready; a resumed run continues at ``progress``."""

    def warned(self, sentence: str) -> None:
        """Receive something that the user should know; the run continues."""

    def stepped(self, progress: Progress, fraction: float) -> None:
        """Receive that a step is done, and this fraction of the run."""

    def logged(self, row: Row) -> None:
        """Receive a row that has been added to the log."""

    def validated(self, row: Row, is_best: bool) -> None:
        """Receive a row with the metrics of a validation."""

    def stopped(self, outcome: Outcome) -> None:
        """Receive that everything is saved."""


class Run:
    """The parts of a run in one process. Its folder is reserved by the main process, which notifies the watchers."""

    def __init__(
        self,
        config: Config,
        world: World,
        interruption: Interruption,
        folder: RunFolder,
        resume: bool,
        watchers: Sequence[Watcher],
    ) -> None:
        self.config, self.world, self.interruption = config, world, interruption
        self.watchers = tuple(watchers) if world.is_main else ()
        self.folder = folder

        torch.manual_seed(config.seed)
        self.model = self._build_model(resume).to(world.device).train()
        self.network = self.model.network
        check_sizes(self.network, config)
        self.learner = Learner(self.model, config)
        self.progress = self.folder.load_state(config, world.size, self.learner) if resume else Progress()
        self.metrics = StepMetrics(self.progress, world)

        self.data = TrainingData(config.data, config.seed, world)
        has_validation = config.validation.data or config.data.overfit
        self.validation = Validation(config, self.data, world) if has_validation else None
        self.best = self.folder.best_score(config)
        self.warnings: set[str] = set()
        self.start = time.monotonic() - self.progress.elapsed
        with world.synchronized("Preparing the log"):
            if world.is_main:
                self.log = CsvLog(self.folder.log, self.progress.step, self.progress.validated)
        if not resume:
            self.save()  # from here on the run can be resumed, and all files of these names are its own
        with world.synchronized("Writing the config"):
            if world.is_main:
                write_config(config, self.folder.config)
        for watcher in self.watchers:
            watcher.started(config, self.progress)
        self._warn(untrained_parts(self.network, config.model.init))
        if self.validation is not None:
            self._warn(self.validation.warning)

    def _build_model(self, resume: bool) -> TrainedModel:
        """Build the model at the start; the state of a resumed run is loaded into it later."""
        model, last = self.config.model, self.folder.last
        if resume and model.init:  # that file may be gone by now, and the last model may be damaged
            with contextlib.suppress(DeepMatchingError):
                read_model(last)
                model = model.model_copy(update={"init": str(last)})
        return build_model(model, self.config.loss, self.config.amp)

    @property
    def elapsed(self) -> float:
        """Return the seconds of training, over all parts of the run."""
        return time.monotonic() - self.start

    def fraction_done(self, elapsed: float) -> float:
        """Return the fraction of the run's steps or of its time that is done, whichever is larger."""
        of_steps = self.progress.step / self.config.steps if self.config.steps else 0.0
        of_time = elapsed / (60 * self.config.minutes) if self.config.minutes else 0.0
        return max(of_steps, of_time)

    def needs_validation(self, is_end: bool) -> bool:
        """Return whether a validation is due at this step and has not been done."""
        step = self.progress.step
        is_due = step % self.config.validation.every == 0 or is_end
        return self.validation is not None and is_due and self.progress.validated != step

    def save(self) -> None:
        """Write the model, then the state; a new run writes its state first (see ``checkpoints``)."""
        progress = self.progress
        progress.elapsed = self.elapsed
        progress.sums, progress.count = self.metrics.totals(), self.metrics.count
        with self.world.synchronized("Saving"):
            if self.world.is_main:
                is_new = not self.folder.state.exists()
                if not is_new:
                    self.folder.save_model(self.folder.last, self.network, self.config, progress)
                self.folder.save_state(self.config, self.world.size, self.learner, progress)
                if is_new:
                    self.folder.save_model(self.folder.last, self.network, self.config, progress)

    def validate(self) -> int:
        """Validate the network (its moving average, if there is one), and save it if it is the best so far.

        Return 0, or the signal that interrupted the validation, which the resumed run repeats.
        """
        assert self.validation is not None
        network = self.learner.average.network if self.learner.average else self.network
        metrics = self.validation(network, self.interruption.__bool__)
        if metrics is None:
            return self.interruption.signal
        self.progress.metrics, self.progress.validated = metrics, self.progress.step
        score = self.validation.score(metrics)
        is_best = score > self.best
        row: Row = {"step": self.progress.step, "seconds": self.elapsed, **metrics}
        with self.world.synchronized("Saving the best model"):
            if is_best and self.world.is_main:
                self.folder.save_model(self.folder.best, network, self.config, self.progress, score)
            if self.world.is_main:
                self.log.add(row)
        self.best = max(self.best, score)
        for watcher in self.watchers:
            watcher.validated(row, is_best)
        if math.isnan(score):
            self._warn("No pixel of the validation pairs is known, so there is no best model: check their flow.")
        return 0

    def report(self, rate: float) -> None:
        """Add a row to the log; all processes take part."""
        row = self.metrics.row(self.progress, self.network, rate, self.elapsed)
        with self.world.synchronized("Writing the log"):
            if self.world.is_main:
                self.log.add(row)
        for watcher in self.watchers:
            watcher.logged(row)
        if nothing := self.nothing_learned():
            self._warn(f"{nothing}.")

    def has_seen_all(self) -> bool:
        """Return whether every training pair has been used, or twenty if the pairs are endless."""
        number = len(self.data.pairs) if self.data.pairs is not None else 20
        config = self.config
        return self.progress.step * config.accumulate * config.data.batch * self.world.size >= number

    def nothing_learned(self) -> str:
        """Return a sentence without its full stop if no step of the log has taught anything; for the main process."""
        rows = [row for row in self.log.rows if "reachable" in row] if self.world.is_main else []
        if not rows or any(row["reachable"] or row["loss"] for row in rows):
            return ""
        if not any(row.get("known", 1) for row in rows):
            return "No pixel of the training pairs is known and visible: check their flow and masks"
        radius = self.config.model.radius
        where = "in the other image: " if radius == FULL else f"within model.radius={radius}: raise it, "
        remedy = "make data.crop larger or check the units of the flow"
        return f"No point of the training pairs has a true match {where}{remedy}"

    def _warn(self, sentence: str) -> None:
        """Give each warning once."""
        for watcher in self.watchers if sentence and sentence not in self.warnings else ():
            watcher.warned(sentence)
        self.warnings.add(sentence)

    def stop(self, signal: int = 0, has_failed: bool = False) -> Outcome:
        """Notify the watchers that the run has ended for now; everything is saved."""
        outcome = Outcome(self.folder.path, self.progress, self.best, signal, has_failed)
        for watcher in self.watchers:
            watcher.stopped(outcome)
        return outcome
