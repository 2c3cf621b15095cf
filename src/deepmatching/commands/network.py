"""``deepmatching network``."""

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
    Model,
    Radius,
    build_matcher,
    check_outputs,
    say,
)
from deepmatching.settings import MODEL, RADIUS


def network(
    image0: Image0,
    image1: Image1,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="PICTURE", help="Picture to write.", show_default=False),
    ],
    model: Model = MODEL,
    radius: Radius = str(RADIUS),
    levels: Levels = None,
    downscale: Downscale = None,
    device: Device = "auto",
) -> None:
    """Draw the U-shaped network with the shapes of its score volumes for a pair: Figure 2 of the paper."""
    from deepmatching.drawing import check_picture_path, draw_network, write_image
    from deepmatching.io.images import load_image

    check_outputs([(output, check_picture_path)], (image0, image1))
    matcher = build_matcher(model, radius=radius, levels=levels, downscale=downscale, device=device)
    first, second = load_image(image0, "image0"), load_image(image1, "image1")
    geometry = matcher.network.geometry((first.shape[1], first.shape[2]), (second.shape[1], second.shape[2]))
    descriptor = matcher.network.descriptor
    write_image(output, draw_network(geometry, type(descriptor).__name__, descriptor.channels))
    say(f"wrote {output}")
