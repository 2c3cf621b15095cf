"""The page: its files, and what can be downloaded of a result, such as a page that needs no server."""

import base64
import html
import json
import re
import tempfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from deepmatching.drawing import draw_displacement, draw_score_maps, to_uint8_rgb, write_image
from deepmatching.errors import DeepMatchingError
from deepmatching.explorer import payloads
from deepmatching.explorer.pictures import Unknown
from deepmatching.explorer.results import Result, Traces
from deepmatching.network.inspection import Inspection

STATIC = Path(__file__).parent / "static"

_TEXTS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".txt": "text/plain"}
_TYPES = {**_TEXTS, ".svg": "image/svg+xml", ".png": "image/png"}

#: The files of a result that can be downloaded. Those with "picture" in their name are drawn at the size that is shown.
DOWNLOADS = (
    *("matches.txt", "matches.npz", "matches.h5", "flow.flo", "flow.png"),
    *("matches-picture.png", "displacement-picture.png", "flow-picture.png"),
)

MAX_PAGE_BYTES = 14_000_000  #: Largest exported page, in bytes. It has the maps of as many points as fit.

_IMPORT = re.compile(r'(from |import )"\./([\w-]+\.js)"')
#: What an exported page may load: what is in it, and nothing else.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src data: blob:"
)


@cache
def assets() -> dict[str, bytes]:
    """Return the files of the page by their names, such as ``js/main.js``."""
    found = (path for path in STATIC.rglob("*") if path.suffix in _TYPES)
    return {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in sorted(found)}


def content_type(name: str) -> str:
    """Return the type of a file's content."""
    return _TYPES.get(Path(name).suffix, "application/octet-stream")


def file_of(result: Result, name: str) -> bytes:
    """Return the content of a file of :data:`DOWNLOADS`."""
    if name not in DOWNLOADS:
        raise Unknown(f"There is no download {name!r}: use one of {', '.join(DOWNLOADS)}.")
    pair, matches, flow = result.pair, result.matches, result.flow

    def write(path: Path) -> None:
        if name.startswith("matches."):
            matches.at_sizes(*pair.originals).save(path)
        elif name == "matches-picture.png":
            matches.draw(*pair.shown, path)
        elif name == "displacement-picture.png":
            write_image(path, draw_displacement(*matches.numpy()[:2], *pair.sizes[0]))
        elif flow is None:
            raise DeepMatchingError(f"This pair has no flow. {result.no_flow}")
        elif name == "flow-picture.png":
            flow.draw(*pair.shown, path)
        else:
            flow.at_size(pair.originals[0], (pair.sizes[1], pair.originals[1])).save(path)

    return _written(Path(name).suffix, write)


def scores_picture(result: Result, inspection: Inspection) -> bytes:
    """Return a PNG file with both images and all maps of a point, as ``deepmatching scores`` draws them."""
    rows = [[(f"{letter}_{m.level}", getattr(m, letter)) for m in inspection.maps] for letter in "SQ"]
    points, ends = result.decoded.at_pixel_centres(0)
    start, end = (tuple(place[inspection.index].tolist()) for place in (points, ends))
    images = [to_uint8_rgb(image) for image in result.pair.images]
    picture = draw_score_maps(rows, images, [start], [end if inspection.path else None])
    return _written(".png", lambda path: write_image(path, picture))


def _written(suffix: str, write: Callable[[Path], None]) -> bytes:
    """Return what a function writes to a file with this suffix."""
    with tempfile.TemporaryDirectory(prefix="deepmatching-explore-") as folder:
        path = Path(folder) / f"file{suffix}"
        write(path)
        return path.read_bytes()


def exported_page(
    result: Result,
    traces: Traces,
    progress: Callable[[int], AbstractContextManager[Callable[[], object]]] = lambda count: nullcontext(lambda: None),
) -> str:
    """Return one HTML file with the pair, its layers and, if the result has any, the maps of a grid of points.

    With the number of points, ``progress`` returns a context of the function to call after each.
    """
    pair = result.pair
    fixed = {
        "pair": pair.about(),
        "run": payloads.facts(result),
        "images": [_data_url(pair.encoded(which, ".jpg"), "image/jpeg") for which in (0, 1)],
        "grid": _compressed(payloads.grid(result)),
        "layers": _compressed(payloads.layers(result, small=True)),
    }
    if result.no_maps:
        return _assembled({**fixed, "points": {}, "step": 1})
    room = MAX_PAGE_BYTES - len(json.dumps(fixed)) - sum(len(data) * 4 // 3 for data in assets().values())
    grid = result.geometry.grid(0)
    tried = {(grid[0] * i // 4, grid[1] * j // 4) for i in (1, 2, 3) for j in (1, 2, 3)}
    size = 1.05 * sum(len(_point(result, traces, *point)) for point in tried) / len(tried)
    step = next((step for step in range(1, max(grid)) if size * len(_every(step, grid)) <= room), max(grid))
    while True:
        chosen = _every(step, grid)
        points: dict[str, str] = {}
        with progress(len(chosen)) as advance:
            for row, column in chosen:
                points[f"{row},{column}"] = _point(result, traces, row, column)
                advance()
        if sum(map(len, points.values())) <= room or len(chosen) == 1:
            return _assembled({**fixed, "points": points, "step": step})
        step += 1  # the nine points that were tried are smaller than most


def _every(step: int, grid: tuple[int, int]) -> list[tuple[int, int]]:
    """Return points of the grid at this distance from each other, at least one."""
    rows, columns = (range(min(step // 2, count - 1), count, step) for count in grid)
    return list(product(rows, columns))


def _point(result: Result, traces: Traces, row: int, column: int) -> str:
    return _compressed(payloads.point(traces.inspect(result, row, column), small=True))


def _assembled(data: dict[str, Any]) -> str:
    """Return the page with its style, its modules and the data inside."""
    found = assets()
    page = found["index.html"].decode()
    style = "\n".join(text.decode() for name, text in sorted(found.items()) if name.startswith("css/"))
    modules = {
        name.removeprefix("js/"): _data_url(_IMPORT.sub(r'\1"\2"', text.decode()).encode(), "text/javascript")
        for name, text in found.items()
        if name.startswith("js/")
    }
    names = " and ".join(data["pair"]["names"])
    head = [
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        f"<title>{html.escape(names)} · deepmatching</title>",
        f"<style>\n{style}\n</style>",
        f'<script type="importmap">{json.dumps({"imports": modules})}</script>',
    ]
    # "<" is written as an escape, so that no name in the data can end the element.
    embedded = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    body = [
        f'<script type="application/json" id="embedded">{embedded}</script>',
        '<script type="module">import "main.js";</script>',
    ]
    page = re.sub(r"<!-- live -->.*?<!-- /live -->", "", page, flags=re.DOTALL)
    page = page.replace("<!-- head -->", "\n".join(head))
    return page.replace("<!-- body -->", "\n".join(body))


def _compressed(block: bytes) -> str:
    return base64.b64encode(zlib.compress(block, 9)).decode()


def _data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
