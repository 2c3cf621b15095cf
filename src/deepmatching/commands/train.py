"""``deepmatching train``."""

import contextlib
import os
import sys
import time

import typer

from deepmatching.commands import options
from deepmatching.commands.options import argument, option

#: The configs that come with the package; reading their names takes PyTorch.
CONFIGS = "quickstart, compact, vgg, photo, compact_soft, vgg_soft, paper, confidence"

#: Seconds that a process without an error of its own waits for the failed one to print its message: torchrun kills all
#: processes as soon as one has ended.
GRACE = 2.0


@options.command()
def train(
    config: str = argument(..., "CONFIG", f"{CONFIGS}, or the path of a .toml file.", show_default=False),
    settings: list[str] | None = argument(
        None, "KEY=VALUE", "Changes to the config, such as optimizer.lr=1e-3 out=runs/mine.", show_default=False
    ),
    resume: bool = option(False, "Continue the run in the folder out."),
    overfit: int = option(0, "Train and validate on the first N pairs, unaugmented; 0 for off.", "N", min=0),
    threads: int | None = options.THREADS,
) -> None:
    """Train a model on pairs with known displacements.

    The run's folder (out=...) holds best.safetensors and last.safetensors, which --model takes, log.csv, curves.png
    and the state for --resume. Ctrl-C finishes the step, saves and stops. On several GPUs:

    torchrun --nproc_per_node 4 -m deepmatching train CONFIG
    """
    from deepmatching.commands.machine import use_threads
    from deepmatching.commands.messages import complain
    from deepmatching.commands.training_display import Display
    from deepmatching.errors import DeepMatchingError
    from deepmatching.settings import choose_device
    from deepmatching.training import read_config
    from deepmatching.training import train as run
    from deepmatching.training.processes import OtherProcessFailed

    chosen = read_config(config, settings or (), overfit)
    use_threads(threads)
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    try:
        with contextlib.closing(Display()) as display:
            outcome = run(chosen, choose_device(chosen.device), resume, [display])
        code = 128 + outcome.signal if outcome.signal else 0
    except DeepMatchingError as error:
        if is_alone:
            raise
        if isinstance(error, OtherProcessFailed):
            time.sleep(GRACE)
        else:
            complain(str(error))
        code = 2
    if not is_alone:
        # Everything is saved. PyTorch's communication threads can abort a process that ends normally ("terminate called
        # without an active exception"), and torchrun would report the run as failed.
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(code)
    if code:
        raise typer.Exit(code)
