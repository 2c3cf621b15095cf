"""What is known about a step without waiting for the device, and what is summed up there until it is logged."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepmatching.network import Network
from deepmatching.training.checkpoints import Progress
from deepmatching.training.distributed import World
from deepmatching.training.log import Row


class Figures:
    """Sums over steps of the loss, the objective's figures and the gradient's norm, kept on the device."""

    def __init__(self, progress: Progress, world: World) -> None:
        self.world, self.count = world, progress.count
        self.sums = {name: torch.tensor(value, device=world.device) for name, value in progress.sums.items()}
        self._since = time.monotonic(), progress.step

    def add(self, measured: Sequence[dict[str, Tensor]], norm: Tensor) -> None:
        """Add a step: the figures of its batches, and the norm of its gradient."""
        for name in measured[0]:
            value = torch.stack([batch[name] for batch in measured]).mean()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.sums["gradient"] = self.sums["gradient"] + norm if "gradient" in self.sums else norm
        self.count += 1

    def totals(self) -> dict[str, float]:
        """The sums, averaged over the processes: what any number of them can go on with."""
        if not self.sums:
            return {}
        means = self.world.sum(torch.stack(list(self.sums.values()))) / self.world.size
        return dict(zip(self.sums, means.tolist(), strict=True))

    def row(self, progress: Progress, network: Network, rate: float, elapsed: float) -> Row:
        """The means since the last row, which is forgotten, and where the run is."""
        means = {name: total / max(1, self.count) for name, total in self.totals().items()}
        now, (then, step) = time.monotonic(), self._since
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
        self.sums, self.count, self._since = {}, 0, (now, progress.step)
        return row


class Agreement(NamedTuple):
    """What holds for all processes alike."""

    is_finite: bool  #: losses and gradient, everywhere
    signal: int  #: that has asked one of them to stop; 0 if none has
    has_failed: bool  #: whether one of them had no batch, or could not compute its loss
    elapsed: float  #: seconds, on the slowest clock


class Verdict:
    """What all processes must agree on after a backward pass; made now, read later, without holding up the device.

    Args:
        world: the process and its peers.
        losses, norm: of this process's batches, and of its gradient.
        signal, has_failed, elapsed: see :class:`Agreement`; of this process.
    """

    def __init__(
        self, world: World, losses: Sequence[Tensor], norm: Tensor, signal: int, has_failed: bool, elapsed: float
    ) -> None:
        finite = torch.isfinite(torch.stack([norm, *losses])).all()
        self.size, self.own = world.size, (signal, has_failed, elapsed)
        values = finite.float().reshape(1)
        if world.size > 1:
            own = torch.tensor([-signal, -float(has_failed), elapsed], device=world.device)
            values = world.smallest(torch.cat([values, own]))
        self._ready: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record(torch.cuda.current_stream(values.device))
        else:
            self._values = values

    def read(self) -> Agreement:
        """What was agreed on."""
        if self._ready is not None:
            self._ready.synchronize()
        finite, *agreed = self._values.tolist()
        if self.size == 1:
            return Agreement(bool(finite), *self.own)
        return Agreement(bool(finite), -int(agreed[0]), agreed[1] != 0, agreed[2])
