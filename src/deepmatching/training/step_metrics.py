"""The metrics of the steps between two rows of the log, and the outcome of a step, without waiting for the device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepmatching.network.network import Network
from deepmatching.training.checkpoints import Progress
from deepmatching.training.distributed import World
from deepmatching.training.log import Row


class StepMetrics:
    """Sums over steps of the loss, the objective's metrics and the gradient norm, kept on the device."""

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
        """The sums, averaged over the processes, so that any number of processes can continue from them."""
        if not self.sums:
            return {}
        means = self.world.sum(torch.stack(list(self.sums.values()))) / self.world.size
        return dict(zip(self.sums, means.tolist(), strict=True))

    def row(self, progress: Progress, network: Network, rate: float, elapsed: float) -> Row:
        """A row for the log, with the means since the last row; then start over."""
        means = {name: total / max(1, self.count) for name, total in self.totals().items()}
        now, (then, step) = time.monotonic(), self._last_row
        row: Row = {
            "step": progress.step,
            "seconds": elapsed,
            "lr": rate,
            **means,
            "skipped": progress.skipped,
            "steps_per_s": (progress.step - step) / max(now - then, 1e-9),
            **{f"nu_{l}": value for l, value in enumerate(network.exponents.tolist())},
        }
        if network.sharpness is not None:
            row["kappa"] = network.sharpness.item()
        if network.log_temperatures is not None:
            row |= {f"beta_{l}": value for l, value in enumerate(network.log_temperatures.exp().tolist())}
        self.sums, self.count, self._last_row = {}, 0, (now, progress.step)
        return row


class StepOutcome(NamedTuple):
    """What all processes know alike after a backward pass."""

    is_finite: bool  #: whether all losses and gradients are
    signal: int  #: signal that has asked a process to stop; 0 for none
    has_failed: bool  #: whether a process had no batch, or could not compute its loss
    elapsed: float  #: seconds, on the clock that is furthest behind


class PendingOutcome:
    """A :class:`StepOutcome` on its way: computed now, read later, without holding up the device.

    Args:
        world: this process and its peers.
        losses, norm: of this process's batches, and of its gradient.
        signal, has_failed, elapsed: this process's part of the outcome.
    """

    def __init__(
        self, world: World, losses: Sequence[Tensor], norm: Tensor, signal: int, has_failed: bool, elapsed: float
    ) -> None:
        finite = torch.isfinite(torch.stack([norm, *losses])).all()
        self.size, self.own = world.size, (signal, has_failed, elapsed)
        values = finite.float().reshape(1)
        if world.size > 1:
            own = torch.tensor([-signal, -float(has_failed), elapsed], device=world.device)
            values = world.minimum(torch.cat([values, own]))
        self._ready: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(values.device))
        else:
            self._values = values

    def read(self) -> StepOutcome:
        """The outcome, as soon as the device has it."""
        if self._ready is not None:
            self._ready.synchronize()
        finite, *agreed = self._values.tolist()
        if self.size == 1:
            return StepOutcome(bool(finite), *self.own)
        return StepOutcome(bool(finite), -int(agreed[0]), agreed[1] != 0, agreed[2])
