"""``deepmatching warp``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from deepmatching.commands import messages, options
from deepmatching.commands.first_run import share_compilation
from deepmatching.commands.messages import say
from deepmatching.commands.options import option, refuse
from deepmatching.settings import FLOW_RADIUS, RADIUS


@options.command(
    *("radius", "device", "memory", "max_size", "bit_depth", "use_alpha", "search", "rotations", "scales", "auto"),
    shown={"radius": f"{FLOW_RADIUS}; {RADIUS} with --geometry"},
)
def warp(
    image0: Path = options.IMAGE0,
    image1: Path = options.IMAGE1,
    *,
    output: Path = option(..., "Picture to write.", "PICTURE", flags="-o --output"),
    geometry: Literal["homography"] | None = option(
        None, "Warp by the homography that most matches fit.", "homography", "flow"
    ),
    view: Literal["warp", "blend", "checkerboard", "difference"] = option(
        "warp", "The warp alone, or with A: their mean, both in alternate squares, or their difference."
    ),
    between: float | None = option(
        None, "Instead, the picture at this time between A and B, 0 to 1, from the flow both ways.", "T", min=0, max=1
    ),
    min_confidence: float | None = option(
        None,
        "With --geometry: keep matches with at least this confidence, 0 to 1; not for hog.",
        "P",
        "all",
        min=0,
        max=1,
    ),
    model: str = options.NETWORK,
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
) -> None:
    """Show B as A would show it, or a picture between them.

    deepmatching warp A B -o B_ON_A.png

    deepmatching warp A B -o MIDDLE.png --between 0.5

    The picture has the size of A. Pixels that leave B, or are probably hidden there, are transparent in .png, .tif and
    .webp, and grey elsewhere. Only the flow knows what is hidden.
    """
    from deepmatching.drawing import check_picture_path, view_warp, write_image
    from deepmatching.flow import picture_between

    if between is not None:
        refuse({"geometry": geometry, "view": view if view != "warp" else None}, "is for warps: leave out --between.")
    if geometry is None:
        refuse({"min_confidence": min_confidence}, "is for --geometry: leave it out.")
    options.check_outputs([(output, check_picture_path)], (image0, image1))
    share_compilation()
    matcher = options.build_matcher(model, settings, threads)
    start = time.perf_counter()
    first, second = matcher.load(image0, "image0"), matcher.load(image1, "image1")
    if between is not None:
        messages.say_work(matcher.for_flow(), first, second)
        with messages.computing("computing the flow both ways"):
            flows = matcher.flow_both_ways(first, second)
            picture = picture_between(first, second, *flows, between)
        write_image(output, picture)
        say(f"the picture at {between:g} between the two, {time.perf_counter() - start:.2f} s")
        messages.say_of_flow(min(flows, key=lambda flow: flow.agreement), matcher)
        return messages.say_written(output)
    if geometry is None:
        messages.say_work(matcher.for_flow(), first, second)
        with messages.computing("computing the flow"):
            result = matcher.flow(first, second).read()
        warped = result.warp(second)
        messages.say_of_flow(result, matcher)
    else:
        messages.say_work(matcher, first, second)
        with messages.computing("matching"):
            matches = matcher.match(first, second)
        kept = matches if min_confidence is None else matches.filter(min_confidence)
        warped = kept.warp(second)
        messages.say_if_searched(matcher, matches.transformation is not None)
        messages.warn_if_wrong(matches, matcher)
    write_image(output, view_warp(first, warped, view))
    say(f"{(warped[..., 3] > 0).mean():.0%} of the pixels are visible, {time.perf_counter() - start:.2f} s")
    messages.say_written(output)
