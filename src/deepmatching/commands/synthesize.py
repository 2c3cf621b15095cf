"""``deepmatching synthesize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepmatching.commands.common import Device, parse_size, say
from deepmatching.errors import DeepMatchingError


def synthesize(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to fill.", show_default=False)],
    photos: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Photographs, and cut-outs (pictures with transparency) if there are any; also in its subfolders.",
            show_default=False,
        ),
    ],
    count: Annotated[int, typer.Option(metavar="N", help="How many pairs.")] = 1000,
    size: Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help="Size of the frames.")] = "512x384",
    seed: Annotated[int, typer.Option(help="Pair i depends on the seed and i alone.")] = 0,
    preset: Annotated[
        str, typer.Option(help="default: rich scenes, light and camera. chairs: affine motions only.")
    ] = "default",
    max_displacement: Annotated[
        float | None,
        typer.Option(
            metavar="PIXELS", help="Largest motion along x and y (default: the preset's).", show_default=False
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Make pairs of frames with known flow and occlusion out of photographs.

    They are written as Flying Chairs is: OUT/data/00001_img1.ppm, 00001_img2.ppm, 00001_flow.flo, and 00001_occ.png,
    which is white where a pixel of the first frame is not seen in the second. A run that was interrupted goes on where
    it stopped, and one with a smaller count leaves the pairs that are there.
    """
    from dataclasses import replace

    import torch
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from deepmatching.datasets.synthesis import PRESETS
    from deepmatching.datasets.synthesis.export import Export
    from deepmatching.matcher import choose_device

    width, height = parse_size(size)
    if preset not in PRESETS:
        raise DeepMatchingError(f"There is no preset '{preset}'; use one of {', '.join(PRESETS)}.")
    settings = PRESETS[preset]
    if max_displacement is not None:
        settings = replace(settings, max_displacement=max_displacement)
    chosen = choose_device(device)
    if chosen.type == "mps":
        chosen = torch.device("cpu")  # PyTorch does not sample volumes on Apple's GPUs
    export = Export(out, photos, count, (height, width), seed, settings, chosen)
    columns = (TextColumn("pairs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("pairs", total=export.total)
        new = there = 0
        for is_new in export.run():
            new, there = new + is_new, there + (not is_new)
            progress.advance(task)
    say(f"wrote {new} pairs to {out}" + (f"; {there} were there already" if there else ""))
