"""What is known about a step without waiting for the device, and what is summed up there until it is logged."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
        # After resuming, the sums of all processes are with the main one.
        self.sums = {
            name: torch.tensor(value if world.is_main else 0.0, device=world.device)
            for name, value in progress.sums.items()
        }
        self._since = time.monotonic(), progress.step

    def add(self, measured: Sequence[dict[str, Tensor]], norm: Tensor) -> None:
        """Add a step: the figures of its batches, and the norm of its gradient."""
        for name in measured[0]:
            value = torch.stack([batch[name] for batch in measured]).mean()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.sums["gradient"] = self.sums["gradient"] + norm if "gradient" in self.sums else norm
        self.count += 1

    def totals(self) -> dict[str, float]:
        """The sums over all processes."""
        if not self.sums:
            return {}
        return dict(zip(self.sums, self.world.sum(torch.stack(list(self.sums.values()))).tolist(), strict=True))

    def row(self, progress: Progress, network: Network, rate: float, elapsed: float) -> Row:
        """The means since the last row, which is forgotten, and where the run is."""
        means = {name: total / max(1, self.count * self.world.size) for name, total in self.totals().items()}
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


class Verdict:
    """What all processes must agree on after a backward pass; made now, read later, without holding up the device.

    Whether losses and gradient are finite everywhere, whether anyone has been asked to stop, and the time on the
    slowest clock.
    """

    def __init__(self, world: World, losses: Sequence[Tensor], norm: Tensor, stop: bool, elapsed: float) -> None:
        finite = torch.isfinite(torch.stack([norm, *losses])).all()
        self.size, self.own = world.size, (stop, elapsed)
        values = finite.float().reshape(1)
        if world.size > 1:
            values = world.smallest(torch.cat([values, torch.tensor([float(not stop), elapsed], device=world.device)]))
        self._ready: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._ready = torch.cuda.Event()
            self._ready.record()
        else:
            self._values = values

    def read(self) -> tuple[bool, bool, float]:
        """(finite, stop, elapsed seconds)."""
        if self._ready is not None:
            self._ready.synchronize()
        finite, *agreed = self._values.tolist()
        if self.size == 1:
            return bool(finite), *self.own
        return bool(finite), not agreed[0], agreed[1]
