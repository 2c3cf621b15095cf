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
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import MODEL, RADIUS


def scores(
    image0: Image0,
    image1: Image1,
    at: Annotated[
        list[str],
        typer.Option(metavar="X,Y", help="Point in the first image, in pixels; may be repeated.", show_default=False),
    ],
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
    """Draw both images and the score maps of one or more points: S_0 to S_L, and Q_L back to Q_0.

    With several points, this is Figure 1 of the paper.
    """
    from deepmatching.drawing import check_picture_path

    points = [parse_point(text) for text in at]
    check_outputs([(output, check_picture_path)], (image0, image1))
    matcher = build_matcher(model, radius=radius, levels=levels, downscale=downscale, device=device, max_size=max_size)
    matcher.draw_scores(image0, image1, points, output)
    say(f"wrote {output}")


def parse_point(text: str) -> tuple[float, float]:
    """The x and the y of ``320,240``."""
    try:
        x, y = (float(value) for value in text.split(","))
    except ValueError:
        raise DeepMatchingError(f"--at needs two numbers such as 320,240, not '{text}'.") from None
    return x, y
