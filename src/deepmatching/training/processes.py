"""One training process or several, what they exchange, and the signals that ask them to stop.

``torchrun`` starts the processes and gives each its rank in environment variables. Without them there is one process.
"""

import contextlib
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from deepmatching.errors import DeepMatchingError


@dataclass(frozen=True)
class World:
    """This process and its peers: ``rank`` of ``size``."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Tell whether this process logs and saves."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module with a backward pass that averages gradients over all processes."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Accumulate gradients without averaging them over the processes."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, on the CPU."""
        if self.size == 1:
            return values.cpu()
        values = values.to(self.device, copy=True)
        dist.all_reduce(values)
        return values.cpu()

    def minimum(self, values: Tensor) -> Tensor:
        """Replace each value by its minimum over all processes."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MIN)
        return values

    @contextlib.contextmanager
    def synchronized(self, what: str) -> Iterator[None]:
        """Let all processes wait for the end of the block, even where only the main one works (``if world.is_main``).

        If the block fails in one process, all of them raise, instead of waiting for ever.
        """
        failed: Exception | None = None
        try:
            yield
        except Exception as error:
            failed = error
        if self.size > 1:
            succeeded = self.minimum(torch.tensor([failed is None], dtype=torch.float32, device=self.device))
            if failed is None and not succeeded.item():
                raise OtherProcessFailed(f"{what} failed in another process; its message says why.")
        if failed is not None:
            raise failed


class OtherProcessFailed(DeepMatchingError):
    """Another process has failed and raises the error that matters."""


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Join the processes that ``torchrun`` started, or this one alone; NCCL between GPUs, gloo otherwise."""
    size = _from_environment("WORLD_SIZE", 1)
    if size == 1:
        # Streams and events belong to the current device by default.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield World(device=device)
        return
    rank, local = _from_environment("RANK", 0), _from_environment("LOCAL_RANK", 0)
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            there = f"This machine has {torch.cuda.device_count()} GPUs, too few for its process {local}"
            raise DeepMatchingError(f"{there}: lower --nproc_per_node or set device=cpu.")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DeepMatchingError(f"The {size} processes cannot meet ({reason}): start them with torchrun.") from error
    try:
        yield World(rank, size, device)
        dist.barrier()  # a process that closes its connections early would bring down the others
    except BaseException as error:
        # A DDP module that a traceback keeps alive can wait for ever for the threads of the group that has ended.
        failed: BaseException | None = error
        while failed is not None:
            traceback.clear_frames(failed.__traceback__)
            failed = failed.__context__
        raise
    finally:
        dist.destroy_process_group()


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise DeepMatchingError(f"The environment variable {name} must be a number, not '{text}'.")
    return int(text)


class StepOutcome(NamedTuple):
    """What all processes agree on after a backward pass."""

    is_finite: bool  #: whether all losses and gradients are
    signal: int  #: signal that has asked a process to stop; 0 for none
    has_failed: bool  #: whether a process had no batch, or could not compute its loss
    elapsed: float  #: seconds, on the clock that is furthest behind


def start_agreeing(
    world: World, losses: Sequence[Tensor], norm: Tensor, signal: int, has_failed: bool, elapsed: float
) -> Callable[[], StepOutcome]:
    """Return a function that waits for what all processes agree on, which is computed now and holds up no device.

    ``losses`` are those of this process's batches, ``norm`` that of its gradient; the rest is its part of the outcome.
    """
    values = torch.isfinite(torch.stack([norm, *losses])).all().float().reshape(1)
    if world.size > 1:
        own = torch.tensor([-signal, -float(has_failed), elapsed], device=world.device)
        values = world.minimum(torch.cat([values, own]))
    ready: torch.cuda.Event | None = None
    if values.is_cuda:
        on_device, values = values, torch.empty(values.shape, pin_memory=True)
        values.copy_(on_device, non_blocking=True)
        ready = torch.cuda.Event()
        ready.record(torch.cuda.current_stream(on_device.device))

    def agree() -> StepOutcome:
        if ready is not None:
            ready.synchronize()
        finite, *agreed = values.tolist()
        if not agreed:
            return StepOutcome(bool(finite), signal, has_failed, elapsed)
        return StepOutcome(bool(finite), -int(agreed[0]), agreed[1] != 0, agreed[2])

    return agree


class Interruption:
    """The signal that has asked the run to stop; 0 for none."""

    signal = 0

    def __bool__(self) -> bool:
        return bool(self.signal)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Remember the signal; a second Ctrl-C stops at once."""
        # Under torchrun every Ctrl-C arrives twice, from the terminal and from torchrun.
        if self.signal == number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise KeyboardInterrupt
        self.signal = number


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Catch SIGINT and SIGTERM while the block lasts."""
    interruption = Interruption()
    with signal_handler(interruption.handle, signal.SIGINT, signal.SIGTERM):
        yield interruption


@contextlib.contextmanager
def signal_handler(handler: Any, *signals: signal.Signals) -> Iterator[None]:
    """Handle these signals while the block lasts. Python allows it in the main thread only; others change nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in signals if is_main}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
