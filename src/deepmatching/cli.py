"""The command ``deepmatching``."""

from __future__ import annotations

import os
import re
import sys
import time
from enum import Enum
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepmatching import __version__
from deepmatching.errors import DeepMatchingError

if TYPE_CHECKING:
    from torch import Tensor

    from deepmatching.matcher import DeepMatcher
    from deepmatching.matches import Matches

app = typer.Typer(
    help="Deep Matching that learns: quasi-dense correspondences between two images.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class ReciprocalChoice(str, Enum):
    """How matches are verified."""

    bins = "bins"
    exact = "exact"
    none = "none"


Image0 = Annotated[
    Path, typer.Argument(metavar="A", help="The first image (the matches start here).", show_default=False)
]
Image1 = Annotated[Path, typer.Argument(metavar="B", help="The second image.", show_default=False)]
Model = Annotated[str, typer.Option(help="hog, or the path of a .safetensors model.")]
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


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"deepmatching {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Deep Matching that learns: quasi-dense correspondences between two images."""


@app.command()
def match(
    image0: Image0,
    image1: Image1,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write .txt, .npz or .h5 instead of text to standard output.",
            show_default=False,
        ),
    ] = None,
    model: Model = "hog",
    radius: Radius = "80",
    levels: Levels = None,
    downscale: Downscale = None,
    reciprocal: ReciprocalOption = ReciprocalChoice.bins,
    device: Device = "auto",
    memory: Memory = None,
    half: Annotated[
        bool, typer.Option("--half", help="Correlate and store scores in half precision (CUDA only).")
    ] = False,
    draw: Annotated[
        Path | None, typer.Option(metavar="PICTURE", help="Also draw the matches.", show_default=False)
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say what is done.")] = False,
) -> None:
    """Match two images.

    Without -o, one match a line goes to standard output as the original program writes it:
    x0 y0 x1 y1 score index, measured at pixel corners. The .npz and .h5 files hold keypoints0, keypoints1
    (measured at pixel centres) and scores.
    """
    from deepmatching.images import load_image

    _check_outputs(output, draw)
    matcher = _matcher(model, radius, levels, downscale, reciprocal, device, memory, half)
    start = time.perf_counter()
    first, second = load_image(image0, "image0"), load_image(image1, "image1")
    if verbose:
        _describe(matcher, first, second)
    matches = matcher.match(first, second)
    elapsed = time.perf_counter() - start
    if draw is not None:
        matches.draw(first, second, draw)
    if output is not None:
        matches.save(output)
    else:
        _print_matches(matches.as_text())
    _say(_summary(matches, elapsed, matcher))
    for path in (output, draw):
        if path is not None:
            _say(f"wrote {path}")


@app.command()
def scores(
    image0: Image0,
    image1: Image1,
    at: Annotated[str, typer.Option(metavar="X,Y", help="A point of the first image, in pixels.", show_default=False)],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="PICTURE", help="The picture to write.", show_default=False),
    ],
    model: Model = "hog",
    radius: Radius = "80",
    levels: Levels = None,
    downscale: Downscale = None,
    device: Device = "auto",
) -> None:
    """Draw the score maps S_0 ... S_L and Q_L ... Q_0 of one point."""
    try:
        x, y = (float(value) for value in at.split(","))
    except ValueError:
        raise DeepMatchingError(f"--at needs two numbers such as 320,240, not '{at}'.") from None
    _check_outputs(None, output)
    matcher = _matcher(model, radius, levels, downscale, ReciprocalChoice.none, device)
    matcher.draw_scores(image0, image1, (x, y), output)
    _say(f"wrote {output}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; created if missing.")] = Path("demo-output"),
    device: Device = "auto",
) -> None:
    """Match the pair of pictures that comes with the package, and draw the result."""
    from deepmatching.drawing import draw_displacement, write_image
    from deepmatching.files import make_folder

    make_folder(out)
    pictures = files("deepmatching") / "data" / "demo"
    with as_file(pictures / "bunny_0.jpg") as image0, as_file(pictures / "bunny_1.jpg") as image1:
        matcher = _matcher("hog", "80", None, None, ReciprocalChoice.bins, device)
        start = time.perf_counter()
        matches = matcher.match(image0, image1)
        _say(_summary(matches, time.perf_counter() - start, matcher))
        matches.save(out / "matches.txt")
        matches.draw(image0, image1, out / "matches.png")
        assert matches.size0 is not None
        keypoints0, keypoints1, _ = matches.numpy()
        write_image(out / "displacement.png", draw_displacement(keypoints0, keypoints1, *matches.size0))
        moving = matches.best(len(matches) // 2)  # a point that is worth looking at: it moves, and confidently so
        x, y = moving.keypoints0[moving.displacements.norm(dim=1).argmax()].tolist()
        matcher.draw_scores(image0, image1, (x, y), out / "scores.png")
    for name in ("matches.txt", "matches.png", "displacement.png", "scores.png"):
        _say(f"wrote {out / name}")


@app.command()
def bench(
    size: Annotated[str, typer.Option(metavar="WIDTHxHEIGHT", help="Size of the pictures.")] = "1024x436",
    model: Model = "hog",
    radius: Radius = "80",
    device: Device = "auto",
    batch: Annotated[int, typer.Option(min=1, help="Pairs at a time.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs; the median counts.")] = 20,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the figures.", show_default=False)
    ] = None,
) -> None:
    """Time matching on this machine, from image tensors to verified matches.

    The floor is what no implementation can go below here: the larger of the bytes that must move over the bandwidth of
    a copy and the operations of correlation over the rate of a matrix product, both measured in the same run.
    """
    import json

    from rich.console import Console
    from rich.table import Table

    from deepmatching.benchmark import Case, measure
    from deepmatching.files import atomic_write, check_writable
    from deepmatching.memory import amount

    parsed = re.fullmatch(r"(\d+)x(\d+)", size)
    if not parsed:
        raise DeepMatchingError(f"--size needs a width and a height such as 1024x436, not '{size}'.")
    if json_file:
        check_writable(json_file)
    matcher = _matcher(model, radius, None, None, ReciprocalChoice.bins, device)
    width, height = int(parsed[1]), int(parsed[2])
    matcher.plan((height, width), (height, width), batch)
    case = Case(model, width, height, matcher.settings.radius, "bins", str(matcher.device), batch)
    with Console(stderr=True).status(f"timing {repeats} runs of {size}, radius {radius} …"):
        timing = measure(case, repeats)
    table = Table("", "value", show_header=False)
    for name, value in (
        ("device", f"{timing.device}, {timing.threads} threads" if timing.device == "cpu" else timing.device),
        ("first run", f"{1000 * timing.first:.1f} ms"),
        ("time (median)", f"{1000 * timing.time:.2f} ms"),
        ("time (best)", f"{1000 * timing.best:.2f} ms"),
        ("floor", f"{1000 * timing.floor:.2f} ms ({'memory' if timing.is_memory_bound else 'arithmetic'})"),
        ("time / floor", f"{timing.ratio:.1f}"),
        ("peak memory", amount(timing.peak)),
    ):
        table.add_row(name, value)
    Console().print(table)
    if json_file:
        with atomic_write(json_file) as temporary:
            temporary.write_text(json.dumps(timing.as_dict(), indent=1))


