"""``deepmatching synthesize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deepmatching.commands.common import Device, Quiet, parse_size, say, set_quiet
from deepmatching.commands.progress import progress_bar


def synthesize(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the pairs.")],
    photos: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Folder of photographs and, optionally, cut-outs (pictures with transparency); subfolders count too.",
        ),
    ],
    count: Annotated[int, typer.Option(metavar="N", help="Number of pairs.")] = 1000,
    size: Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help="Size of the frames in pixels.")] = "512x384",
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the random numbers; pair i depends on it and on i alone.")
    ] = 0,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="default: varied scenes, light and camera effects; chairs: affine motions only."
        ),
    ] = "default",
    max_displacement: Annotated[
        float | None,
        typer.Option(
            metavar="PIXELS", help="Largest motion along each axis, in pixels.", show_default="that of the preset"
        ),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Make pairs of frames with known flow and occlusion from photographs.

    The files have the layout of Flying Chairs, OUT/data/00001_img1.ppm,
    00001_img2.ppm and 00001_flow.flo, plus 00001_occ.png, a mask that is white
    where the second frame does not show a pixel of the first. The same command
    continues an interrupted run; a smaller count removes no pairs.
    """
    from dataclasses import replace

    import torch

    from deepmatching.data.synthesis import PRESETS
    from deepmatching.data.synthesis.export import Export
    from deepmatching.errors import check_choice
    from deepmatching.matcher import choose_device

    set_quiet(quiet)
    width, height = parse_size(size)
    check_choice("--preset", preset, PRESETS)
    settings = PRESETS[preset]
    if max_displacement is not None:
        settings = replace(settings, max_displacement=max_displacement)
    chosen = choose_device(device)
    if chosen.type == "mps":
        chosen = torch.device("cpu")  # PyTorch does not sample volumes on Apple's GPUs
    export = Export(out, photos, count, (height, width), seed, settings, chosen)
    new = old = 0
    with progress_bar("pairs", export.total) as advance:
        for is_new in export.run():
            new, old = new + is_new, old + (not is_new)
            advance()
    say(f"wrote {new} pairs to {out}" + (f"; {old} were there already" if old else ""))
