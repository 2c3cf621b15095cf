"""``deepmatching synthesize``."""

from pathlib import Path
from typing import Any

from deepmatching.commands import options
from deepmatching.commands.machine import use_threads
from deepmatching.commands.messages import progress_bar, say
from deepmatching.commands.options import argument, option


@options.command("device")
def synthesize(
    out: Path = argument(..., "OUT", "Folder for the pairs."),
    *,
    photos: Path = option(
        ..., "Folder of photographs and, optionally, cut-outs (with transparency); subfolders count too.", "DIR"
    ),
    count: int = option(1000, "Number of pairs.", "N"),
    size: str = option("512x384", "Size of the frames in pixels.", "WIDTHxHEIGHT"),
    seed: int = option(0, "Seed of the random numbers; pair i depends on it and on i alone.", "N"),
    preset: str = option("default", "default: varied scenes and camera effects; chairs: affine motions only.", "NAME"),
    max_displacement: float | None = option(None, "Largest motion along each axis.", "PIXELS", "that of the preset"),
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
) -> None:
    """Make pairs of frames with known flow and occlusion from photographs.

    The files have the layout of Flying Chairs, OUT/data/00001_img1.ppm, 00001_img2.ppm and 00001_flow.flo, plus
    00001_occ.png, a mask that is white where the second frame does not show a pixel of the first. The same command
    continues an interrupted run; a smaller count removes no pairs.
    """
    from dataclasses import replace

    import torch

    from deepmatching.data.synthesis import PRESETS
    from deepmatching.data.synthesis.export import Export
    from deepmatching.errors import check_choice, counted
    from deepmatching.settings import choose_device

    check_choice("--preset", preset, PRESETS)
    synthesis = PRESETS[preset]
    if max_displacement is not None:
        synthesis = replace(synthesis, max_displacement=max_displacement)
    device = choose_device(settings["device"])
    if device.type == "mps":
        device = torch.device("cpu")  # PyTorch does not sample volumes on Apple's GPUs
    use_threads(threads)
    export = Export(out, photos, count, options.parse_size(size), seed, synthesis, device)
    new = old = 0
    with progress_bar("pairs", export.total) as advance:
        for is_new in export.run():
            new, old = new + is_new, old + (not is_new)
            advance()
    say(f"wrote {counted(new, 'pair')} to {out}" + (f"; {old} were there already" if old else ""))
