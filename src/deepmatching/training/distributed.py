"""One training process or several, and what they exchange.

``torchrun`` starts the processes and gives each its rank in environment variables. Without them there is one process.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

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
        """Whether this process logs and saves."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module with a backward pass that averages gradients over all processes."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def no_sync(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """While accumulating gradients: do not average them over the processes."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the CPU."""
        if self.size == 1:
            return values.cpu()
        values = values.to(self.device, copy=True)
        dist.all_reduce(values)
        return values.cpu()

    def minimum(self, values: Tensor) -> Tensor:
        """The minimum of each value over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MIN)
        return values

    @contextlib.contextmanager
    def synchronized(self, what: str) -> Iterator[None]:
        """All processes wait for the end of the block, even where only the main one works (``if world.is_main``).

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
    """The processes that ``torchrun`` started, or this one alone; NCCL between GPUs, gloo otherwise."""
    size = _from_environment("WORLD_SIZE", 1)
    if size == 1:
        # Streams and events belong to the current device by default.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield World(device=device)
        return
    rank, local = _from_environment("RANK", 0), _from_environment("LOCAL_RANK", 0)
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise DeepMatchingError(
                f"This machine has {torch.cuda.device_count()} GPUs, too few for its process {local}: "
                "lower --nproc_per_node or set device=cpu."
            )
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    try:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        raise DeepMatchingError(
            f"The {size} processes cannot find each other ({str(error).splitlines()[0]}): start them with torchrun."
        ) from error
    try:
        yield World(rank, size, device)
        dist.barrier()  # a process that closes its connections early would bring down the others
    except BaseException as error:
        _forget_frames(error)
        raise
    finally:
        dist.destroy_process_group()


def _forget_frames(error: BaseException | None) -> None:
    """Free the local variables of the functions that failed, which the traceback keeps alive.

    A DDP module that outlives the process group can wait for ever for the group's threads when it is freed.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise DeepMatchingError(f"The environment variable {name} must be a number, not '{text}'.") from None
