"""``deepmatching match``."""

import json
import sys
import time
from pathlib import Path
from typing import Any, Literal

from deepmatching.commands import messages, options
from deepmatching.commands.messages import say
from deepmatching.commands.options import option
from deepmatching.commands.output import OutputError
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import RADIUS


@options.command(*options.MATCHING, "auto")
def match(
    image0: Path = options.IMAGE0,
    image1: Path = options.IMAGE1,
    *,
    output: Path | None = option(
        None,
        "Write the matches to this .txt, .npz or .h5 file, or the --geometry to .json.",
        "FILE",
        flags="-o --output",
    ),
    model: str = options.NETWORK,
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
    min_confidence: float | None = options.LEAST_CONFIDENCE,
    geometry: Literal["homography", "fundamental"] | None = option(
        None, "Find the homography of a plane or the fundamental matrix of a scene that most matches fit."
    ),
    draw: Path | None = option(None, "Also draw the matches.", "PICTURE"),
) -> None:
    """Match two images.

    Without -o, the matches go to standard output in the original program's format, one per line: x0 y0 x1 y1 score
    index, in pixels, measured at pixel corners; it has no place for a confidence. The .npz and .h5 files hold
    keypoints0 and keypoints1, measured at pixel centres, scores and, if the model judges its matches, their confidence.
    After a search, they also hold transformations, 3x3 matrices from the first image to the second, and which of them
    each match came from.

    With --geometry, the matrix goes to -o FILE.json or else to standard output, measured at pixel centres. In the
    picture, matches that do not fit it are grey.
    """
    from deepmatching.drawing import check_picture_path
    from deepmatching.io.files import write_file
    from deepmatching.io.matches import check_matches_suffix

    has_json = geometry is not None and output is not None and output.suffix.lower() == ".json"
    check_suffix = options.check_json_suffix if has_json else check_matches_suffix
    options.check_outputs([(output, check_suffix), (draw, check_picture_path)], (image0, image1))
    matcher = options.build_matcher(model, settings, threads)
    start = time.perf_counter()
    first, second = matcher.load(image0, "image0"), matcher.load(image1, "image1")
    messages.say_work(matcher, first, second)
    with messages.computing("matching"):
        found = matcher.match(first, second)
    matches = found if min_confidence is None else found.filter(min_confidence)
    elapsed = time.perf_counter() - start
    views = None if geometry is None else getattr(matches, geometry)()
    if draw is not None:
        matches.draw(first, second, draw, None if views is None else views.inliers)
    text = matches.as_text() if views is None else json.dumps(views.to_json(), indent=1) + "\n"
    if output is None or (views is not None and not has_json):
        _print(text)
    if output is not None and has_json:
        write_file(output, text)
    elif output is not None:
        matches.save(output)
    say(messages.match_summary(matches, elapsed, matcher))
    if matches.transformation is not None and not matcher.settings.searches:
        say(f"few matches were right within {RADIUS} px, so this is a search at a reduced size; --no-auto forbids it")
    if matches.transformation is not None:
        say(messages.search_summary(matches))
    if views is not None:
        say(repr(views).strip("<>"))
    messages.warn_if_wrong(found, matcher)
    messages.say_written(output, draw)


def _print(text: str) -> None:
    """Write to standard output. A reader that stops early, such as ``head``, is not an error."""
    if sys.stdout is None:
        raise DeepMatchingError("Standard output is closed: use -o FILE.")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OutputError as error:
        if not isinstance(error.__cause__, BrokenPipeError):
            raise DeepMatchingError(f"Cannot write to standard output ({error}): use -o FILE.") from error
