"""Options of the commands that read a bulk run, and the steps from its matches to a database."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from deepmatching.commands.messages import progress_bar, say, working
from deepmatching.commands.options import argument, option, parse_list
from deepmatching.errors import DeepMatchingError
from deepmatching.io.addresses import scheme_of, shown
from deepmatching.settings import MIN_CONFIDENCE

if TYPE_CHECKING:
    from deepmatching.bulk_matching import RunFolder
    from deepmatching.reconstruction.colmap import Cameras
    from deepmatching.reconstruction.keypoints import SharedKeypoints

MIN_MATCHES = 15  #: Default of ``--min-matches``, which is COLMAP's.
_CONFIDENCE_IN_WORDS = f"{MIN_CONFIDENCE}; 0 for models without"  #: Default of ``--min-confidence``.

RUN = argument(..., "RUN", "Folder that deepmatching bulk has written.")
LEAST_MATCHES = option(None, "Drop pairs with fewer matches that fit one geometry.", "N", f"{MIN_MATCHES}", min=8)


@dataclass(frozen=True)
class Choices:
    """The options that say how matches become keypoints and a database; see :func:`options.command`."""

    images: Path | None = option(None, "The folder of the images.", "FOLDER", "where they were matched")
    cameras: Literal["auto", "image"] | None = option(
        None, "auto: images with equal sizes and EXIF data share a camera. image: each image has its own.", shown="auto"
    )
    camera_model: str | None = option(None, "COLMAP's camera model.", "NAME", "SIMPLE_RADIAL")
    camera_params: str | None = option(
        None, "Known parameters of all cameras, such as 1200,640,480,0.", "NUMBERS", "from EXIF data"
    )
    min_matches: int | None = LEAST_MATCHES
    max_keypoints: int | None = option(None, "Keep the best N keypoints of each image.", "N", "all")
    min_confidence: float | None = option(
        None, "Leave out matches with less confidence, 0 to 1.", "P", _CONFIDENCE_IN_WORDS, min=0, max=1
    )
    cell: float | None = option(
        None, "Merge an image's points that are this close.", "PIXELS", "half a descriptor cell"
    )
    refine: bool = option(
        True, "Refine matches by their neighbours, and add matches of the second image's keypoints between them."
    )

    def setup(self) -> Cameras:
        """Return how cameras are set up."""
        from deepmatching.reconstruction.colmap import Cameras

        numbers = None if self.camera_params is None else parse_list(self.camera_params)
        if isinstance(numbers, str):
            raise DeepMatchingError(f"--camera-params needs numbers such as 1200,640,480,0, not '{numbers}'.")
        return Cameras(self.cameras or "auto", self.camera_model or "SIMPLE_RADIAL", numbers)

    def share_keypoints(self, run: RunFolder) -> SharedKeypoints:
        """Return the shared keypoints of a run; say so if some of its pairs are missing."""
        from deepmatching.reconstruction.keypoints import SharedKeypoints

        if missing := sum(run.plan.count(number) for number in run.missing):
            say(f"note: {missing} of {len(run)} pairs are not matched yet")
        least = self.min_confidence
        if least is None and next((pair.matches.confidence is not None for pair in run if not pair.failure), False):
            least = MIN_CONFIDENCE
        with working("merging keypoints"):
            return SharedKeypoints(run, self.cell, self.max_keypoints, self.refine, least)

    def images_of(self, run: RunFolder) -> Path:
        """Return the folder of a run's images."""
        if scheme_of(folder := self.images or Path(run.plan.images)):
            problem = f"COLMAP reads images from a disk, not from '{shown(folder)}'"
            raise DeepMatchingError(f"{problem}: copy them, and give their folder with --images.")
        if not os.path.isdir(folder):
            raise DeepMatchingError(f"There is no folder of images '{folder}': give it with --images.")
        return folder

    def export_database(self, keypoints: SharedKeypoints, path: Path) -> dict[tuple[str, str], int]:
        """Write the database, and say how many pairs survive; return their numbers of verified matches."""
        from deepmatching.reconstruction.colmap import write_database

        folder, least = self.images_of(keypoints.run), self.min_matches or MIN_MATCHES
        with working("verifying pairs"):
            summary = write_database(keypoints, path, folder, self.setup(), least)
        verified, matches = summary.verified, summary.matches
        say(
            f"{len(verified)} of {len(matches)} pairs survive geometric verification, with {sum(verified.values())} of "
            f"{sum(matches.values())} matches and {summary.keypoints} keypoints"
        )
        return verified


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
