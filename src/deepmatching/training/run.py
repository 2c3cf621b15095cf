"""One training run: its parts, and how they are saved, resumed and judged."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.models import read_model
from deepmatching.training.checkpoints import Progress, RunFolder
from deepmatching.training.config import Config
from deepmatching.training.config_file import write_config
from deepmatching.training.data import TrainingData
from deepmatching.training.distributed import World
from deepmatching.training.figures import Figures
from deepmatching.training.interruption import Interruption
from deepmatching.training.log import CsvLog, Row
from deepmatching.training.model import TrainedModel, build_model, check_sizes
from deepmatching.training.optimization import LossScale, RunningMean, build_optimizer
from deepmatching.training.validation import Validation

#: Where fp16 starts to scale the loss.
FIRST_SCALE = 2.0**12


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    folder: Path
    progress: Progress
    best: float  #: the best validation score; −∞ without validation
    signal: int = 0  #: what interrupted it, 0 if nothing did
    has_failed: bool = False  #: whether an error ended it, which is raised next


class Watcher(Protocol):
    """Is told by the main process what happens."""

    def started(self, config: Config, progress: Progress) -> None:
        """Everything is ready; ``progress`` says where a resumed run goes on."""

    def warned(self, sentence: str) -> None:
        """Something the user should know; the run goes on."""

    def stepped(self, progress: Progress, share: float) -> None:
        """A step is done, and this share of the run."""

    def logged(self, row: Row) -> None:
        """A row has been added to the log."""

    def validated(self, row: Row, is_best: bool) -> None:
        """So has one with the figures of a validation."""

    def stopped(self, outcome: Outcome) -> None:
        """Everything is saved."""


class Run:
    """The parts of a run in one process.

    Args:
        config: all settings.
        world: the process and its peers.
        interruption: who may ask it to stop.
        folder: where the run lies or will lie, prepared by the main process.
        resume: go on with the run that it holds, instead of starting one there.
        watchers: used by the main process.
    """

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
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.mean = RunningMean(self.network, config.ema) if config.ema else None
        self.progress = Progress(scale=FIRST_SCALE if config.amp == "fp16" else 1.0)
        if resume:
            self.progress = self.folder.load_state(config, world.size, self.model, self.optimizer, self.mean)
        self.scale = LossScale(self.progress.scale, self.progress.good, config.amp == "fp16")
        self.figures = Figures(self.progress, world)

        self.data = TrainingData(config.data, config.seed, world)
        wanted = config.validation.data or config.data.overfit
        self.validation = Validation(config, self.data, world) if wanted else None
        self.best = self.folder.best_score(config)
        self.said: set[str] = set()
        self.begun = time.monotonic() - self.progress.elapsed
        with world.together("Preparing the log"):
            if world.is_main:
                self.log = CsvLog(self.folder.log, self.progress.step)
                write_config(config, self.folder.config)
        if not resume:
            self.save()  # from here on there is a run that can be resumed
        for watcher in self.watchers:
            watcher.started(config, self.progress)
        if self.validation is not None:
            self._warn(self.validation.warning)

    def _build_model(self, resume: bool) -> TrainedModel:
        """The model at the start; if the run goes on, the state fills it."""
        model, last = self.config.model, self.folder.last
        if resume and model.init:  # which may be gone by now; but then ``last`` may be damaged
            with contextlib.suppress(DeepMatchingError):
                read_model(last)
                model = replace(model, init=str(last))
        return build_model(model, self.config.loss, self.config.amp)

    @property
    def elapsed(self) -> float:
        """Seconds of training, over all parts of the run."""
        return time.monotonic() - self.begun

    def share(self, elapsed: float) -> float:
        """How much of the run is done: of its steps or of its time, whichever is more."""
        of_steps = self.progress.step / self.config.steps if self.config.steps else 0.0
        of_time = elapsed / (60 * self.config.minutes) if self.config.minutes else 0.0
        return max(of_steps, of_time)

    def is_due(self, is_end: bool) -> bool:
        """Whether the network as it is now should be validated and has not been."""
        step = self.progress.step
        wanted = step % self.config.validation.every == 0 or is_end
        return self.validation is not None and wanted and self.progress.validated != step

    def save(self) -> None:
        """The model first, the state last, see ``checkpoints``; but in a new run a model alone would be no run."""
        progress = self.progress
        progress.elapsed = self.elapsed
        progress.sums, progress.count = self.figures.totals(), self.figures.count
        progress.scale, progress.good = self.scale.scale, self.scale.good
        with self.world.together("Saving"):
            if self.world.is_main:
                is_new = not self.folder.state.exists()
                if not is_new:
                    self.folder.save_model(self.folder.last, self.network, self.config, progress)
                self.folder.save_state(self.config, self.world.size, self.model, self.optimizer, self.mean, progress)
                if is_new:
                    self.folder.save_model(self.folder.last, self.network, self.config, progress)

    def validate(self) -> int:
        """Judge the network (its running mean, if there is one), and keep it if it is the best so far.

        Returns:
            0; or the signal that interrupted it, and then it is done again when the run is resumed.
        """
        assert self.validation is not None
        with self.mean.inside() if self.mean else contextlib.nullcontext():
            figures = self.validation(self.network, self.interruption.__bool__)
            if figures is None:
                return self.interruption.signal
            self.progress.figures, self.progress.validated = figures, self.progress.step
            score = self.validation.score(figures)
            is_best = score > self.best
            row: Row = {"step": self.progress.step, "seconds": self.elapsed, **figures}
            with self.world.together("Saving the best model"):
                if is_best and self.world.is_main:
                    self.folder.save_model(self.folder.best, self.network, self.config, self.progress, score)
                if self.world.is_main:
                    self.log.add(row)
        self.best = max(self.best, score)
        for watcher in self.watchers:
            watcher.validated(row, is_best)
        if math.isnan(score):
            self._warn("No pixel of the validation pairs is known, so that no model is the best: check their flow.")
        return 0

    def report(self, rate: float) -> None:
        """A row for the log; all processes take part."""
        row = self.figures.row(self.progress, self.network, rate, self.elapsed)
        with self.world.together("Writing the log"):
            if self.world.is_main:
                self.log.add(row)
        for watcher in self.watchers:
            watcher.logged(row)
        if nothing := self.nothing_learned():
            self._warn(f"{nothing}.")

    def has_seen_all(self) -> bool:
        """Whether every training pair, or twenty if they never end, had its turn."""
        number = len(self.data.pairs) if self.data.pairs is not None else 20
        config = self.config
        return self.progress.step * config.accumulate * config.data.batch * self.world.size >= number

    def nothing_learned(self) -> str:
        """A sentence, but for its full stop, if the log has nothing that was learned from; for the main process."""
        rows = [row for row in self.log.rows if "reachable" in row] if self.world.is_main else []
        if not rows or any(row["reachable"] or row["loss"] for row in rows):
            return ""
        if not any(row.get("known", 1) for row in rows):
            return "No pixel of the training pairs is known and visible: check their flow and masks"
        radius = self.config.model.radius
        where = "in the other image: " if radius == "full" else f"within model.radius={radius}: raise it, "
        remedy = "make data.crop larger or check the units of the flow"
        return f"No point of the training pairs has a true match {where}{remedy}"

    def _warn(self, sentence: str) -> None:
        """Say it once."""
        for watcher in self.watchers if sentence and sentence not in self.said else ():
            watcher.warned(sentence)
        self.said.add(sentence)

    def stop(self, signal: int = 0, has_failed: bool = False) -> Outcome:
        """Tell the watchers that the run is over for now; everything is saved."""
        outcome = Outcome(self.folder.path, self.progress, self.best, signal, has_failed)
        for watcher in self.watchers:
            watcher.stopped(outcome)
        return outcome
