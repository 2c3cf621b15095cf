"""``deepmatching flow`` of a video or of a folder of frames."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepmatching import __version__
from deepmatching.commands import common
from deepmatching.commands.common import is_same, say
from deepmatching.commands.evaluating import describe_method
from deepmatching.errors import DeepMatchingError
from deepmatching.flow.sequence import RECORD, FlowFolder
from deepmatching.io.video import PICTURES, BadFrame, Frames, open_frames

if TYPE_CHECKING:
    from deepmatching.flow.pipeline import EdgesLike
    from deepmatching.matcher import DeepMatcher

#: Suffixes of videos that --draw can write, and their codecs.
CODECS = {".mp4": "mp4v", ".avi": "MJPG"}
_RATE = 12.0  # frames in a second, of a folder


def flow_of_sequence(
    source: Path,
    out: Path,
    matcher: DeepMatcher,
    model: str,
    how: dict[str, Any],
    edges: EdgesLike,
    suffix: str,
    restart: bool = False,
    draw: Path | None = None,
    verbose: bool = False,
) -> None:
    """Write the flow from each frame to the next one into a folder, those that it lacks."""
    frames = open_frames(source)
    if is_same(out, source) or (draw is not None and is_same(draw, source)):
        raise DeepMatchingError(f"'{source}' holds the frames themselves: give another folder for the result.")
    if draw is not None:
        _prepare_drawing(draw, out)
    if frames.missing:
        say(f"{source} should have {frames.missing} more frames, which cannot be read")
    names = frames.names[:-1]
    chosen = matcher.for_flow()
    settings = {"version": __version__, "source": str(source.resolve()), **how, **describe_method(chosen, model)}
    folder = FlowFolder(out, suffix, settings, {n: frames.origin(i) for i, n in enumerate(names)}, restart)
    _say_what_is_outdated(folder)
    missing = [index for index, name in enumerate(names) if name not in folder]
    if verbose:
        say(f"{len(frames)} frames, {len(missing)} flows to do, radius {chosen.settings.radius} on {chosen.device}")
    start = time.perf_counter()
    try:
        _calculate(frames, folder, missing, matcher, how["preset"], edges)
    except BaseException as error:
        done = f"{sum(name in folder for name in names)} of {len(names)} flows are finished in {out}"
        if isinstance(error, DeepMatchingError):
            what = "replace or remove that frame" if isinstance(error, BadFrame) else "put that right"
            raise DeepMatchingError(f"{error} {done}: {what}, then the same command goes on.") from error
        say(f"{done}: the same command goes on" if isinstance(error, KeyboardInterrupt) else done)
        raise
    elapsed = time.perf_counter() - start
    if missing:
        say(f"wrote {len(missing)} flows to {out}, {elapsed / len(missing):.2f} s each")
    if before := len(names) - len(missing):
        say(f"{before} of {len(names)} flows were there already")
    if draw is not None:
        _draw(frames, folder, draw)
        say(f"wrote {draw}")


def _prepare_drawing(draw: Path, out: Path) -> None:
    """Make the folder that pictures go to, or see that a video can be written."""
    from deepmatching.io.files import check_writable, make_folder

    suffix = draw.suffix.lower()
    if suffix in CODECS:
        if is_same(draw.parent, out):
            make_folder(out)
        check_writable(draw)
        return
    if suffix in PICTURES:
        raise DeepMatchingError(f"Many flows do not fit into one picture '{draw}': name an .mp4 or a folder.")
    if suffix and not draw.is_dir():
        raise DeepMatchingError(
            f"'{draw}' names no video that can be written: use {' or '.join(CODECS)}, or a folder for pictures; one "
            "with a dot in its name must be there already."
        )
    if is_same(draw, out) or (draw / RECORD).exists():
        raise DeepMatchingError(f"'{draw}' is for the flows themselves: give another folder for their pictures.")
    make_folder(draw)


def _say_what_is_outdated(folder: FlowFolder) -> None:
    """Flows of other frames than now are computed again, or left."""
    outdated = folder.outdated
    left = [folder.file(name).name for name in outdated if name not in folder.origins]
    if changed := len(outdated) - len(left):
        say(f"{changed} of {len(folder.origins)} flows are computed again: their frames are not those on record")
    if left:
        names = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
        say(f"note: {folder.path} still has flows of frames that are gone: {names}")


def _calculate(
    frames: Frames, folder: FlowFolder, missing: list[int], matcher: DeepMatcher, preset: str, edges: EdgesLike
) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    total = len(frames) - 1
    columns = (TextColumn("flow"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        done, said = total - len(missing), time.monotonic()
        task = progress.add_task("flow", total=total, completed=done)
        for first, end in runs(missing):
            results = matcher.flow_sequence(frames.between(first, end + 1), preset, edges=edges)
            for name, result in zip(frames.names[first:end], results, strict=True):
                folder.add(name, result.flow)
                done += 1
                progress.update(task, completed=done)
                if not console.is_terminal and done < total and time.monotonic() - said > common.LINES_EVERY:
                    said = time.monotonic()
                    say(f"{done} of {total} flows")


def runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as ranges (first, end): 1 2 3 7 8 are (1, 4) and (7, 9)."""
    start = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[start], numbers[place - 1] + 1
            start = place


def _draw(frames: Frames, folder: FlowFolder, target: Path) -> None:
    """Pictures of all flows, in colours of one scale, as files in a folder or as a video."""
    from deepmatching.drawing.colors import range_of
    from deepmatching.drawing.flow import draw_frame, flow_range
    from deepmatching.drawing.pictures import write_image
    from deepmatching.io.flow import read_flow

    names = frames.names[:-1]
    ranges = np.array([flow_range(read_flow(folder.file(name))) for name in names])
    max_norm = range_of(np.stack([ranges, np.zeros_like(ranges)], axis=1))
    pictures = (
        draw_frame(image, read_flow(folder.file(name)), max_norm)
        for name, image in zip(names, frames.between(0, len(names)), strict=True)
    )
    if target.suffix.lower() in CODECS:
        _write_video(target, pictures, frames.rate or _RATE)
    else:
        for name, picture in zip(names, pictures, strict=True):
            write_image(target / f"{name}.png", picture)


def _write_video(path: Path, pictures: Iterator[np.ndarray], rate: float) -> None:
    import cv2

    from deepmatching.io.files import atomic_write

    with atomic_write(path) as temporary:
        writer: cv2.VideoWriter | None = None
        try:
            for picture in pictures:
                if writer is None:
                    code = cv2.VideoWriter.fourcc(*CODECS[path.suffix.lower()])
                    writer = cv2.VideoWriter(str(temporary), code, rate, (picture.shape[1], picture.shape[0]))
                    if not writer.isOpened():
                        raise DeepMatchingError(
                            f"OpenCV cannot write a video '{path}' here: give --draw a folder for pictures instead."
                        )
                writer.write(np.ascontiguousarray(picture[:, :, ::-1]))
        finally:
            if writer is not None:
                writer.release()
