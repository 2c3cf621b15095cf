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
from deepmatching.training.data import errors_in_place
from deepmatching.training.distributed import OtherProcessFailed, joined
from deepmatching.training.figures import Verdict
from deepmatching.training.interruption import interruptible
from deepmatching.training.model import Attempt
from deepmatching.training.optimization import learning_rate
from deepmatching.training.run import Outcome, Run, Watcher
from deepmatching.training.seeds import seed_for

#: A run gives up after so many steps in a row whose gradient is not finite.
MOST_SKIPPED = 50


class Hopeless(DeepMatchingError):
    """Going on as before would not help."""


def train(config: Config, device: torch.device, resume: bool = False, watchers: Sequence[Watcher] = ()) -> Outcome:
    """Train a network; returns when the run is complete or a signal has asked it to stop, with everything saved.

    Args:
        config: all settings.
        device: where to compute; under torchrun, the type of device.
        resume: go on with the run that ``config.out`` holds.
        watchers: told what happens, in the main process.
    """
    with joined(device) as world, interruptible() as interruption, contextlib.ExitStack() as stack:
        folder = RunFolder(config.out)
        with world.together("Preparing the folder"):
            if world.is_main:
                stack.enter_context(folder.prepared(resume))
        run = Run(config, world, interruption, folder, resume, watchers)
        try:
            signal = _train(run)
        except Hopeless:
            raise
        except DeepMatchingError:  # a pair that cannot be read, say: all processes are here, and nothing is lost
            if resume or run.progress.step:
                run.save()
                run.stop(has_failed=True)
            elif world.is_main:
                run.folder.discard()
            raise
        with world.together("Training"):
            # A few crops may have nothing by chance: then it was said in a note.
            if not signal and run.has_seen_all() and (nothing := run.nothing_learned()):
                raise Hopeless(f"{nothing}, and start another run with out=….")
        return run.stop(signal)


def _train(run: Run) -> int:
    """Run to the end, or until a signal, which is returned; 0 if the run is complete. Everything is saved then.

    An error that the user can put right is raised by all processes after the same step.
    """
    config, world, progress, optimizer = run.config, run.world, run.progress, run.optimizer
    model = world.wrap(Attempt(run.model))
    torch.backends.cudnn.benchmark = any(config.data.crop)  # all pairs are of one size
    elapsed = progress.elapsed
    is_end, signal = run.share(elapsed) >= 1, 0
    if run.is_due(is_end):  # at the very start, or where validation was interrupted
        signal = run.validate()
        run.save()
    if is_end or signal:
        return signal

    batches = errors_in_place(run.data.batches(progress.step * config.accumulate))
    batch = next(batches)
    while not (is_end or signal):
        torch.manual_seed(seed_for(config.seed, "step", progress.step, world.rank))
        rate = config.optimizer.lr * learning_rate(config.optimizer, progress.step, run.share(elapsed))
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]

        # Forward and backward; gradients of several batches are averaged if so wished.
        optimizer.zero_grad(set_to_none=True)
        measured, failure = [], None
        for n in range(config.accumulate):
            batch = next(batches) if n else batch
            is_last = n == config.accumulate - 1
            with contextlib.nullcontext() if is_last else world.unsynchronised(model):
                loss, figures, error = model(batch)
                (loss * (run.scale.scale / config.accumulate)).backward()
            measured.append({"loss": loss.detach(), **figures})
            failure = failure or error
        run.scale.undo(run.parameters)
        norm = nn.utils.clip_grad_norm_(run.parameters, config.optimizer.clip or math.inf)

        # Whether the gradient is finite is read after the next batch is under way, so that the device need not wait.
        losses = [figures["loss"] for figures in measured]
        verdict = Verdict(world, losses, norm, run.interruption.signal, failure is not None, run.elapsed)
        batch = next(batches)
        is_finite, signal, has_failed, elapsed = verdict.read()
        if has_failed:  # before the step, which is made when the run is resumed
            raise failure or OtherProcessFailed("A batch failed in another process; its message says why.")

        # Step.
        if is_finite:
            optimizer.step()
            run.network.keep_positive()
            run.figures.add(measured, norm)
            if run.mean:
                run.mean.update(progress.step)
        run.scale.update(is_finite)
        progress.step += 1
        progress.skipped += not is_finite
        progress.skipped_in_a_row = 0 if is_finite else progress.skipped_in_a_row + 1
        if progress.skipped_in_a_row >= MOST_SKIPPED:
            raise Hopeless(
                f"The gradient was not finite in {MOST_SKIPPED} steps in a row, the last of them step {progress.step}: "
                f"start another run from model.init={run.folder.last} with a lower optimizer.lr, an optimizer.clip or "
                "amp=off."
            )

        # Log, validate, save.
        is_end = run.share(elapsed) >= 1
        for watcher in run.watchers:
            watcher.stepped(progress, run.share(elapsed))
        if progress.step % config.log_every == 0 or is_end:
            run.report(rate)
        is_judged = not signal and run.is_due(is_end)
        if is_judged:
            signal = run.validate()
        if is_judged or is_end or signal or progress.step % config.checkpoint_every == 0:
            run.save()
    return signal
