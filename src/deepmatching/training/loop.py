"""The training loop: data, forward, backward, step, log, validate, save."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import torch
from torch import nn

from deepmatching.errors import DeepMatchingError
from deepmatching.training.checkpoints import RunFolder
from deepmatching.training.config import Config
from deepmatching.training.data import seed_for
from deepmatching.training.optimization import ema_decay, learning_rate_factor
from deepmatching.training.processes import OtherProcessFailed, interruptible, process_group, start_agreeing
from deepmatching.training.run import Outcome, Run, Watcher
from deepmatching.training.validation import check_folders

#: A run gives up after this many consecutive steps without a finite gradient.
MAX_SKIPPED = 50


class TrainingFailed(DeepMatchingError):
    """The run cannot succeed, and resuming it would not help."""


def train(config: Config, device: torch.device, resume: bool = False, watchers: Sequence[Watcher] = ()) -> Outcome:
    """Train a network until the run is complete or a signal asks it to stop. Everything is saved on return.

    Args:
        config: all settings.
        device: where to compute; under torchrun, the type of device.
        resume: continue the run in ``config.out``.
        watchers: notified of events, in the main process.
    """
    with process_group(device) as world, interruptible() as interruption, contextlib.ExitStack() as stack:
        folder = RunFolder(config.out)
        with world.synchronized("Preparing the folder"):
            if world.is_main:
                check_folders(config)
                stack.enter_context(folder.reserve(resume))
        run = Run(config, world, interruption, folder, resume, watchers)
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


def _train(run: Run) -> int:
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
            is_last = n == config.accumulate - 1
            with contextlib.nullcontext() if is_last else world.no_sync(model):
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
                f"The gradient was not finite in {MAX_SKIPPED} consecutive steps, up to step {progress.step}: "
                f"start another run from model.init={run.folder.last} with a lower optimizer.lr, an optimizer.clip or "
                "amp=off."
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
