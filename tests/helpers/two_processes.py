"""Runs several trainings in one of two processes: python two_processes.py RANK CONFIG FOLDER PORT …

In process 1 an event happens at a certain sample; it reads sample 2k + 1 for step k (from 0). How each training ended
is written to ``FOLDER/ended.RANK.json``. The parent process serves one store for each training, at these ports.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from deepmatching.data.datasets import Pair
from deepmatching.errors import DeepMatchingError
from deepmatching.training import read_config, train, validation
from deepmatching.training.data import Batch, Samples
from deepmatching.training.loop import Run

read, match = Samples.__getitem__, validation._match


def interrupt(samples: Samples, number: int) -> Batch:
    signal.raise_signal(signal.SIGTERM)
    return read(samples, number)


def too_small(samples: Samples, number: int) -> Batch:
    """Return a readable pair that is too small for the network."""
    return Pair(torch.zeros(3, 4, 4), torch.zeros(3, 4, 4), torch.zeros(4, 4, 2), torch.zeros(4, 4).bool())


def refuse(*arguments: Any) -> Any:
    raise DeepMatchingError("No match.")


def unreadable(samples: Samples, number: int) -> Batch:
    return DeepMatchingError("No pair.")


@dataclass
class Training:
    """One of the trainings: its folder below FOLDER, and the event that happens in process 1 at a sample."""

    name: str
    out: str
    resume: bool = False
    at: int = -1
    event: Callable[[Samples, int], Batch] = read


TRAININGS = (
    Training("whole", "whole"),
    Training("signalled", "run", at=5, event=interrupt),
    Training("unreadable", "run", resume=True, at=9, event=unreadable),
    Training("unsuitable", "run", resume=True, at=9, event=too_small),
    Training("resumed", "run", resume=True),
    Training("first", "empty", at=1, event=unreadable),
    Training("validating", "empty"),  # where process 1 cannot match
)


def main(rank: int, config: str, folder: Path, ports: list[str]) -> None:
    torch.set_num_threads(1)
    run: list[Run] = []
    begin = Run.__init__

    def begin_and_remember(self: Run, *arguments: Any) -> None:
        run[:] = [self]
        begin(self, *arguments)

    Run.__init__ = begin_and_remember  # type: ignore[method-assign]
    ended = {}
    for port, this in zip(ports, TRAININGS, strict=True):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", RANK=str(rank))
        if rank == 1:
            Samples.__getitem__ = (  # type: ignore[method-assign]
                lambda samples, n, this=this: (this.event if n == this.at else read)(samples, n)
            )
            validation._match = refuse if this.name == "validating" else match
        try:
            outcome = train(read_config(config, [f"out={folder / this.out}"]), torch.device("cpu"), this.resume)
            ended[this.name] = {"signal": outcome.signal}
        except DeepMatchingError as error:
            ended[this.name] = {"error": type(error).__name__, "says": str(error)}
        ended[this.name]["step"] = run[0].progress.step
        if this.name == "signalled" and rank == 0:  # for one process to go on with
            shutil.copytree(folder / "run", folder / "alone")
    (folder / f"ended.{rank}.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
