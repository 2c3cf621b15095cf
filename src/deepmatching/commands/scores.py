"""``deepmatching scores``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepmatching.commands.common import (
    Device,
    Downscale,
    Image0,
    Image1,
    Levels,
    MaxSize,
    Model,
    Radius,
    build_matcher,
    check_outputs,
    say,
)
from deepmatching.defaults import MODEL, RADIUS
from deepmatching.errors import DeepMatchingError


def scores(
    image0: Image0,
    image1: Image1,
    at: Annotated[str, typer.Option(metavar="X,Y", help="Point in the first image, in pixels.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="PICTURE", help="Picture to write.", show_default=False),
    ],
    model: Model = MODEL,
    radius: Radius = str(RADIUS),
    levels: Levels = None,
    downscale: Downscale = None,
    device: Device = "auto",
    max_size: MaxSize = None,
) -> None:
    """Draw the score maps of one point: S_0 to S_L, and Q_L back to Q_0."""
    from deepmatching.drawing import check_picture_path

    try:
        x, y = (float(value) for value in at.split(","))
    except ValueError:
        raise DeepMatchingError(f"--at needs two numbers such as 320,240, not '{at}'.") from None
    check_outputs([(output, check_picture_path)], (image0, image1))
    matcher = build_matcher(model, radius=radius, levels=levels, downscale=downscale, device=device, max_size=max_size)
    matcher.draw_scores(image0, image1, (x, y), output)
    say(f"wrote {output}")
