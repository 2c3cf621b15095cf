"""``deepmatching align``."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, Literal

from deepmatching import __version__
from deepmatching.commands import options
from deepmatching.commands.first_run import share_compilation
from deepmatching.commands.messages import first_names, progress_bar, say, unfinished
from deepmatching.commands.options import argument, describe, is_same, option
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import FLOW_RADIUS, MIN_AGREEMENT, PRESET, RADIUS


@options.command(
    *("radius", "device", "memory", "max_size", "bit_depth", "search", "rotations", "scales"),
    shown={"radius": f"{FLOW_RADIUS}; {RADIUS} with --geometry"},
)
def align(
    images: list[Path] = argument(..., "IMAGES", "Pictures; the others are aligned to the first."),
    *,
    out: Path = option(..., "Folder for the aligned pictures; created if it is missing.", "DIR"),
    geometry: Literal["homography"] | None = option(
        None, "Align by the homography that most matches fit.", "homography", "flow"
    ),
    stack: Literal["median", "fused"] | None = option(
        None, "Also make one picture of all: the median of each pixel, or a fusion of different exposures."
    ),
    model: str = options.NETWORK,
    settings: dict[str, Any],
    threads: int | None = options.THREADS,
    restart: bool = option(False, "Align finished pictures again."),
) -> None:
    """Align pictures to the first of them.

    deepmatching align BURST*.jpg --out ALIGNED

    Each becomes a .png file of its own name and of the size of the first, transparent where that shows something that
    the picture does not. With --stack, the folder also gets median.png or fused.png. After an interruption, run the
    same command again to continue.
    """
    from deepmatching.alignment import AlignedFolder, align_missing
    from deepmatching.alignment import align as align_all
    from deepmatching.alignment import stack as stacked
    from deepmatching.drawing import write_image
    from deepmatching.io.files import check_replaceable
    from deepmatching.io.video import BadFrame, named_stamp

    names = [path.stem for path in images]
    results = [*(out / f"{name}.png" for name in names), *([] if stack is None else [out / f"{stack}.png"])]
    _check(images, results)
    if stack is not None:
        check_replaceable(results[-1])
    share_compilation()
    matcher = options.build_matcher(model, settings, threads)
    own, preset = (matcher.for_flow(), PRESET) if geometry is None else (matcher, None)
    recorded = {
        **{"version": __version__, "first": os.path.realpath(images[0]), "by": geometry or "flow"},
        **describe(model, own, preset),
    }
    stamps = [named_stamp(path) for path in images]
    origins = {name: [stamps[0], each] for name, each in zip(names, stamps, strict=True)}
    with AlignedFolder.store(out).reserve():
        folder = AlignedFolder(out, ".png", recorded, origins, restart)
        total, missing, doubtful = len(images), len(folder.missing), list[str]()
        try:
            with progress_bar("pictures", total, total - missing) as advance:
                compute = partial(align_all, matcher=matcher, by=geometry or "flow")
                for name, agreement in align_missing(images, folder, compute):
                    doubtful += [name] if agreement < MIN_AGREEMENT else []
                    advance()
        except BaseException as error:
            so_far = partial(unfinished, total - len(folder.missing), total, "pictures", out)
            if isinstance(error, DeepMatchingError):
                repair = "repair or leave out that picture" if isinstance(error, BadFrame) else "fix that"
                raise DeepMatchingError(f"{error} {so_far(repair)}.") from error
            say(so_far())
            raise
        say(f"aligned {missing} of {total} pictures in {out}" + (", the others before" if missing < total else ""))
        if doubtful:
            say(f"warning: {len(doubtful)} of these are probably wrong ({first_names(doubtful, 3)}): see --radius")
        if stack is not None:
            write_image(results[-1], stacked(list(folder.pictures()), stack))
            say(f"wrote {results[-1]}")


def _check(images: list[Path], results: list[Path]) -> None:
    """Raise if there are fewer than two pictures, or if a result would replace one of them or another result."""
    if len(images) < 2:
        raise DeepMatchingError("There is one picture, and nothing to align to it: give at least two.")
    if gone := [path for path in images if not os.path.isfile(path)]:
        raise DeepMatchingError(f"There is no image '{gone[0]}'; check the path.")
    for number, result in enumerate(results):
        if any(is_same(result, path) for path in images):
            raise DeepMatchingError(f"'{result}' is an input and would be overwritten: give another folder.")
        if result in results[:number]:
            raise DeepMatchingError(f"Two results cannot go to the same file '{result}': rename one of the pictures.")
