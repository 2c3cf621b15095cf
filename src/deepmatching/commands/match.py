"""``deepmatching match``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepmatching.commands import messages, options
from deepmatching.commands.messages import say
from deepmatching.commands.options import argument, option
from deepmatching.commands.output import OutputError
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import FLOW_RADIUS, RADIUS

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from deepmatching.geometry.two_view import TwoViewGeometry
    from deepmatching.matcher import DeepMatcher
    from deepmatching.matches import Matches


@dataclass(frozen=True)
class Drawing:
    """What the picture of the matches shows; see :func:`options.command`."""

    draw_confidence: float | None = option(
        None, "With --draw: show matches with at least this confidence, 0 to 1.", "P", "all", min=0, max=1
    )
    draw_inliers: bool = option(False, "With --draw and --geometry: leave out the matches that do not fit.")
    draw_lines: int | None = option(None, "With --draw: number of lines, at most.", "N", "40", min=0, max=10_000)
    draw_range: float | None = option(
        None, "With --draw: the displacement in pixels that gets full colour.", "PIXELS", "nearly the largest"
    )

    def check(self, has_picture: bool, has_geometry: bool) -> None:
        """Raise if an option has no effect or no meaning."""
        from deepmatching.errors import check_number

        if not has_picture:
            options.refuse(vars(self), "is for --draw: leave it out.")
        if not has_geometry:
            options.refuse({"draw_inliers": self.draw_inliers}, "is for --geometry: leave it out.")
        if self.draw_range is not None:
            check_number("--draw-range", self.draw_range, above=0)

    def draw(self, matches: Matches, image0: Tensor, image1: Tensor, path: Path, inliers: np.ndarray | None) -> None:
        """Draw the matches of two images."""
        if inliers is not None and self.draw_inliers:
            matches, inliers = matches[inliers], inliers[inliers]
        if self.draw_confidence is not None:
            sure = matches.filter(self.draw_confidence)
            fits = None if inliers is None else inliers[(matches.certainty >= self.draw_confidence).cpu().numpy()]
            matches, inliers = sure, fits
        lines = {} if self.draw_lines is None else {"lines": self.draw_lines}
        matches.draw(image0, image1, path, inliers, full_color=self.draw_range, **lines)


@options.command(*options.MATCHING, "auto", shown={"radius": f"{RADIUS}; {FLOW_RADIUS} with --points"})
def match(
    image0: Path = argument(..., "A", "First image; matches start here. Or -, to read pairs from standard input."),
    image1: Path | None = argument(None, "B", "Second image."),
    *,
    output: Path | None = option(
        None,
        "Write the matches to this .txt, .csv, .json, .npz or .h5 file, the --geometry to .json, or the --points to "
        ".txt, .csv or .json.",
        "FILE",
        flags="-o --output",
    ),
    model: str = options.NETWORK,
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
    min_confidence: float | None = options.LEAST_CONFIDENCE,
    with_confidence: bool = option(False, "Add the confidence to .txt and standard output, as a seventh column."),
    both: bool = option(False, "Match back from B, too: adds each match's cycle error to .csv, .json, .npz and .h5."),
    max_cycle_error: float | None = option(
        None, "Match back, too, and keep matches whose way forward and back ends at most this far off.", "PIXELS", min=0
    ),
    geometry: Literal["homography", "fundamental", "essential"] | None = option(
        None,
        "Find the homography of a plane, or the fundamental or essential matrix of a scene, that most matches fit.",
    ),
    threshold: float | None = option(
        None, "With --geometry: how many pixels off a match that fits may be.", "PIXELS", "3 for a homography, else 1"
    ),
    camera0: str | None = option(
        None,
        "With --geometry essential: the first camera's focal lengths and centre in pixels, or its matrix in a .txt, "
        ".json or .npy file.",
        "FX,FY,CX,CY|FILE",
    ),
    camera1: str | None = option(None, "The same for the second camera.", "FX,FY,CX,CY|FILE", "the first"),
    points: Path | None = option(
        None, "Match the points x, y of the first image in this .txt, .csv or .npy file instead of its grid.", "FILE"
    ),
    mask0: str | None = options.MASK0,
    mask1: str | None = options.MASK1,
    draw: Path | None = option(None, "Also draw the matches.", "PICTURE"),
    drawing: Drawing,
) -> None:
    """Match two images.

    Without -o, the matches go to standard output in the original program's format, one per line: x0 y0 x1 y1 score
    index, in pixels, measured at pixel corners; --with-confidence adds a column. All other formats are measured at
    pixel centres. A .csv file has the columns x0, y0, x1, y1, score and, if they are known, confidence and cycle_error.
    The .json, .npz and .h5 files hold keypoints0 and keypoints1, scores and, if they are known, the confidence and the
    cycle_error. After a search, they also hold transformations, 3x3 matrices from the first image to the second, and
    which of them each match came from.

    With --geometry, the matrix goes to -o FILE.json, beside the matches that fit it, or else to standard output,
    measured at pixel centres. In the picture, matches that do not fit it are grey.

    With --points, each line says where a point is: x0 y0 x1 y1 confidence visible, the last of them 1 or 0. These
    points, given and found, are measured at pixel centres.

    deepmatching match - reads pairs from standard input until its end: two names on a line, or a JSON object with
    image0, image1 and, if the matches are to go to a file, output. Each gets a line of JSON with the matches, the
    number of those in the file, or an error.
    """
    from deepmatching.drawing import check_picture_path
    from deepmatching.io.files import write_file
    from deepmatching.io.matches import check_matches_suffix

    drawing.check(draw is not None, geometry is not None)
    find = _geometry_finder(geometry, threshold, camera0, camera1)
    is_both = both or max_cycle_error is not None
    limits = {"min_confidence": min_confidence, "max_cycle_error": max_cycle_error}
    if str(image0) == "-":
        if image1 is not None:
            raise DeepMatchingError("Pairs come from standard input: leave the second image out.")
        alone: dict[str, object] = {"-o": output, "points": points, "draw": draw, "with-confidence": with_confidence}
        alone |= {"mask0": mask0, "mask1": mask1}
        options.refuse(alone, "is for one pair: leave it out when pairs come from standard input.")
        return _answer(options.build_matcher(model, settings, threads), is_both, limits, find)
    if image1 is None:
        raise DeepMatchingError(
            "Give a second image, B; or - alone to read pairs from standard input. See 'deepmatching match --help'."
        )
    if points is not None:
        grid = {**limits, "with-confidence": with_confidence, "both": both, "geometry": geometry, **vars(drawing)}
        options.refuse(grid, "is for matches of a grid: leave it or --points out.")
        build = partial(options.build_matcher, model, settings, threads)
        return _match_points((image0, image1), (mask0, mask1), points, output, draw, build)
    has_json = geometry is not None and output is not None and output.suffix.lower() == ".json"
    check_suffix = options.check_json_suffix if has_json else check_matches_suffix
    files = [Path(text) for text in (mask0, mask1, camera0, camera1) if text is not None]
    options.check_outputs([(output, check_suffix), (draw, check_picture_path)], (image0, image1, *files))
    matcher = options.build_matcher(model, settings, threads)
    start = time.perf_counter()
    first, second = matcher.load(image0, "image0"), matcher.load(image1, "image1")
    pair = matcher.load_pair((first, second, *options.masks_of((mask0, mask1), (first, second))))
    messages.say_work(matcher, first, second)
    with messages.computing("matching"):
        found = matcher.match(*pair, both=is_both)
    matches = found.filter(**limits)
    elapsed = time.perf_counter() - start
    views = None if find is None else find(matches)
    if draw is not None:
        drawing.draw(matches, first, second, draw, None if views is None else views.inliers)
    if output is None or (views is not None and not has_json):
        _print(matches.as_text(with_confidence) if views is None else json.dumps(views.to_json(), indent=1) + "\n")
    if output is not None and views is not None and has_json:
        write_file(output, json.dumps({**views.to_json(), **matches[views.inliers].as_json()}) + "\n")
    elif output is not None:
        matches.save(output, with_confidence)
    say(messages.match_summary(matches, elapsed, matcher))
    messages.say_if_searched(matcher, matches.transformation is not None)
    if matches.transformation is not None:
        say(messages.search_summary(matches))
    if views is not None:
        say(repr(views).strip("<>"))
    messages.warn_if_wrong(found, matcher)
    messages.say_written(output, draw)


def _geometry_finder(
    geometry: str | None, threshold: float | None, camera0: str | None, camera1: str | None
) -> Callable[[Matches], TwoViewGeometry] | None:
    """Return what finds the geometry in matches, None for none."""
    from deepmatching.errors import check_number
    from deepmatching.geometry.two_view import check_camera
    from deepmatching.io.cameras import parse_camera

    if geometry is None:
        options.refuse({"threshold": threshold}, "is for --geometry: leave it out.")
    if geometry != "essential":
        options.refuse({"camera0": camera0, "camera1": camera1}, "is for --geometry essential: leave it out.")
    elif camera0 is None:
        raise DeepMatchingError("--geometry essential needs the cameras: give --camera0 FX,FY,CX,CY or a file.")
    texts = [text for text in (camera0, camera1 or camera0) if text is not None]
    cameras = [check_camera(f"--camera{number}", parse_camera(text)) for number, text in enumerate(texts)]
    if threshold is not None:
        check_number("--threshold", threshold, above=0)
    within = {} if threshold is None else {"threshold": threshold}
    return None if geometry is None else lambda matches: getattr(matches, geometry)(*cameras, **within)


def _answer(
    matcher: DeepMatcher,
    is_both: bool,
    limits: dict[str, float | None],
    find: Callable[[Matches], TwoViewGeometry] | None,
) -> None:
    """Match the pairs that standard input names, and write a line for each."""
    from deepmatching.commands.answers import answers
    from deepmatching.io.matches import check_matches_suffix
    from deepmatching.search import doubt

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        paths, output = [Path(request[name]) for name in ("image0", "image1")], request.get("output")
        if output is not None:
            options.check_outputs([(Path(output), check_matches_suffix)], paths)
        images = [matcher.load(path, f"image{i}") for i, path in enumerate(paths)]
        masks = options.masks_of((request.get("mask0"), request.get("mask1")), images)
        with messages.computing("matching"):
            found = matcher.match(*matcher.load_pair((*images, *masks)), both=is_both)
        matches = found.filter(**limits)
        reason = doubt(found)
        said: dict[str, Any] = {"warning": f"This is probably wrong, since {reason}."} if reason else {}
        if find is not None:
            said["geometry"] = find(matches).to_json()
        if output is None:
            return {**said, **matches.as_json()}
        matches.save(output)
        return {**said, "matches": len(matches)}

    if sys.stdin is None:
        raise DeepMatchingError("Standard input is closed: give two images.")
    for line in answers(sys.stdin.buffer, answer):
        if not _print(line):
            return


def _match_points(
    images: tuple[Path, Path],
    masks: tuple[str | None, str | None],
    points: Path,
    output: Path | None,
    draw: Path | None,
    build: Callable[[], DeepMatcher],
) -> None:
    """Match the points of a file."""
    from deepmatching.drawing import check_picture_path
    from deepmatching.flow.points import points_through
    from deepmatching.io.images import size_of
    from deepmatching.io.points import check_points, check_table_suffix, read_points

    inputs = (*images, points, *(Path(mask) for mask in masks if mask is not None))
    options.check_outputs([(output, check_table_suffix), (draw, check_picture_path)], inputs)
    places, matcher, start = read_points(points), build(), time.perf_counter()
    first, second = matcher.load(images[0], "image0"), matcher.load(images[1], "image1")
    usable0, usable1 = options.masks_of(masks, (first, second))
    check_points(places, size_of(first))
    messages.say_work(matcher.for_flow(), first, second)
    with messages.computing("matching"):
        flow = matcher.flow(first, second, mask0=usable0, mask1=usable1)
        found = points_through(flow, places, size_of(second))
    elapsed = time.perf_counter() - start
    if draw is not None:
        found.draw(first, second, draw)
    if output is None:
        _print(found.as_text())
    else:
        found.save(output)
    say(f"{repr(found).strip('<>')}; {elapsed:.2f} s on {matcher.device}")
    messages.say_of_flow(flow, matcher)
    messages.say_written(output, draw)


def _print(text: str) -> bool:
    """Write to standard output; return False if the reader has stopped early, such as ``head``, which is no error."""
    if sys.stdout is None:
        raise DeepMatchingError("Standard output is closed: use -o FILE.")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OutputError as error:
        if not isinstance(error.__cause__, BrokenPipeError):
            raise DeepMatchingError(f"Cannot write to standard output ({error}): use -o FILE.") from error
        return False
    return True
