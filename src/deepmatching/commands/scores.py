"""``deepmatching scores``."""

from pathlib import Path
from typing import Any

from deepmatching.commands import options
from deepmatching.commands.messages import say, say_work
from deepmatching.commands.options import option
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import RADIUS


@options.command(
    *("radius", "levels", "downscale", "device", "max_size", "bit_depth"),
    radius=RADIUS,
    shown={"levels": "the original's rule for the image's size"},
)
def scores(
    image0: Path = options.IMAGE0,
    image1: Path = options.IMAGE1,
    *,
    at: list[str] = option(..., "Point in the first image, in pixels; may be repeated.", "X,Y"),
    output: Path = option(..., "Picture to write.", "PICTURE", flags="-o --output"),
    model: str = options.NETWORK,
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
) -> None:
    """Draw both images and the score maps of one or more points: S_0 to S_L, and Q_L back to Q_0.

    With several points, this is Figure 1 of the paper.
    """
    from deepmatching.drawing import check_picture_path

    points = [parse_point(text) for text in at]
    options.check_outputs([(output, check_picture_path)], (image0, image1))
    matcher = options.build_matcher(model, settings, threads)
    first, second = matcher.load(image0, "image0"), matcher.load(image1, "image1")
    say_work(matcher, first, second)
    matcher.draw_scores(first, second, points, output)
    say(f"wrote {output}")


def parse_point(text: str) -> tuple[float, float]:
    """Return the x and the y of ``320,240``."""
    try:
        x, y = (float(value) for value in text.split(","))
    except ValueError:
        raise DeepMatchingError(f"--at needs two numbers such as 320,240, not '{text}'.") from None
    return x, y
