"""Aligning pictures, such as a burst or a time lapse, to the first of them, and making one picture of all."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import cv2
import numpy as np

from deepmatching.drawing.pictures import to_uint8_rgb, write_image
from deepmatching.errors import DeepMatchingError, check_choice, check_iterable, check_type
from deepmatching.flow.sequence import FlowFolder
from deepmatching.io.image_files import decode_image_file
from deepmatching.io.images import ImageLike
from deepmatching.io.store import Store
from deepmatching.io.video import BadFrame
from deepmatching.matcher import DeepMatcher, default_matcher

Way = Literal["flow", "homography"]
Stack = Literal["median", "fused"]
_STRIP = 64  #: rows whose median is computed together


class Aligned(NamedTuple):
    """A picture as the first one would show it."""

    picture: np.ndarray  #: uint8 RGBA (H, W, 4), as large as the first; transparent where nothing is known
    agreement: float  #: of its matches with their neighbours; low if it is probably wrong, 1 for the first picture


def align(images: Iterable[ImageLike], matcher: DeepMatcher | None = None, by: Way = "flow") -> Iterator[Aligned]:
    """Yield each picture as the first one would show it, by the flow from the first or by a homography.

    >>> pictures = [aligned.picture for aligned in dm.align(["1.jpg", "2.jpg", "3.jpg"])]

    The pictures are read one at a time, and may differ in size. Without a matcher, the default one is used.
    """
    check_choice("by", by, get_args(Way))
    check_iterable("images", images)
    matcher, first = default_matcher() if matcher is None else matcher, None
    check_type("matcher", matcher, DeepMatcher)
    for number, image in enumerate(images):
        loaded = matcher.load(image, f"image {number}")
        if first is None:
            first, rgb = loaded, to_uint8_rgb(loaded)
            yield Aligned(np.dstack([rgb, np.full(rgb.shape[:2], 255, np.uint8)]), 1.0)
        elif by == "flow":
            flow = matcher.flow(first, loaded)
            yield Aligned(flow.warp(loaded), flow.agreement)
        else:
            matches = matcher.match(first, loaded)
            yield Aligned(matches.warp(loaded), matches.agreement)


def stack(pictures: Sequence[np.ndarray], how: Stack = "median") -> np.ndarray:
    """Make one picture, uint8 RGB (H, W, 3), of aligned ones, uint8 RGBA (H, W, 4), of one size.

    ``median`` takes the median of what is visible, which removes noise and what passes by. ``fused`` takes what is
    well exposed (OpenCV's exposure fusion of Mertens); the first picture stands in where another is transparent.
    """
    check_choice("how", how, get_args(Stack))
    check_type("pictures", pictures, Sequence)
    forms = [f"{picture.dtype} {picture.shape}" for picture in map(np.asarray, pictures)]
    if len(set(forms)) != 1 or not re.fullmatch(r"uint8 \(\d+, \d+, 4\)", forms[0]):
        found = ", ".join(dict.fromkeys(forms)) or "none"
        raise DeepMatchingError(f"Pictures to stack must be uint8 (H, W, 4) of one size, but they are {found}.")
    first = pictures[0][..., :3]
    if how == "fused":
        shown = [np.where(picture[..., 3:] > 0, picture[..., :3], first) for picture in pictures]
        fused = cv2.createMergeMertens().process(shown)
        return np.rint(255 * np.clip(fused, 0, 1)).astype(np.uint8)
    result = np.empty_like(first)
    for top in range(0, len(first), _STRIP):
        strips = np.stack([picture[top : top + _STRIP] for picture in pictures]).astype(np.float32)
        strips[strips[..., 3] == 0] = np.nan
        strips[0] = np.where(np.isnan(strips).all(axis=0), pictures[0][top : top + _STRIP], strips[0])
        result[top : top + _STRIP] = np.rint(np.nanmedian(strips[..., :3], axis=0))
    return result


class AlignedFolder(FlowFolder):
    """Aligned pictures, all made with the same settings; ``align.json`` beside them is their manifest."""

    @staticmethod
    def store(path: Path) -> Store:
        """Return the store of the pictures in a folder."""
        return Store(path, "align.json", "pictures")

    def write(self, name: str, result: np.ndarray) -> None:
        """Write a picture."""
        write_image(self.file(name), result)

    def pictures(self) -> Iterator[np.ndarray]:
        """Yield the pictures, uint8 RGBA."""
        for name in self.origins:
            yield cv2.cvtColor(decode_image_file(self.file(name), cv2.IMREAD_UNCHANGED), cv2.COLOR_BGRA2RGBA)


def align_missing(
    files: Sequence[Path], folder: AlignedFolder, align_all: Callable[[Iterable[Path]], Iterator[Aligned]]
) -> Iterator[tuple[str, float]]:
    """Align the pictures that the folder lacks; yield the name and the agreement of each when it is written.

    BadFrame names a picture that cannot be aligned.
    """
    names, missing = list(folder.origins), folder.missing
    first, others = 0 in missing, [number for number in missing if number]
    results = align_all(chain([files[0]], (files[number] for number in others)))
    for number in [0, *others] if missing else []:
        try:
            result = next(results)
        except DeepMatchingError as error:
            raise BadFrame(f"'{files[number]}' cannot be aligned: {error}") from error
        if number or first:
            folder.add(names[number], result.picture)
            yield names[number], result.agreement
