"""Options that several commands share, checks of what users give, and lines that several commands print."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deepmatching.commands.threads import use_threads
from deepmatching.errors import DeepMatchingError, check_number, short_repr
from deepmatching.settings import (
    FULL,
    MAX_BYTES,
    MAX_PIXELS,
    MIN_AGREEMENT,
    MIN_EXPECTED,
    MODELS,
    Reciprocal,
    radius_in_pixels,
    rotations_in_degrees,
    scales_to_try,
)

if TYPE_CHECKING:
    from torch import Tensor

    from deepmatching.data.datasets import FilePairs
    from deepmatching.flow.pipeline import EdgesLike
    from deepmatching.flow.result import FlowResult
    from deepmatching.matcher import DeepMatcher
    from deepmatching.matches import Matches

MODEL_HELP = f"Model: {', '.join(MODELS)}, or the path of a .safetensors file."
RADIUS_HELP = f"Largest displacement along each axis, in pixels; '{FULL}' sets no limit."

Image0 = Annotated[Path, typer.Argument(metavar="A", help="First image; matches start here.")]
Image1 = Annotated[Path, typer.Argument(metavar="B", help="Second image.")]
Model = Annotated[str, typer.Option(metavar="NAME|PATH", help=MODEL_HELP)]
Radius = Annotated[str, typer.Option(metavar=f"PIXELS|{FULL}", help=RADIUS_HELP)]
Levels = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of aggregation levels.",
        show_default="as many as the image size allows; flow with a confidence of matches: at most 3",
    ),
]
Downscale = Annotated[
    int | None,
    typer.Option(
        metavar="0|1|2", help="Make descriptor cells 2^N pixels wide.", show_default="as the model was trained; hog: 1"
    ),
]
ReciprocalOption = Annotated[
    Reciprocal,
    typer.Option(
        help="Keep a match if it is the best one into its 8x8-pixel target bin (bins) or onto its exact target pixel "
        "(exact); none keeps all.",
    ),
]
SUBPIXEL_HELP = "Move matches between the cells of 2 pixels, if the model has learned to; or leave them on the cells."
Half = Annotated[bool, typer.Option("--half", help="Correlate and store scores in half precision: faster, needs CUDA.")]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory that matching may use, such as 500MB or 2GB. If one pass needs more, scores are computed in "
        "pieces, with the same result; what does not fit even so is refused.",
        show_default="4/5 of the free memory",
    ),
]
Device = Annotated[
    str, typer.Option(metavar="auto|cpu|cuda|mps", help="Device to compute on; auto prefers cuda, then mps.")
]
MaxSize = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        help="Match larger images at a reduced size, with this many pixels along the longer side. The result is in "
        "pixels of the original size; the radius is in those of the reduced one.",
        show_default="no limit",
    ),
]
BitDepth = Annotated[
    int | None,
    typer.Option(metavar="BITS", help="Bits in use of 16-bit images, such as 12.", show_default="16"),
]
MinConfidence = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        min=0.0,
        max=1.0,
        help="Keep matches with at least this probability of being right, 0 to 1; not for hog.",
        show_default="all",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of threads on the CPU.",
        show_default="OMP_NUM_THREADS, or the cores that are free",
    ),
]
StructuredForest = Annotated[
    Path | None,
    typer.Option(
        metavar="MODEL", help="Detect edges with OpenCV's structured forest and this model file (model.yml.gz)."
    ),
]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Find how the second image is turned and zoomed, on small images first: 8 rotations at 9 scales from 0.25 "
        "to 4, unless --rotations or --scales say otherwise.",
    ),
]
Rotations = Annotated[
    str | None,
    typer.Option(
        metavar="N|DEGREES",
        help="Rotations of the second image to try: how many, evenly spaced (8), or a list (0,90,180,270).",
        show_default="0; with --search 8",
    ),
]
Scales = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Scales of the second image to try, such as 0.5,0.71,1,1.41,2.",
        show_default="1; with --search 0.25 to 4",
    ),
]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print what is being done.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only: no summary, notes or progress.")]

_quiet = False


def build_matcher(
    model: str,
    *,
    radius: str | None = None,
    memory: str | None = None,
    rotations: str | None = None,
    scales: str | None = None,
    threads: int | None = None,
    verbose: bool = False,
    **settings: Any,
) -> DeepMatcher:
    """The matcher of a model, with the options of a command; ``settings`` are passed on unchanged."""
    from deepmatching.matcher import DeepMatcher

    used = use_threads(threads)
    if verbose:
        say(used)

    return DeepMatcher.from_pretrained(
        model,
        radius=None if radius is None else parse_radius(radius),
        memory=None if memory is None else parse_memory(memory),
        rotations=parse_rotations(rotations),
        scales=parse_scales(scales),
        **settings,
    )


def parse_radius(text: str) -> int | str:
    """A number of pixels, or the word for no limit."""
    radius: int | str = text
    with contextlib.suppress(ValueError):
        radius = int(text)
    radius_in_pixels(radius, "--radius")
    return radius


def parse_rotations(text: str | None) -> int | tuple[float, ...] | None:
    """A number of rotations, or degrees with commas between them."""
    if text is None:
        return None
    given: Any = int(text) if re.fullmatch(r"\d{1,9}", text) else _parse_list(text)
    degrees = rotations_in_degrees(given if given is not None else text, "--rotations")
    return given if isinstance(given, int) else degrees


def parse_scales(text: str | None) -> tuple[float, ...] | None:
    """Scales with commas between them."""
    if text is None:
        return None
    given = _parse_list(text)
    return scales_to_try(given if given is not None else text, "--scales")


def _parse_list(text: str) -> list[float] | None:
    """The numbers between commas; None if there are words."""
    try:
        return [float(number) for number in text.split(",") if number.strip()]
    except ValueError:
        return None


def parse_memory(text: str) -> int:
    """The number of bytes of ``500MB``, ``2 GB`` or ``1.5g``."""
    parsed = re.fullmatch(r"\s*([0-9.]+)\s*([kmg])b?\s*", text, re.IGNORECASE)
    try:
        size = int(float(parsed[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[parsed[2].lower()]) if parsed else int(text)
    except (ValueError, OverflowError):
        raise DeepMatchingError(f"--memory needs a size such as 500MB or 2GB, not {short_repr(text)}.") from None
    check_number("--memory, in bytes,", size, minimum=1, maximum=MAX_BYTES, whole=True)
    return size


def parse_size(text: str, order: str = "a width and a height such as 1024x436") -> tuple[int, int]:
    """The two sides of ``1024x436``, in the order in which they are written."""
    parsed = re.fullmatch(r"(\d+)x(\d+)", text)
    if not parsed:
        raise DeepMatchingError(f"--size needs {order}, not '{text}'.")
    first, second = (int(side) if len(side) < 1000 else MAX_PIXELS + 1 for side in parsed.groups())
    if first * second > MAX_PIXELS:
        raise DeepMatchingError(f"--size is too large: an image has at most {MAX_PIXELS} pixels.")
    return first, second


def edge_source(edges: str, structured_forest: Path | None) -> EdgesLike:
    """The edge detector or edge map that ``--edges`` and ``--structured-forest`` name."""
    if structured_forest is None:
        return edges
    if edges != "network":
        raise DeepMatchingError("--edges and --structured-forest exclude each other: leave one out.")
    if not os.path.isfile(structured_forest):
        raise DeepMatchingError(f"There is no structured-forest model '{structured_forest}'; check the path.")
    from deepmatching.flow.edges import structured_forest_edges

    return partial(structured_forest_edges, model=structured_forest)


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Raise if one of these options is given, that is, neither None nor False."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise DeepMatchingError(f"{name} {reason}")


def check_outputs(
    outputs: Iterable[tuple[Path | None, Callable[[Path], object]]], inputs: Iterable[Path | None]
) -> None:
    """Raise before the work, not after it, if an output cannot be written.

    Args:
        outputs: each path, if given, with the check of its suffix.
        inputs: files that no output may replace.
    """
    from deepmatching.io.files import check_writable

    written: list[Path] = []
    for path, check_suffix in outputs:
        if path is not None:
            check_suffix(path)
            check_writable(path)
            if any(is_same(path, other) for other in written):
                raise DeepMatchingError(f"Two results cannot go to the same file '{path}': give different names.")
            written.append(path)
    check_not_inputs(written, inputs)


def check_not_inputs(outputs: Iterable[Path | None], inputs: Iterable[Path | None]) -> None:
    """Raise if an output would replace a file that is read."""
    read = [path for path in inputs if path is not None]
    for output in outputs:
        if output is not None and any(is_same(output, path) for path in read):
            raise DeepMatchingError(f"'{output}' is an input and would be overwritten: give the result another name.")


def is_same(path: Path, other: Path) -> bool:
    """Whether two paths lead to the same file or folder, whether or not it exists."""
    try:
        return os.path.realpath(path) == os.path.realpath(other) or os.path.samefile(path, other)
    except (OSError, ValueError):  # at least one does not exist
        return False


def describe_work(matcher: DeepMatcher, image0: Tensor, image1: Tensor) -> str:
    """One line: reference points, levels and memory of matching two images."""
    from deepmatching.network.memory import amount

    sizes = (image0.shape[1], image0.shape[2]), (image1.shape[1], image1.shape[2])
    geometry, plan = matcher.geometry(*sizes), matcher.plan(*sizes)
    rows, columns = geometry.grid(0)
    tiling = f", in {plan.tiling.strips} strips" if plan.tiling.strips > 1 else ""
    return (
        f"{rows * columns} reference points, {geometry.L} levels above them, "
        f"about {amount(plan.needed)} of memory on {matcher.device}{tiling}"
    )


def match_summary(matches: Matches, elapsed: float, matcher: DeepMatcher) -> str:
    """One line: number of matches, time and displacements."""
    assert matches.size0 is not None and matches.size1 is not None
    rows, columns = matcher.geometry(matches.size0, matches.size1).grid(0)
    text = f"{len(matches)} matches of {rows * columns} reference points, {elapsed:.2f} s on {matcher.device}"
    if len(matches):
        length = matches.displacements.norm(dim=1)
        text += f"; displacement {length.median():.1f} px (median), {length.max():.1f} px (largest)"
    return text


def search_summary(matches: Matches) -> str:
    """One line: how the second image shows the parts of the first one, and how many matches say so."""
    from deepmatching.geometry.homographies import rotation_and_zoom

    assert matches.transformation is not None
    parts = []
    for number in matches.transformation.unique().tolist():
        derivatives = matches.derivatives[matches.transformation == number]
        rotation, zoom = rotation_and_zoom(derivatives.double().mean(dim=0).cpu().numpy())
        parts.append(f"{len(derivatives)} matches turned by {rotation:.0f} degrees, zoomed by {zoom:.2f}")
    return "; ".join(parts) or "no transformation gives matches"


def flow_summary(result: FlowResult, elapsed: float) -> str:
    """One line: number of matches, time of each stage, which add up to ``elapsed``, and displacements."""
    import numpy as np

    reading = elapsed - sum(result.seconds.values())  # all that is not a stage
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in {"reading": reading, **result.seconds}.items())
    length = np.hypot(result.flow[..., 0], result.flow[..., 1])
    return (
        f"{result.matches} matches used, {elapsed:.2f} s ({stages}); "
        f"motion {np.median(length):.1f} px (median), {length.max():.1f} px (largest)"
    )


def warn_if_wrong(matches: Matches, matcher: DeepMatcher) -> None:
    """Print a warning if the matches are probably wrong."""
    if matches.confidence is None or matches.size0 is None or matches.size1 is None:
        warn_if_few_agree(matches.agreement, matcher)
        return
    rows, columns = matcher.geometry(matches.size0, matches.size1).grid(0)
    expected = float(matches.confidence.sum()) / (rows * columns * matches.in_view)
    if expected < MIN_EXPECTED:
        _warn(f"the model expects a right match at only {expected:.0%} of the reference points", matcher)


def warn_if_few_agree(agreement: float, matcher: DeepMatcher) -> None:
    """Print a warning if so few matches agree with their neighbours that they are probably wrong."""
    if agreement < MIN_AGREEMENT:
        _warn(f"only {agreement:.0%} of the reference points have a match that agrees with its neighbours", matcher)


def _warn(reason: str, matcher: DeepMatcher) -> None:
    larger = "" if matcher.network.radius is None else "try a larger --radius; "
    turned = (
        "unrelated" if matcher.settings.searches else "--search finds large rotations and changes of scale; unrelated"
    )
    say(f"warning: this is probably wrong, since {reason}: {larger}{turned} pictures cannot be matched")


def set_quiet(quiet: bool) -> None:
    """Print errors only, or everything again. Commands with ``--quiet`` call this first."""
    global _quiet
    _quiet = quiet
    logging.getLogger("deepmatching").setLevel(logging.ERROR if quiet else logging.NOTSET)


def is_quiet() -> bool:
    """Whether the command was asked to print errors only."""
    return _quiet


def say(text: str) -> None:
    """Print a line to standard error, unless that is closed or the command is quiet."""
    if sys.stderr is not None and not _quiet:
        print(text, file=sys.stderr)


def complain(text: str) -> None:
    """Print an error to standard error, unless that is closed."""
    if sys.stderr is not None:
        print(f"deepmatching: {text}", file=sys.stderr)


def say_written(*paths: Path | None) -> None:
    """Print the name of each file that was written."""
    for path in paths:
        if path is not None:
            say(f"wrote {path}")


def say_incomplete(dataset: FilePairs) -> None:
    """Print how many pairs of a data set are left out because they lack files."""
    if dataset.incomplete:
        say(f"note: {dataset.incomplete} pairs of {dataset.name} lack files and are left out")
