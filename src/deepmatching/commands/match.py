"""``deepmatching match``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from deepmatching.commands import common
from deepmatching.commands.common import say
from deepmatching.commands.output import discard_output
from deepmatching.commands.progress import working
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import MODEL, RADIUS, RECIPROCAL


def match(
    image0: common.Image0,
    image1: common.Image1,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the matches to this .txt, .npz or .h5 file."),
    ] = None,
    model: common.Model = MODEL,
    radius: common.Radius = str(RADIUS),
    levels: common.Levels = None,
    downscale: common.Downscale = None,
    reciprocal: common.ReciprocalOption = RECIPROCAL,
    device: common.Device = "auto",
    memory: common.Memory = None,
    half: common.Half = False,
    threads: common.Threads = None,
    max_size: common.MaxSize = None,
    bit_depth: common.BitDepth = None,
    min_confidence: common.MinConfidence = None,
    search: common.Search = False,
    rotations: common.Rotations = None,
    scales: common.Scales = None,
    draw: Annotated[Path | None, typer.Option(metavar="PICTURE", help="Also draw the matches.")] = None,
    verbose: common.Verbose = False,
    quiet: common.Quiet = False,
) -> None:
    """Match two images.

    Without -o, the matches go to standard output in the original program's format, one per line: x0 y0 x1 y1 score
    index, in pixels, measured at pixel corners. The .npz and .h5 files hold keypoints0 and keypoints1, measured at
    pixel centres, scores and, if the model judges its matches, their confidence. After a search, they also hold
    transformations, 3x3 matrices from the first image to the second, and which of them each match came from.
    """
    from deepmatching.drawing import check_picture_path
    from deepmatching.io.matches import check_matches_suffix

    common.set_quiet(quiet)
    common.check_outputs([(output, check_matches_suffix), (draw, check_picture_path)], (image0, image1))
    matcher = common.build_matcher(
        model,
        radius=radius,
        levels=levels,
        downscale=downscale,
        reciprocal=reciprocal,
        device=device,
        memory=memory,
        half=half,
        threads=threads,
        verbose=verbose,
        max_size=max_size,
        bit_depth=bit_depth,
        search=search,
        rotations=rotations,
        scales=scales,
    )
    start = time.perf_counter()
    first, second = matcher.load(image0, "image0"), matcher.load(image1, "image1")
    if verbose:
        say(common.describe_work(matcher, first, second))
    with working("matching"):
        found = matcher.match(first, second)
    matches = found if min_confidence is None else found.filter(min_confidence)
    elapsed = time.perf_counter() - start
    if draw is not None:
        matches.draw(first, second, draw)
    if output is not None:
        matches.save(output)
    else:
        _print_matches(matches.as_text())
    say(common.match_summary(matches, elapsed, matcher))
    if matches.transformation is not None:
        say(common.search_summary(matches))
    common.warn_if_wrong(found, matcher)
    common.say_written(output, draw)


def _print_matches(text: str) -> None:
    """Write to standard output. A reader that stops early, such as ``head``, is not an error."""
    if sys.stdout is None:
        raise DeepMatchingError("Standard output is closed: use -o FILE.")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        discard_output()
        if not isinstance(error, BrokenPipeError):
            raise DeepMatchingError(f"Cannot write to standard output ({error.strerror}): use -o FILE.") from error
