"""``deepmatching flow``: of two images, or of the frames of a video or folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from deepmatching import __version__
from deepmatching.commands import messages, options
from deepmatching.commands.first_run import share_compilation
from deepmatching.commands.machine import use_threads
from deepmatching.commands.messages import first_names, progress_bar, say
from deepmatching.commands.options import argument, build_matcher, describe, is_same, option, refuse
from deepmatching.errors import DeepMatchingError, counted
from deepmatching.settings import FLOW_RADIUS, MODEL, PRESET, choose_device

if TYPE_CHECKING:
    from deepmatching.drawing.flow import Style
    from deepmatching.flow.result import FlowResult
    from deepmatching.matcher import DeepMatcher

FlowFormat = Literal["flo", "png", "pfm", "npy"]


@options.command(
    *("radius", "device", "memory", "max_size", "bit_depth", "use_alpha"),
    *("search", "rotations", "scales", "auto"),
    shown={"radius": str(FLOW_RADIUS)},
)
def flow(
    image0: Path = argument(..., "A", "First image; or, with --out, a video or a folder of frames."),
    image1: Path | None = argument(None, "B", "Second image."),
    *,
    output: Path | None = option(
        None,
        "Flow file to write: .flo, .png (KITTI, 16 bits), .pfm or .npy. For a video or folder: a video, .mp4 or .avi.",
        "FILE",
        flags="-o --output",
    ),
    out: Path | None = option(None, "For a video or folder: write one flow file per frame here.", "DIR"),
    draw: Path | None = option(
        None, "Also draw the flow. For a video or folder: an .mp4 or .avi file, or a folder for pictures.", "PICTURE"
    ),
    style: Literal["above", "beside", "colours", "arrows"] | None = option(
        None,
        "In a video: frames above or beside their flow, its colours alone, or arrows on the frames.",
        shown="above",
    ),
    confidence: Path | None = option(
        None, "Also write each pixel's confidence, 0 to 1: .npy, or .png (16 bits). With --out: a folder.", "FILE"
    ),
    preset: str = option(
        PRESET,
        f"Flow settings: {PRESET}; classic, without the confidence of matches; or EpicFlow's own: original, sintel, "
        "kitti, middlebury.",
        "NAME",
    ),
    edges: str = option("network", "Edge detector, or the first image's edge map.", "network|gradient|FILE"),
    structured_forest: Path | None = options.STRUCTURED_FOREST,
    matches: Path | None = option(
        None,
        "Interpolate these matches of any matcher (.txt, .csv, .json, .npz or .h5) instead of matching the images.",
        "FILE",
    ),
    min_confidence: float | None = option(
        None, "With --matches: leave out those with less confidence, 0 to 1.", "P", "none", min=0, max=1
    ),
    mask0: str | None = options.MASK0,
    mask1: str | None = options.MASK1,
    model: str | None = option(None, options.MODEL_HELP, "NAME|PATH", MODEL),
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
    file_format: FlowFormat | None = option(None, "With --out: format of the files.", shown="flo", flags="--format"),
    restart: bool = option(False, "With --out: compute finished flows again."),
) -> None:
    """Compute dense optical flow.

    deepmatching flow A B -o FLOW.flo

    deepmatching flow VIDEO|FOLDER --out DIR

    deepmatching flow VIDEO|FOLDER -o FLOW.mp4

    A flow file holds the displacement of every pixel of the first image, in pixels. The second form writes one file
    for each frame except the last. After an interruption, run the same command again to continue. The third form draws
    the flow while it is computed, and keeps nothing else.
    """
    from deepmatching.drawing import check_picture_path
    from deepmatching.flow import preset as preset_of
    from deepmatching.flow.pipeline import count_outside, matches_to_flow
    from deepmatching.flow.result import check_confidence_suffix
    from deepmatching.io.flow import check_flow_suffix
    from deepmatching.io.images import load_image
    from deepmatching.matches import Matches

    flow_settings = preset_of(preset)
    if matches is None:
        refuse({"min_confidence": min_confidence}, "is for --matches: leave it out.")
    edge_source = options.edge_source(edges, structured_forest)
    share_compilation()
    if image1 is None:
        of_pair = {"matches": matches, "mask0": mask0, "mask1": mask1, "use_alpha": settings["use_alpha"]}
        refuse(of_pair, "is for a pair of images: give a second image, or leave it out.")
        if output is None and out is None:
            raise DeepMatchingError("Give a second image; or, for a video or folder, --out DIR or -o FLOW.mp4.")
        if output is not None:
            of_files = {"out": out, "draw": draw, "confidence": confidence, "format": file_format, "restart": restart}
            refuse(of_files, "is for flow files of a video or folder: leave it out, or -o.")
        elif draw is None:
            refuse({"style": style}, "is for a video: name it with --draw or -o.")
        if not callable(edge_source) and edges not in ("network", "gradient"):
            raise DeepMatchingError("One edge map cannot serve all frames: use --edges network or gradient.")
        matcher = build_matcher(model or MODEL, settings, threads)
        compute = partial(matcher.flow_sequence, preset=preset, edges=edge_source)
        if output is not None:
            return _video_of_flow(image0, output, matcher.for_flow(), compute, style or "above")
        assert out is not None
        recorded = {"preset": preset, "edges": str(structured_forest or edges), "model": model or MODEL}
        suffix, own = f".{file_format or 'flo'}", (draw, style or "above", confidence)
        return _flow_of_frames(image0, out, matcher.for_flow(), compute, recorded, suffix, restart, *own)

    of_frames = {"out": out, "format": file_format, "restart": restart, "style": style}
    refuse(of_frames, "is for a video or a folder: name the flow with -o, and leave it out.")
    if output is None and draw is None and confidence is None:
        raise DeepMatchingError("Nothing would be written: name the flow file with -o.")
    options.check_outputs(
        [(output, check_flow_suffix), (draw, check_picture_path), (confidence, check_confidence_suffix)],
        (image0, image1, matches, Path(edges), structured_forest, *(Path(m) for m in (mask0, mask1) if m is not None)),
    )
    if matches is None:
        matcher = build_matcher(model or MODEL, settings, threads)
        start = time.perf_counter()
        first, second = matcher.load(image0, "image0"), matcher.load(image1, "image1")
        messages.say_work(matcher.for_flow(), first, second)
        with messages.computing("computing the flow"):
            usable0, usable1 = options.masks_of((mask0, mask1), (first, second))
            result = matcher.flow(first, second, flow_settings, edges=edge_source, mask0=usable0, mask1=usable1).read()
    else:
        of_matching = {name: value for name, value in settings.items() if name not in ("device", "bit_depth", "auto")}
        of_matching |= {"model": model, "mask0": mask0, "mask1": mask1}
        refuse(of_matching, "has no effect when --matches is given: leave it out.")
        start = time.perf_counter()
        bits = settings["bit_depth"]
        first, second = load_image(image0, "image0", bits), load_image(image1, "image1", bits)
        given = Matches.load(matches)
        given = given if min_confidence is None else given.filter(min_confidence)
        messages.say_if_verbose(f"{counted(len(given), 'match')} in {matches}")
        if outside := count_outside(given, (first.shape[1], first.shape[2])):
            say(f"note: {outside} of {len(given)} matches start outside the image")
        use_threads(threads)
        device = choose_device(settings["device"])
        result = matches_to_flow(given, first.to(device), second.to(device), flow_settings, edge_source).read()
    elapsed = time.perf_counter() - start
    if output is not None:
        result.save(output)
    if confidence is not None:
        result.save_confidence(confidence)
    if draw is not None:
        result.draw(first, second, draw)
    say(messages.flow_summary(result, elapsed))
    if matches is None:
        messages.say_of_flow(result, matcher)
    messages.say_written(output, draw, confidence)


def _flow_of_frames(
    source: Path,
    out: Path,
    matcher: DeepMatcher,
    flow_sequence: Callable[..., Any],
    recorded: dict[str, Any],
    suffix: str,
    restart: bool,
    draw: Path | None,
    style: Style,
    confidence: Path | None,
) -> None:
    """Compute the flows that the folder ``out`` lacks, then draw all; results depend on the options ``recorded``."""
    from deepmatching.flow.sequence import FlowFolder, compute_flows, draw_flows
    from deepmatching.io.files import check_writable, new_folders
    from deepmatching.io.video import CODECS, BadFrame, open_frames

    frames = open_frames(source, matcher.settings.bit_depth)
    _check_folders(source, out, draw, confidence, frames.origins)
    if frames.missing:
        say(f"note: {counted(frames.missing, 'frame')} of {source} cannot be read")
    settings = {
        **{"version": __version__, "source": os.path.realpath(source), **recorded},
        **({} if confidence is None else {"confidence": os.path.realpath(confidence)}),
        **describe(recorded["model"], matcher, recorded["preset"]),
    }
    video = draw if draw is not None and draw.suffix.lower() in CODECS else None
    folders = [folder for folder in (draw, confidence) if folder is not None and folder is not video]
    with FlowFolder.store(out).reserve(), new_folders(*folders):
        if video is not None:
            check_writable(video)
        folder = FlowFolder(out, suffix, settings, frames.origins, restart)
        gone = [folder.file(name).name for name in folder.outdated if name not in folder.origins]
        total, missing = len(folder.origins), len(folder.missing)
        if changed := len(folder.outdated) - len(gone):
            say(f"{changed} of {total} flows are computed again: their frames have changed")
        if gone:
            say(f"note: {folder.path} still holds flows of frames that are gone: {first_names(gone, 3)}")
        on = f"radius {matcher.settings.radius} on {matcher.device}"
        messages.say_if_verbose(f"{len(frames)} frames, {counted(missing, 'flow')} to compute, {on}")
        start = time.perf_counter()
        try:
            with progress_bar("flows", total, total - missing) as advance:
                doubtful = compute_flows(frames, folder, flow_sequence, advance, confidence)
        except BaseException as error:
            so_far = partial(messages.unfinished, total - len(folder.missing), total, "flows", out)
            if isinstance(error, DeepMatchingError):
                repair = "replace or remove that frame" if isinstance(error, BadFrame) else "fix that"
                raise DeepMatchingError(f"{error} {so_far(repair)}.") from error
            say(so_far())
            raise
        if missing:
            say(f"wrote {counted(missing, 'flow')} to {out}, {(time.perf_counter() - start) / missing:.2f} s each")
        if doubtful:
            names = first_names(doubtful, 3)
            say(f"warning: {len(doubtful)} of these flows are probably wrong ({names}): the motion may exceed --radius")
        if missing < total:
            say(f"{total - missing} of {total} flows were finished before")
        if draw is not None:
            draw_flows(frames, folder, draw, style)
            say(f"wrote {draw}")


def _video_of_flow(
    source: Path, output: Path, matcher: DeepMatcher, flow_sequence: Callable[..., Any], style: Style
) -> None:
    """Write a video of the flow while it is computed."""
    from deepmatching.flow.sequence import drawn_flows
    from deepmatching.io.files import check_suffix
    from deepmatching.io.video import CODECS, open_frames, write_video
    from deepmatching.settings import MIN_AGREEMENT

    options.check_outputs([(output, partial(check_suffix, suffixes=CODECS, kind="video"))], (source,))
    frames = open_frames(source, matcher.settings.bit_depth)
    total, done, doubtful, start = len(frames) - 1, 0, 0, time.perf_counter()
    messages.say_if_verbose(f"{len(frames)} frames, radius {matcher.settings.radius} on {matcher.device}")
    with progress_bar("frames", total) as advance:

        def on_flow(result: FlowResult) -> None:
            nonlocal done, doubtful
            done, doubtful = done + 1, doubtful + (result.agreement < MIN_AGREEMENT)
            advance(f"{done / (time.perf_counter() - start):.2f} frames a second")

        write_video(output, drawn_flows(frames, flow_sequence, style, on_flow), frames.rate)
    say(f"wrote {output}, {counted(total, 'frame')}, {total / (time.perf_counter() - start):.2f} a second")
    if frames.missing:
        say(f"note: {counted(frames.missing, 'frame')} of {source} cannot be read")
    if doubtful:
        say(f"warning: the flow of {counted(doubtful, 'frame')} is probably wrong: the motion may exceed --radius")


def _check_folders(source: Path, out: Path, draw: Path | None, confidence: Path | None, names: Iterable[str]) -> None:
    """Raise if results would replace frames, each other, or files that no earlier run has made."""
    from deepmatching.flow.sequence import MANIFEST, confidence_file
    from deepmatching.io.files import check_replaceable
    from deepmatching.io.image_files import PICTURE_SUFFIXES
    from deepmatching.io.video import CODECS

    for path in (out, draw, confidence):
        if path is not None and is_same(path, source):
            raise DeepMatchingError(f"'{source}' holds the frames themselves: give another folder for the result.")
    if draw is not None and (suffix := draw.suffix.lower()) not in CODECS:
        if suffix in PICTURE_SUFFIXES:
            raise DeepMatchingError(f"One picture '{draw}' cannot show many flows: name an .mp4 file or a folder.")
        if suffix and not os.path.isdir(draw):
            raise DeepMatchingError(
                f"The suffix of '{draw}' is not a video format that can be written: use {' or '.join(CODECS)}, or a "
                "folder for pictures (create it first if its name has a dot)."
            )
        if is_same(draw, out) or os.path.exists(draw / MANIFEST):
            raise DeepMatchingError(f"'{draw}' is for the flows themselves: give another folder for their pictures.")
        for path in (draw / f"{name}.png" for name in names):
            check_replaceable(path)
    elif draw is not None:
        check_replaceable(draw)
    if confidence is not None:
        if is_same(confidence, out) or (draw is not None and is_same(confidence, draw)):
            raise DeepMatchingError(f"'{confidence}' is for other files: give another folder for the confidence.")
        files = [] if os.path.exists(out / MANIFEST) else [confidence_file(confidence, name) for name in names]
        if foreign := [file for file in files if file.exists()]:
            raise DeepMatchingError(
                f"The file '{foreign[0]}' was not made by an earlier run and would be replaced: give another folder."
            )
