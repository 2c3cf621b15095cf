"""``deepmatching match``."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepmatching.commands.common import (
    Device,
    Downscale,
    Image0,
    Image1,
    Levels,
    Memory,
    Model,
    Radius,
    ReciprocalChoice,
    ReciprocalOption,
    build_matcher,
    check_outputs,
    say,
    summary,
)
from deepmatching.defaults import MODEL
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from torch import Tensor

    from deepmatching.matcher import DeepMatcher


def match(
    image0: Image0,
    image1: Image1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write .txt, .npz or .h5 instead of text to standard output.",
            show_default=False,
        ),
    ] = None,
    model: Model = MODEL,
    radius: Radius = "80",
    levels: Levels = None,
    downscale: Downscale = None,
    reciprocal: ReciprocalOption = ReciprocalChoice.bins,
    device: Device = "auto",
    memory: Memory = None,
    half: Annotated[
        bool, typer.Option("--half", help="Correlate and store scores in half precision (CUDA only).")
    ] = False,
    draw: Annotated[
        Path | None, typer.Option(metavar="PICTURE", help="Also draw the matches.", show_default=False)
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say what is done.")] = False,
) -> None:
    """Match two images.

    Without -o, one match a line goes to standard output as the original program writes it:
    x0 y0 x1 y1 score index, measured at pixel corners. The .npz and .h5 files hold keypoints0, keypoints1
    (measured at pixel centres) and scores.
    """
    from deepmatching.io.images import load_image

    check_outputs(output, draw, (image0, image1))
    matcher = build_matcher(model, radius, levels, downscale, reciprocal, device, memory, half)
    start = time.perf_counter()
    first, second = load_image(image0, "image0"), load_image(image1, "image1")
    if verbose:
        describe_work(matcher, first, second)
    matches = matcher.match(first, second)
    elapsed = time.perf_counter() - start
    if draw is not None:
        matches.draw(first, second, draw)
    if output is not None:
        matches.save(output)
    else:
        _print_matches(matches.as_text())
    say(summary(matches, elapsed, matcher))
    for path in (output, draw):
        if path is not None:
            say(f"wrote {path}")


def describe_work(matcher: DeepMatcher, image0: Tensor, image1: Tensor) -> None:
    """Say how large the work is."""
    from deepmatching.memory import amount

    sizes = (image0.shape[1], image0.shape[2]), (image1.shape[1], image1.shape[2])
    geometry, plan = matcher.network.geometry(*sizes), matcher.plan(*sizes)
    rows, columns = geometry.grid(0)
    pieces = f", in {plan.strips} strips" if plan.strips > 1 else ""
    say(
        f"{rows * columns} reference points, {geometry.L + 1} levels, "
        f"about {amount(plan.needed)} of memory on {matcher.device}{pieces}"
    )


def _print_matches(text: str) -> None:
    """Write to standard output; a reader that has seen enough (head, say) is no error."""
    if sys.stdout is None:
        raise DeepMatchingError("Standard output is closed: use -o FILE.")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again at exit
        if not isinstance(error, BrokenPipeError):
            raise DeepMatchingError(f"Cannot write to standard output ({error.strerror}): use -o FILE.") from error
