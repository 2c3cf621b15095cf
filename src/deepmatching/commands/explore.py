"""``deepmatching explore``."""

from __future__ import annotations

import contextlib
import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepmatching.commands import options
from deepmatching.commands.machine import use_threads
from deepmatching.commands.messages import computing, progress_bar, say
from deepmatching.commands.options import argument, option
from deepmatching.errors import DeepMatchingError
from deepmatching.settings import MODEL, MODELS

if TYPE_CHECKING:
    from deepmatching.explorer.pictures import Pictures
    from deepmatching.explorer.results import RunSettings

PORT = 8760  #: The port that is tried first, so that links keep working after a restart.


@options.command("radius", "levels", "search", "bit_depth", "device")
def explore(
    image0: Path | None = argument(None, "A", "First image; matches start here."),
    image1: Path | None = argument(None, "B", "Second image."),
    *,
    export: Path | None = option(
        None,
        "Write a .html file that shows the pair without a server, with maps of a grid of points, and exit.",
        "PAGE",
    ),
    model: list[str] | None = option(None, f"{options.MODEL_HELP} Give it twice to compare two.", "NAME|PATH", MODEL),
    settings: dict[str, Any],
    mask0: str | None = options.MASK0,
    mask1: str | None = options.MASK1,
    max_size: int = option(1024, "Show and match larger images at a reduced size: the longer side.", "PIXELS", min=16),
    threads: int | None = options.THREADS,
    host: str = option("127.0.0.1", "Address to serve on; others than 127.0.0.1 open it to the network.", "ADDRESS"),
    port: int | None = option(None, "Port to serve on.", "N", f"{PORT}, or a free one", min=0, max=65535),
    browser: bool = option(True, "Open the page in the browser."),
) -> None:
    """Look inside the matcher, in the browser.

    The page shows the matches, the flow and what belongs to them, and of every point its score maps and the best path
    through the levels. Without images, it starts empty: drop two on it. The interrupt key ends it.
    """
    if (image0 is None) != (image1 is None):
        raise DeepMatchingError("Give two images, or none.")
    if image0 is None:
        options.refuse({"mask0": mask0, "mask1": mask1}, "needs two images: deepmatching explore A B.")
    models = model or [MODEL]
    if len(models) > 2:
        raise DeepMatchingError("Two models can be compared, not more: give --model once or twice.")
    if export is None:
        try:
            import starlette  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError:
            raise DeepMatchingError(
                "The explorer needs Starlette and uvicorn: install them with pip install starlette uvicorn."
            ) from None
    use_threads(threads)

    from deepmatching.explorer.pictures import Pictures
    from deepmatching.explorer.results import RunSettings

    of_runs = tuple(RunSettings(name, settings["radius"], settings["levels"], settings["search"]) for name in models)
    given = None if image0 is None or image1 is None else (image0, image1)
    with contextlib.closing(Pictures(max_size, settings["bit_depth"], given, (mask0, mask1))) as pictures:
        if export is not None:
            export_page(pictures, of_runs, export, settings["device"])
        else:
            run_server(pictures, of_runs, settings["device"], host, port, browser)


def export_page(pictures: Pictures, of_runs: tuple[RunSettings, ...], path: Path, device: str) -> None:
    """Write the page of the pair of the command line."""
    from deepmatching.explorer.page import exported_page
    from deepmatching.explorer.results import Traces, compute
    from deepmatching.io.files import check_suffix, write_file

    if pictures.given is None or pictures.given_id is None:
        raise DeepMatchingError("--export needs two images: deepmatching explore A B --export page.html.")
    if len(of_runs) > 1:
        raise DeepMatchingError("An exported page shows one model: give --model once.")
    inputs = [*pictures.given, *(Path(mask) for mask in pictures.given_masks if mask is not None)]
    options.check_outputs([(path, lambda name: check_suffix(name, (".html", ".htm"), "page"))], inputs)
    pair = pictures.pair(pictures.given_id)
    with computing("matching"):
        result = compute(pair, of_runs[0], device, lambda stage: None)
    text = exported_page(result, Traces(), lambda count: progress_bar("score maps", count))
    write_file(path, text)
    say(f"wrote {path} ({len(text) / 1e6:.1f} MB)")


def run_server(
    pictures: Pictures, of_runs: tuple[RunSettings, ...], device: str, host: str, port: int | None, browser: bool
) -> None:
    """Serve the page until the interrupt key."""
    from deepmatching.explorer.jobs import Runs
    from deepmatching.explorer.results import compute
    from deepmatching.explorer.serving import Explorer, application, is_loopback, open_socket, serve

    for settings in of_runs:  # report wrong models and settings now
        settings.matcher(device)
    if pictures.given_id is not None:
        pictures.pair(pictures.given_id)  # and wrong images
    models = tuple(dict.fromkeys([*(settings.model for settings in of_runs), *MODELS]))
    runs = Runs(lambda pair, settings, begin: compute(pair, settings, device, begin))
    explorer = Explorer(pictures, runs, models, of_runs)
    with open_socket(host, port, PORT) as listening, contextlib.suppress(KeyboardInterrupt):
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}/"
        if not is_loopback(host):
            say(f"warning: everybody who can reach {host} can use this explorer and see its pictures")
        say(f"the explorer is at {address} (the interrupt key, Ctrl-C, ends it)")
        if browser and has_screen():
            webbrowser.open(address)
        serve(application(explorer, host), listening)
    say("the explorer has ended")


def has_screen() -> bool:
    """Tell whether a browser can show a window; without a screen, Python would start one in the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
