"""Options of the commands that read a bulk run, and the steps from its matches to a database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from deepmatching.commands.messages import progress_bar, say, working
from deepmatching.commands.options import argument, option, parse_list
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import MIN_CONFIDENCE

if TYPE_CHECKING:
    from deepmatching.bulk_matching import RunFolder
    from deepmatching.reconstruction.colmap import Cameras, DatabaseSummary
    from deepmatching.reconstruction.keypoints import SharedKeypoints

CameraMode = Literal["auto", "image"]

MIN_MATCHES = 15  #: Default of ``--min-matches``, which is COLMAP's.

RUN = argument(..., "RUN", "Folder that deepmatching bulk has written.")
IMAGES = option(None, "The folder of the images.", "FOLDER", "where they were matched")
CAMERAS = option(
    None, "auto: images with equal sizes and EXIF data share a camera. image: each image has its own.", shown="auto"
)
CAMERA_MODEL = option(None, "COLMAP's camera model.", "NAME", "SIMPLE_RADIAL")
CAMERA_PARAMS = option(None, "Known parameters of all cameras, such as 1200,640,480,0.", "NUMBERS", "from EXIF data")
LEAST_MATCHES = option(None, "Drop pairs with fewer matches that fit one geometry.", "N", f"{MIN_MATCHES}", min=8)
LEAST_CONFIDENCE = option(
    None,
    "Leave out matches with less confidence, 0 to 1.",
    "P",
    f"{MIN_CONFIDENCE}; 0 for models without",
    min=0,
    max=1,
)
MAX_KEYPOINTS = option(None, "Keep the best N keypoints of each image.", "N", "all")
CELL = option(None, "Merge points of an image that are this close.", "PIXELS", "half a descriptor cell")
REFINE = option(
    True, "Refine matches by their neighbours, and add matches of the second image's keypoints between them."
)


def camera_setup(mode: CameraMode | None, model: str | None, params: str | None) -> Cameras:
    """Return how cameras are set up, from the words of the command."""
    from deepmatching.reconstruction.colmap import Cameras

    numbers = None if params is None else parse_list(params)
    if isinstance(numbers, str):
        raise DeepMatchingError(f"--camera-params needs numbers such as 1200,640,480,0, not '{params}'.")
    return Cameras(mode or "auto", model or "SIMPLE_RADIAL", numbers)


def share_keypoints(
    run: RunFolder, cell: float | None, max_keypoints: int | None, is_refined: bool, min_confidence: float | None
) -> SharedKeypoints:
    """Return the shared keypoints of a run; say so if some of its pairs are missing."""
    from deepmatching.reconstruction.keypoints import SharedKeypoints

    if missing := sum(run.plan.count(number) for number in run.missing):
        say(f"note: {missing} of {len(run)} pairs are not matched yet")
    if min_confidence is None and next((pair.matches.confidence is not None for pair in run if not pair.failure), 0):
        min_confidence = MIN_CONFIDENCE
    with working("merging keypoints"):
        return SharedKeypoints(run, cell, max_keypoints, is_refined, min_confidence)


def images_of(run: RunFolder, images: Path | None) -> Path:
    """Return the folder of a run's images."""
    if not os.path.isdir(folder := images or Path(run.plan.images)):
        raise DeepMatchingError(f"There is no folder of images '{folder}': give it with --images.")
    return folder


def export_database(
    keypoints: SharedKeypoints, path: Path, images: Path | None, cameras: Cameras, min_matches: int | None
) -> DatabaseSummary:
    """Write the database, and say how many pairs survive."""
    from deepmatching.reconstruction.colmap import write_database

    folder = images_of(keypoints.run, images)
    with working("verifying pairs"):
        summary = write_database(keypoints, path, folder, cameras, min_matches or MIN_MATCHES)
    say(
        f"{len(summary.verified)} of {len(summary.matches)} pairs survive geometric verification, with "
        f"{sum(summary.verified.values())} of {sum(summary.matches.values())} matches and {summary.keypoints} keypoints"
    )
    return summary


def draw_graph(
    run: RunFolder, path: Path, min_matches: int | None, verified: dict[tuple[str, str], int] | None = None
) -> None:
    """Draw the match graph; without verified pairs, verify them with OpenCV first."""
    from deepmatching.drawing.pictures import write_image
    from deepmatching.drawing.reconstruction import draw_match_graph
    from deepmatching.reconstruction.colmap import verify_pairs

    if verified is None:
        min_matches = min_matches or MIN_MATCHES
        with progress_bar("verified pairs", len(run)) as advance:
            verified = verify_pairs(run, min_matches, advance)
        say(f"{len(verified)} of {len(run)} pairs have at least {min_matches} matches that fit one geometry")
    write_image(path, draw_match_graph(run.plan.names, verified))
