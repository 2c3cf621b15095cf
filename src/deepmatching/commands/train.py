"""``deepmatching train``."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

#: Seconds that a process waits for the one whose message counts: torchrun ends all of them as soon as one has ended.
GRACE = 2.0


def train(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG", help="compact, vgg, paper, quickstart, or the path of a .toml file.", show_default=False
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Settings to change, such as optimizer.lr=1e-3 out=runs/mine.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder out.")] = False,
    overfit: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Train and validate on the first N pairs, without augmentation."),
    ] = 0,
) -> None:
    """Train a model on pairs with known displacements.

    The run's folder (out=...) gets best.safetensors and last.safetensors, which --model takes, log.csv, curves.png,
    and the state to --resume from. Ctrl-C finishes the step, saves and stops. On several GPUs:

    torchrun --nproc_per_node 4 -m deepmatching train CONFIG
    """
    from deepmatching.commands.common import say
    from deepmatching.commands.training_display import Display
    from deepmatching.errors import DeepMatchingError
    from deepmatching.matcher import choose_device
    from deepmatching.training import read_config
    from deepmatching.training import train as run
    from deepmatching.training.distributed import OtherProcessFailed

    changes = [*(settings or []), *([f"data.overfit={overfit}"] if overfit else [])]
    chosen = read_config(config, changes)
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    try:
        with Display() as display:
            outcome = run(chosen, choose_device(chosen.device), resume, [display])
        code = 128 + outcome.signal if outcome.signal else 0
    except DeepMatchingError as error:
        if is_alone:
            raise
        if isinstance(error, OtherProcessFailed):
            time.sleep(GRACE)
        else:
            say(f"deepmatching: {error}")
        code = 2
    if not is_alone:
        # Whatever there is to save is saved. PyTorch's communication threads can abort a process that ends while they
        # do ("terminate called without an active exception"), and torchrun would call the run a failure.
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)
    if code:
        raise typer.Exit(code)
