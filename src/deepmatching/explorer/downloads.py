"""Files of a result to download, at the size of the original images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from deepmatching.drawing import MarkedPair, draw_displacement, draw_score_maps, write_image
from deepmatching.errors import DeepMatchingError
from deepmatching.explorer.pictures import Unknown
from deepmatching.explorer.results import Result
from deepmatching.flow import FlowResult
from deepmatching.matches import Matches
from deepmatching.network.inspection import Inspection

#: The files that can be downloaded, by name, and the type of their content.
TYPES = {
    "matches.txt": "text/plain; charset=utf-8",
    "matches.npz": "application/octet-stream",
    "matches.h5": "application/octet-stream",
    "flow.flo": "application/octet-stream",
    "flow.png": "image/png",
    "matches-picture.png": "image/png",
    "displacement-picture.png": "image/png",
    "flow-picture.png": "image/png",
}


def file_of(result: Result, name: str) -> bytes:
    """Return the content of a file of :data:`TYPES`."""
    if name not in TYPES:
        raise Unknown(f"There is no download {name!r}: use one of {', '.join(TYPES)}.")
    return _written(Path(name).suffix, lambda path: _write(result, name, path))


def scores_picture(result: Result, inspection: Inspection) -> bytes:
    """Return a PNG file with both images and all maps of a point, as ``deepmatching scores`` draws them."""
    from deepmatching.drawing import to_uint8_rgb

    rows = [[(f"{letter}_{m.level}", getattr(m, letter)) for m in inspection.maps] for letter in "SQ"]
    row, column = inspection.index
    x, y = (result.decoded.points0[row, column] - 0.5).tolist()
    match = tuple((result.decoded.points1[0, row, column] - 0.5).tolist()) if inspection.path else None
    images = to_uint8_rgb(result.pair.images[0]), to_uint8_rgb(result.pair.images[1])
    picture = draw_score_maps(rows, MarkedPair(images, [(x, y)], [match]))  # type: ignore[list-item]
    return _written(".png", lambda path: write_image(path, picture))


def _write(result: Result, name: str, path: Path) -> None:
    images = result.pair.images
    if name.startswith("matches."):
        original_matches(result).save(path)
    elif name in ("flow.flo", "flow.png"):
        _flow(result).at_size(result.pair.originals[0]).save(path)
    elif name == "matches-picture.png":
        result.matches.draw(*images, path)
    elif name == "displacement-picture.png":
        keypoints0, keypoints1, _ = result.matches.numpy()
        write_image(path, draw_displacement(keypoints0, keypoints1, *result.pair.sizes[0]))
    else:
        _flow(result).draw(path, *images)


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
