"""``deepmatching track``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import tee
from pathlib import Path
from typing import Any

from deepmatching.commands import messages, options
from deepmatching.commands.first_run import share_compilation
from deepmatching.commands.messages import progress_bar, say
from deepmatching.commands.options import argument, option
from deepmatching.errors import DeepMatchingError, counted
from deepmatching.settings import FLOW_RADIUS

TRAIL = 12  #: frames behind a point that are drawn


@options.command("radius", "device", "memory", "max_size", "bit_depth", "search", shown={"radius": str(FLOW_RADIUS)})
def track(
    frames: Path = argument(..., "VIDEO|FOLDER", "A video or a folder of frames."),
    *,
    points: Path = option(..., "Points x, y of the first frame: a .txt, .csv or .npy file.", "FILE"),
    output: Path | None = option(
        None, "Write where they are in every frame: .csv, .txt or .json.", "FILE", flags="-o --output"
    ),
    draw: Path | None = option(None, "Draw the tracks as a video: .mp4 or .avi.", "VIDEO"),
    model: str = options.NETWORK,
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
) -> None:
    """Follow points through a video or a folder of frames.

    Each line of the output has the number of the frame and of the point, both from 0, x and y measured at pixel
    centres, the confidence, and 1 if the point is visible, else 0. A point that was hidden is found again.
    """
    import numpy as np

    from deepmatching.drawing.points import draw_tracks
    from deepmatching.flow.tracking import COLUMNS, rows_of
    from deepmatching.io.files import check_suffix
    from deepmatching.io.points import check_table_suffix, open_table, read_points
    from deepmatching.io.video import CODECS, open_frames, write_video

    if output is None and draw is None:
        raise DeepMatchingError("Nothing would be written: name the file of the tracks with -o.")
    outputs = [(output, check_table_suffix), (draw, lambda path: check_suffix(path, CODECS, "video"))]
    options.check_outputs(outputs, (frames, points))
    places, clip = read_points(points), open_frames(frames, settings["bit_depth"])
    share_compilation()
    matcher, start = options.build_matcher(model, settings, threads), time.perf_counter()
    seen = 0

    def pictures() -> Iterator[np.ndarray]:
        """Track the points, write their rows, and yield the picture of each frame if there is a video to draw."""
        nonlocal seen
        trail: deque[np.ndarray] = deque(maxlen=TRAIL)
        shown, tracked = tee(clip.between(0, len(clip)))
        for number, (picture, found) in enumerate(zip(shown, matcher.track(tracked, places), strict=True)):
            if add is not None:
                add(rows_of(number, found))
            trail.append(np.where(found.visible[:, None], found.points, np.nan))
            seen = int(found.visible.sum())
            advance(f"{(number + 1) / (time.perf_counter() - start):.1f} frames a second")
            if draw is not None:
                yield draw_tracks(picture, np.stack([*list(trail)[:-1], found.points]), found.visible)

    table = nullcontext() if output is None else open_table(output, COLUMNS)
    with table as add, progress_bar("frames", len(clip)) as advance:
        if draw is None:
            deque(pictures(), maxlen=0)
        else:
            write_video(draw, pictures(), clip.rate)
    elapsed = time.perf_counter() - start
    rate = f"{elapsed:.2f} s, {len(clip) / elapsed:.2f} frames a second on {matcher.device}"
    say(f"{counted(len(places), 'point')} in {len(clip)} frames, {seen} of them visible in the last one; {rate}")
    messages.say_written(output, draw)
