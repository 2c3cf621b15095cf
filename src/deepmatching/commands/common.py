"""Options that several commands share, and what they do with them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from deepmatching.matcher import DeepMatcher
    from deepmatching.matches import Matches


#: Seconds between lines about progress where there is no terminal for a bar.
LINES_EVERY = 30.0


class ReciprocalChoice(str, Enum):
    """How matches are verified."""

    bins = "bins"
    exact = "exact"
    none = "none"


Image0 = Annotated[
    Path, typer.Argument(metavar="A", help="The first image (the matches start here).", show_default=False)
]
Image1 = Annotated[Path, typer.Argument(metavar="B", help="The second image.", show_default=False)]
Model = Annotated[str, typer.Option(help="compact, vgg, hog, or the path of a .safetensors model.")]
Radius = Annotated[str, typer.Option(metavar="PIXELS|full", help="Largest displacement along each axis.")]
Levels = Annotated[
    int | None,
    typer.Option(help="How often patches are aggregated; by default as often as the image allows.", show_default=False),
]
Downscale = Annotated[
    int | None,
    typer.Option(
        metavar="0|1|2",
        help="Descriptor cells are 2^N pixels wide (default: the model's, 1 for hog).",
        show_default=False,
    ),
]
ReciprocalOption = Annotated[
    ReciprocalChoice,
    typer.Option(help="Keep a match if it is the best of its 8x8-pixel target bin, at its exact target, or always."),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="What may be used, such as 500MB or 2GB (default: 4/5 of what is free). With less than the work takes at "
        "once, it is cut into pieces, with the same result.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="Where to compute.")]


def build_matcher(
    model: str,
    radius: str | None,
    levels: int | None,
    downscale: int | None,
    reciprocal: ReciprocalChoice,
    device: str,
    memory: str | None = None,
    half: bool = False,
) -> DeepMatcher:
    from deepmatching.matcher import DeepMatcher

    try:
        limit = radius if radius is None or radius == "full" else int(radius)
    except ValueError:
        raise DeepMatchingError(f"--radius needs a number of pixels or 'full', not '{radius}'.") from None
    return DeepMatcher.from_pretrained(
        model,
        radius=limit,
        levels=levels,
        downscale=downscale,
        reciprocal=reciprocal.value,
        device=device,
        memory=to_bytes(memory) if memory else None,
        half=half,
    )


def to_bytes(size: str) -> int:
    """'500MB', '2 GB' or '1.5g' in bytes."""
    parsed = re.fullmatch(r"\s*([0-9.]+)\s*([kmg])b?\s*", size, re.IGNORECASE)
    try:
        return int(float(parsed[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[parsed[2].lower()]) if parsed else int(size)
    except ValueError:
        raise DeepMatchingError(f"--memory needs a size such as 500MB or 2GB, not '{size}'.") from None


def check_outputs(output: Path | None, picture: Path | None, inputs: Iterable[Path]) -> None:
    """Complain about output paths before the work, not after it."""
    from deepmatching.drawing import check_picture_path
    from deepmatching.io.files import check_writable
    from deepmatching.io.matches import check_matches_suffix

    if output is not None:
        check_matches_suffix(output)
        check_writable(output)
    if picture is not None:
        check_picture_path(picture)
    check_not_inputs((output, picture), inputs)


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Complain about the first of these options that is given, neither None nor False."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise DeepMatchingError(f"{name} {reason}")


def check_not_inputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Complain if a file that is read would be written over."""
    read = [path for path in inputs if path is not None]
    for output in outputs:
        if output is not None and any(is_same(output, path) for path in read):
            raise DeepMatchingError(f"'{output}' is read, and would be written over: give the result another name.")


def is_same(path: Path, other: Path) -> bool:
    """Whether two paths lead to one file or folder, there already or not."""
    return path.resolve() == other.resolve() or (path.exists() and other.exists() and os.path.samefile(path, other))


def summary(matches: Matches, elapsed: float, matcher: DeepMatcher) -> str:
    assert matches.size0 is not None and matches.size1 is not None
    rows, columns = matcher.network.geometry(matches.size0, matches.size1).grid(0)
    text = f"{len(matches)} matches of {rows * columns} reference points, {elapsed:.2f} s on {matcher.device}"
    if len(matches):
        length = matches.displacements.norm(dim=1)
        text += f"; displacement {length.median():.1f} px (median), {length.max():.1f} px (largest)"
    return text


def say(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr)
