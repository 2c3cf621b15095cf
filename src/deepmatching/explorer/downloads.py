"""Files of a result to download, at the size of the original images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from deepmatching.drawing import MarkedPair, draw_displacement, draw_score_maps, to_uint8_rgb, write_image
from deepmatching.errors import DeepMatchingError
from deepmatching.explorer.pictures import Unknown
from deepmatching.explorer.results import Result
from deepmatching.flow import FlowResult
from deepmatching.matches import Matches
from deepmatching.network.inspection import Inspection

_BINARY, _PNG = "application/octet-stream", "image/png"

#: The files that can be downloaded, by name, and the type of their content.
TYPES = {
    "matches.txt": "text/plain; charset=utf-8",
    "matches.npz": _BINARY,
    "matches.h5": _BINARY,
    "flow.flo": _BINARY,
    "flow.png": _PNG,
    "matches-picture.png": _PNG,
    "displacement-picture.png": _PNG,
    "flow-picture.png": _PNG,
}


def file_of(result: Result, name: str) -> bytes:
    """Return the content of a file of :data:`TYPES`."""
    if name not in TYPES:
        raise Unknown(f"There is no download {name!r}: use one of {', '.join(TYPES)}.")
    images = result.pair.images

    def write(path: Path) -> None:
        if name.startswith("matches."):
            original_matches(result).save(path)
        elif name == "matches-picture.png":
            result.matches.draw(*images, path)
        elif name == "displacement-picture.png":
            write_image(path, draw_displacement(*result.matches.numpy()[:2], *result.pair.sizes[0]))
        elif name == "flow-picture.png":
            _flow(result).draw(path, *images)
        else:
            _flow(result).at_size(result.pair.originals[0]).save(path)

    return _written(Path(name).suffix, write)


def scores_picture(result: Result, inspection: Inspection) -> bytes:
    """Return a PNG file with both images and all maps of a point, as ``deepmatching scores`` draws them."""
    rows = [[(f"{letter}_{m.level}", getattr(m, letter)) for m in inspection.maps] for letter in "SQ"]
    points, ends = result.decoded.at_pixel_centres(0)
    start, end = (tuple(place[inspection.index].tolist()) for place in (points, ends))
    images = to_uint8_rgb(result.pair.images[0]), to_uint8_rgb(result.pair.images[1])
    picture = draw_score_maps(rows, MarkedPair(images, [start], [end if inspection.path else None]))  # type: ignore[list-item]
    return _written(".png", lambda path: write_image(path, picture))


def original_matches(result: Result) -> Matches:
    """Return the matches in pixels of the original images."""
    return result.matches.at_sizes(*result.pair.originals)


def _flow(result: Result) -> FlowResult:
    if result.flow is None:
        raise DeepMatchingError(f"This pair has no flow. {result.no_flow}")
    return result.flow


def _written(suffix: str, write: Callable[[Path], None]) -> bytes:
    """Return what a function writes to a file with this suffix."""
    with tempfile.TemporaryDirectory(prefix="deepmatching-explore-") as folder:
        path = Path(folder) / f"file{suffix}"
        write(path)
        return path.read_bytes()
