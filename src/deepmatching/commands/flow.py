"""``deepmatching flow``."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepmatching.commands.common import Device, Memory, ReciprocalChoice, build_matcher, check_not_inputs, refuse, say
from deepmatching.defaults import MODEL
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from deepmatching.flow.pipeline import EdgesLike
    from deepmatching.flow.result import FlowResult


class FormatChoice(str, Enum):
    """What flow files can be."""

    flo = "flo"
    png = "png"
    pfm = "pfm"
    npy = "npy"


def flow(
    image0: Annotated[
        Path,
        typer.Argument(
            metavar="A", help="The first image; or a video or a folder of frames, with --out.", show_default=False
        ),
    ],
    image1: Annotated[Path | None, typer.Argument(metavar="B", help="The second image.", show_default=False)] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The flow file to write: .flo, .png (KITTI's 16 bits), .pfm or .npy.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Of a video or folder: write one flow file a frame here.", show_default=False),
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="PICTURE",
            help="Also draw the flow. Of a video or folder: the name of an .mp4, or a folder for pictures.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write how far the flow is to be trusted, 0 to 1: .npy, or .png of 16 bits.",
            show_default=False,
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="default, or the original program's settings: original, sintel, kitti, middlebury.",
        ),
    ] = "default",
    edges: Annotated[
        str, typer.Option(metavar="network|gradient|FILE", help="How to find the edges of the first image, or a map.")
    ] = "network",
    structured_forest: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL",
            help="Find edges by OpenCV's structured forest; its model.yml.gz is needed.",
            show_default=False,
        ),
    ] = None,
    matches: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Interpolate these matches (.txt, .npz, .h5), of any matcher, instead of finding some.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH",
            help=f"compact, vgg, hog, or the path of a .safetensors model (default: {MODEL}).",
            show_default=False,
        ),
    ] = None,
    radius: Annotated[
        str | None,
        typer.Option(
            metavar="PIXELS|full", help="Largest displacement along each axis (default: 160).", show_default=False
        ),
    ] = None,
    device: Device = "auto",
    memory: Memory = None,
    file_format: Annotated[
        FormatChoice | None,
        typer.Option(
            "--format", help="Of a video or folder: the format of the flow files (default: flo).", show_default=False
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Of a video or folder: do again what an earlier run has finished.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say what is done.")] = False,
) -> None:
    """Dense optical flow: of two images, or of all consecutive frames of a video.

    deepmatching flow A B -o FLOW.flo

    deepmatching flow VIDEO|FOLDER --out DIR

    A flow file holds the displacement of every pixel of the first image.
    The second form writes one for each frame but the last; if it was
    interrupted, the same command goes on where it stopped.
    """
    from deepmatching.flow import preset as settings_of

    settings_of(preset)  # complains before the work
    edges_like = choose_edges(edges, structured_forest)
    if image1 is None:
        from deepmatching.commands.flow_sequence import flow_of_sequence

        refuse(
            {"-o": output, "--confidence": confidence, "--matches": matches},
            "is for a pair of images: give a second image, or leave it out.",
        )
        if out is None:
            raise DeepMatchingError("Give a second image, or --out DIR for the flows of a video or folder.")
        if callable(edges_like) or edges in ("network", "gradient"):
            how = {"preset": preset, "edges": str(structured_forest) if structured_forest is not None else edges}
        else:
            raise DeepMatchingError("One edge map cannot serve all frames: use --edges network or gradient.")
        matcher, suffix = _matcher(model, radius, device, memory), f".{(file_format or FormatChoice.flo).value}"
        flow_of_sequence(image0, out, matcher, model or MODEL, how, edges_like, suffix, restart, draw, verbose)
        return
    refuse(
        {"--out": out, "--format": file_format, "--restart": restart},
        "is for a video or a folder: name the flow with -o, and leave it out.",
    )
    if output is None and draw is None and confidence is None:
        raise DeepMatchingError("Nothing would be written: name the flow file with -o.")
    check_flow_outputs(output, draw, confidence)
    check_not_inputs((output, draw, confidence), (image0, image1, matches, Path(edges), structured_forest))
    if matches is None:
        calculate: Callable[..., FlowResult] = partial(_flow_by_matching, _matcher(model, radius, device, memory))
    else:
        refuse(
            {"--model": model, "--radius": radius, "--memory": memory},
            "has no effect on matches that are given: leave it out.",
        )
        calculate = partial(_flow_of_matches, matches, device)
    _flow_of_pair(image0, image1, calculate, preset, edges_like, output, draw, confidence, verbose)


def choose_edges(edges: str, structured_forest: Path | None) -> EdgesLike:
    """What the two options about edges mean."""
    if structured_forest is None:
        return edges
    if edges != "network":
        raise DeepMatchingError("--edges and --structured-forest exclude each other: leave one out.")
    if not structured_forest.is_file():
        raise DeepMatchingError(f"There is no structured-forest model '{structured_forest}'; check the path.")
    from deepmatching.edges import structured_forest_edges

    return partial(structured_forest_edges, model=structured_forest)


def check_flow_outputs(output: Path | None, picture: Path | None, confidence: Path | None) -> None:
    """Complain about output paths before the work, not after it."""
    from deepmatching.drawing import check_picture_path
    from deepmatching.flow.result import check_confidence_suffix
    from deepmatching.io.files import check_writable
    from deepmatching.io.flow import check_flow_suffix

    if output is not None:
        check_flow_suffix(output)
        check_writable(output)
    if picture is not None:
        check_picture_path(picture)
    if confidence is not None:
        check_confidence_suffix(confidence)
        check_writable(confidence)
    given = [path.resolve() for path in (output, picture, confidence) if path is not None]
    if len(set(given)) < len(given):
        raise DeepMatchingError("Flow, picture and confidence cannot go to the same file: give different names.")


def _matcher(model: str | None, radius: str | None, device: str, memory: str | None) -> Any:
    return build_matcher(model or MODEL, radius, None, None, ReciprocalChoice.bins, device, memory)


def _flow_by_matching(matcher: Any, image0: Any, image1: Any, preset: str, edges: EdgesLike, verbose: bool) -> Any:
    if verbose:
        from deepmatching.commands.match import describe_work

        describe_work(matcher.for_flow(), image0, image1)
    return matcher.flow(image0, image1, preset, edges=edges)


def _flow_of_matches(
    path: Path, device: str, image0: Any, image1: Any, preset: str, edges: EdgesLike, verbose: bool
) -> Any:
    from deepmatching.flow.pipeline import count_outside, matches_to_flow
    from deepmatching.matches import Matches
    from deepmatching.settings import choose_device

    given = Matches.load(path)
    if verbose:
        say(f"{len(given)} matches in {path}")
    if outside := count_outside(given, (image0.shape[1], image0.shape[2])):
        say(f"note: {outside} of {len(given)} matches start outside the image")
    from deepmatching.flow import preset as settings_of

    chosen = choose_device(device)
    return matches_to_flow(given, image0.to(chosen), image1.to(chosen), settings_of(preset), edges, host_image0=image0)


def _flow_of_pair(
    path0: Path,
    path1: Path,
    calculate: Callable[..., FlowResult],
    preset: str,
    edges: EdgesLike,
    output: Path | None,
    draw: Path | None,
    confidence: Path | None,
    verbose: bool,
) -> None:
    from deepmatching.io.images import load_image

    start = time.perf_counter()
    image0, image1 = load_image(path0, "image0"), load_image(path1, "image1")
    result = calculate(image0, image1, preset, edges, verbose)
    elapsed = time.perf_counter() - start
    if output is not None:
        result.save(output)
    if confidence is not None:
        result.save_confidence(confidence)
    if draw is not None:
        result.draw(draw, image0, image1)
    say(flow_summary(result, elapsed))
    for path in (output, draw, confidence):
        if path is not None:
            say(f"wrote {path}")


def flow_summary(result: FlowResult, elapsed: float) -> str:
    """One line: matches, time of each stage, and how far things move."""
    import numpy as np

    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.seconds.items())
    length = np.hypot(result.flow[..., 0], result.flow[..., 1])
    return (
        f"{result.matches} matches used, {elapsed:.2f} s ({stages}); "
        f"motion {np.median(length):.1f} px (median), {length.max():.1f} px (largest)"
    )
