"""The training loop: data, forward, backward, step, log, validate, save; and the parts of a run, which it moves."""

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from deepmatching.errors import DeepMatchingError
from deepmatching.models import read_model
from deepmatching.settings import FULL
from deepmatching.training.checkpoints import Progress, RunFolder
from deepmatching.training.config import Config
from deepmatching.training.config_file import write_config
from deepmatching.training.data import TrainingData, seed_for
from deepmatching.training.log import CsvLog, Row, StepMetrics
from deepmatching.training.model import TrainedModel, build_model, check_sizes, untrained_parts
from deepmatching.training.optimization import Learner, ema_decay, learning_rate_factor
from deepmatching.training.processes import (
    Interruption,
    OtherProcessFailed,
    World,
    interruptible,
    process_group,
    start_agreeing,
)
from deepmatching.training.validation import Validation, check_folders

MAX_SKIPPED = 50  #: a run gives up after this many consecutive steps without a finite gradient


class TrainingFailed(DeepMatchingError):
    """The run cannot succeed, and resuming it would not help."""


def train(config: Config, device: torch.device, resume: bool = False, watchers: "Sequence[Watcher]" = ()) -> "Outcome":
    """Train a network until the run is complete or a signal asks it to stop. Everything is saved on return.

    ``resume`` continues the run in ``config.out``. The main process notifies the ``watchers``.
    """
    with process_group(device) as world, interruptible() as interruption, contextlib.ExitStack() as stack:
        with world.synchronized("Preparing the folder"):
            if world.is_main:
                check_folders(config)
                stack.enter_context(RunFolder(config.out).reserve(resume))
        run = Run(config, world, interruption, resume, watchers)
        try:
            signal = _train(run)
        except TrainingFailed:
            raise
        except DeepMatchingError:  # an unreadable pair, for example: all processes stop here, and nothing is lost
            if resume or run.progress.step:
                run.save()
                run.stop(has_failed=True)
            elif world.is_main:
                run.folder.discard()
            raise
        with world.synchronized("Training"):
            # A few crops may teach nothing by chance. In that case there was a warning, which is enough.
            if not signal and run.has_seen_all() and (nothing := run.nothing_learned()):
                raise TrainingFailed(f"{nothing}, and start another run with out=….")
        return run.stop(signal)


def _train(run: "Run") -> int:
    """Run to the end (returns 0) or until a signal (returns its number). Everything is saved then.

    All processes raise an error that the user can correct after the same step.
    """
    config, world, progress, optimizer = run.config, run.world, run.progress, run.learner.optimizer
    model = world.wrap(run.model)
    torch.backends.cudnn.benchmark = any(config.data.crop)  # all pairs have one size
    elapsed = progress.elapsed
    is_end, signal = run.fraction_done(elapsed) >= 1, 0
    if run.needs_validation(is_end):  # at the very start, or after an interrupted validation
        signal = run.validate()
        run.save()
    if is_end or signal:
        return signal

    parameters = [p for p in run.model.parameters() if p.requires_grad]
    batches = run.data.batches(progress.step * config.accumulate)
    batch = next(batches)
    while not (is_end or signal):
        torch.manual_seed(seed_for(config.seed, "step", progress.step, world.rank))
        rate = config.optimizer.lr * learning_rate_factor(config.optimizer, progress.step, run.fraction_done(elapsed))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]

        # Forward and backward, with gradient accumulation.
        optimizer.zero_grad(set_to_none=True)
        measured, failure = [], None
        for n in range(config.accumulate):
            batch = next(batches) if n else batch
            with contextlib.nullcontext() if n == config.accumulate - 1 else world.no_sync(model):
                loss, metrics, error = model(batch)
                (loss * (1 / config.accumulate)).backward()
            measured.append({"loss": loss.detach(), **metrics})
            failure = failure or error
        norm = nn.utils.clip_grad_norm_(parameters, config.optimizer.clip or math.inf)

        # Read whether the gradient is finite after fetching the next batch, so that the device need not wait.
        losses = [metrics["loss"] for metrics in measured]
        agree = start_agreeing(world, losses, norm, run.interruption.signal, failure is not None, run.elapsed)
        batch = next(batches)
        is_finite, signal, has_failed, elapsed = agree()
        if has_failed:  # before the step, which the resumed run makes
            raise failure or OtherProcessFailed("A batch failed in another process; its message says why.")

        # Step.
        if is_finite:
            optimizer.step()
            run.network.keep_positive()
            run.metrics.add(measured, norm)
            if run.learner.average:
                run.learner.average.update(ema_decay(config.ema, progress.step))
        progress.step += 1
        progress.skipped += not is_finite
        progress.skipped_in_a_row = 0 if is_finite else progress.skipped_in_a_row + 1
        if progress.skipped_in_a_row >= MAX_SKIPPED:
            raise TrainingFailed(
                f"The gradient was not finite in {MAX_SKIPPED} consecutive steps, up to step {progress.step}: start "
                f"again from model.init={run.folder.last} with a lower optimizer.lr, an optimizer.clip or amp=off."
            )

        # Log, validate, save.
        is_end = run.fraction_done(elapsed) >= 1
        for watcher in run.watchers:
            watcher.stepped(progress, run.fraction_done(elapsed))
        if progress.step % config.log_every == 0 or is_end:
            run.report(rate)
        is_validated = not signal and run.needs_validation(is_end)
        if is_validated:
            signal = run.validate()
        if is_validated or is_end or signal or progress.step % config.checkpoint_every == 0:
            run.save()
    return signal


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
        self, config: Config, world: World, interruption: Interruption, resume: bool, watchers: Sequence[Watcher]
    ) -> None:
        self.config, self.world, self.interruption = config, world, interruption
        self.watchers = tuple(watchers) if world.is_main else ()
        self.folder = RunFolder(config.out)

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
        return max(of_steps, elapsed / (60 * self.config.minutes) if self.config.minutes else 0.0)

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
                if is_new := not self.folder.state.exists():
                    self.folder.save_state(self.config, self.world.size, self.learner, progress)
                self.folder.save_model(self.folder.last, self.network, self.config, progress)
                if not is_new:
                    self.folder.save_state(self.config, self.world.size, self.learner, progress)

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
            if self.world.is_main:
                if is_best:
                    self.folder.save_model(self.folder.best, network, self.config, self.progress, score)
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
        seen = self.progress.step * self.config.accumulate * self.config.data.batch * self.world.size
        return seen >= (20 if self.data.pairs is None else len(self.data.pairs))

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
