"""One process or many: who am I, and what do all of us agree on.

``torchrun`` starts the processes and tells each its place by environment variables. Without them there is one.
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
    """A process among ``size`` equal ones."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_main(self) -> bool:
        """Whether this is the process that logs and saves."""
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module whose backward averages gradients over all processes."""
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def unsynchronised(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """While accumulating: keep gradients to oneself."""
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the CPU."""
        if self.size == 1:
            return values.cpu()
        values = values.to(self.device, copy=True)
        dist.all_reduce(values)
        return values.cpu()

    def smallest(self, values: Tensor) -> Tensor:
        """The smallest of each value among all processes, in place."""
        if self.size > 1:
            dist.all_reduce(values, op=dist.ReduceOp.MIN)
        return values

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """What is done here, by the main process alone (``if world.is_main``) or by all, all wait for.

        If it fails in one of them, they all stop, instead of waiting for ever.
        """
        failed: BaseException | None = None
        try:
            yield
        except Exception as error:
            failed = error
        if self.size > 1:
            good = torch.tensor([failed is None], dtype=torch.float32, device=self.device)
            dist.all_reduce(good, op=dist.ReduceOp.MIN)
            if failed is None and not good.item():
                raise OtherProcessFailed(f"{what} failed in another process; its message says why.")
        if failed is not None:
            raise failed


class OtherProcessFailed(DeepMatchingError):
    """Raised where another process has raised the error that counts."""


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[World]:
    """The world that ``torchrun`` made, or one process alone; NCCL between GPUs, gloo otherwise."""
    size = _from_environment("WORLD_SIZE", 1)
    if size == 1:
        # Streams and events are of the current device unless they are told otherwise.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield World(device=device)
        return
    rank, local = _from_environment("RANK", 0), _from_environment("LOCAL_RANK", 0)
    if device.type == "cuda":
        if local >= torch.cuda.device_count():
            raise DeepMatchingError(
                f"There are {torch.cuda.device_count()} GPUs here, too few for process {local} of this machine: "
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
        dist.barrier()  # leave together: a process that takes its connections away early brings down the others
    except BaseException as error:
        _forget_frames(error)
        raise
    finally:
        dist.destroy_process_group()


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what the functions that failed worked with, which the traceback would keep.

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