def _matcher(
    model: str,
    radius: str,
    levels: int | None,
    downscale: int | None,
    reciprocal: ReciprocalChoice,
    device: str,
    memory: str | None = None,
    half: bool = False,
) -> DeepMatcher:
    from deepmatching.matcher import DeepMatcher

    try:
        limit = "full" if radius == "full" else int(radius)
    except ValueError:
        raise DeepMatchingError(f"--radius needs a number of pixels or 'full', not '{radius}'.") from None
    return DeepMatcher.from_pretrained(
        model,
        radius=limit,
        levels=levels,
        downscale=downscale,
        reciprocal=reciprocal.value,
        device=device,
        memory=_bytes(memory) if memory else None,
        half=half,
    )


def _bytes(size: str) -> int:
    """'500MB', '2 GB' or '1.5g' in bytes."""
    parsed = re.fullmatch(r"\s*([0-9.]+)\s*([kmg])b?\s*", size, re.IGNORECASE)
    try:
        return int(float(parsed[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[parsed[2].lower()]) if parsed else int(size)
    except ValueError:
        raise DeepMatchingError(f"--memory needs a size such as 500MB or 2GB, not '{size}'.") from None


def _check_outputs(output: Path | None, picture: Path | None) -> None:
    """Complain about output paths before the work, not after it."""
    from deepmatching.drawing import check_picture_path
    from deepmatching.files import check_writable
    from deepmatching.matches import WRITERS, unknown_suffix

    if output is not None:
        if output.suffix.lower() not in WRITERS:
            raise unknown_suffix(output)
        check_writable(output)
    if picture is not None:
        check_picture_path(picture)


def _describe(matcher: DeepMatcher, image0: Tensor, image1: Tensor) -> None:
    from deepmatching.memory import amount

    sizes = (image0.shape[1], image0.shape[2]), (image1.shape[1], image1.shape[2])
    geometry, plan = matcher.network.geometry(*sizes), matcher.plan(*sizes)
    rows, columns = geometry.grid(0)
    pieces = f", in {plan.strips} strips" if plan.strips > 1 else ""
    _say(
        f"{rows * columns} reference points, {geometry.L + 1} levels, "
        f"about {amount(plan.needed)} of memory on {matcher.device}{pieces}"
    )


def _summary(matches: Matches, elapsed: float, matcher: DeepMatcher) -> str:
    assert matches.size0 is not None and matches.size1 is not None
    rows, columns = matcher.network.geometry(matches.size0, matches.size1).grid(0)
    text = f"{len(matches)} matches of {rows * columns} reference points, {elapsed:.2f} s on {matcher.device}"
    if len(matches):
        length = matches.displacements.norm(dim=1)
        text += f"; displacement {length.median():.1f} px (median), {length.max():.1f} px (largest)"
    return text


def _print_matches(text: str) -> None:
    """Write to standard output; a reader that has seen enough (head, say) is no error."""
    if sys.stdout is None:
        raise DeepMatchingError("Standard output is closed: use -o FILE.")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would try again at exit
        if not isinstance(error, BrokenPipeError):
            raise DeepMatchingError(f"Cannot write to standard output ({error.strerror}): use -o FILE.") from error


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr)


def main() -> None:
    """Run the command: what the user can put right is one sentence and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False))
    except DeepMatchingError as error:
        _say(f"deepmatching: {error}")
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        _say("deepmatching: interrupted")
        sys.exit(130)
    except Exception as error:
        # Usage errors: their class is Click's, which typer carries along under names that change with its version.
        if not hasattr(error, "format_message"):
            raise
        _say(f"deepmatching: {error.format_message()} See 'deepmatching --help'.")
        sys.exit(2)
