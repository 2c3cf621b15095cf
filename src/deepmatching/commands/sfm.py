"""``deepmatching sfm``."""

import time
from pathlib import Path

from deepmatching.commands import messages, options, runs
from deepmatching.commands.messages import duration, progress_bar, say
from deepmatching.commands.options import option
from deepmatching.errors import DeepMatchingError, check_number, counted

_MAX_ERROR_IN_CELLS = 0.4  #: Default of the largest reprojection error, in cells that matches were found on.
#: Least default in pixels if pairs were searched: their matches come from images that were reduced, turned or zoomed.
_MAX_ERROR_AFTER_SEARCH = 4.0
GRAPH = "graph.png"  #: The picture of the match graph.


@options.command()
def sfm(
    run: Path = runs.RUN,
    out: Path = option(..., "Folder for the database, the model and its picture.", "MODEL"),
    *,
    choices: runs.Choices,
    max_error: float | None = option(
        None,
        "Drop observations with a larger reprojection error.",
        "PIXELS",
        f"{_MAX_ERROR_IN_CELLS} descriptor cells; at least {_MAX_ERROR_AFTER_SEARCH:g} px after a search",
    ),
) -> None:
    """Reconstruct the cameras and the points of a scene from a run, with COLMAP's incremental mapping.

    MODEL gets database.db, the models 0, 1, ... in COLMAP's format, the largest first, model.png, a picture of it,
    graph.png, the match graph, and points.ply. An older model there is replaced.
    """
    from deepmatching.bulk_matching import RunFolder
    from deepmatching.io.files import check_replaceable
    from deepmatching.io.store import Store
    from deepmatching.reconstruction.colmap import DATABASE, PICTURE, POINTS, load_pycolmap, reconstruct

    if max_error is not None:
        check_number("--max-error", max_error, above=0)
    load_pycolmap()
    opened = RunFolder(run)
    folder = choices.images_of(opened)
    choices.setup()  # raises now, before any work
    if options.is_same(out, run) or options.is_same(out, folder):
        raise DeepMatchingError(f"'{out}' is an input: give another folder for the model.")
    database, graph, picture, points = (out / name for name in (DATABASE, GRAPH, PICTURE, POINTS))
    for path in (database, graph, picture, points):
        check_replaceable(path)
    has_model, start = (out / "0").exists(), time.perf_counter()
    with Store(out, DATABASE, "models").reserve():
        try:
            keypoints = choices.share_keypoints(opened)
            verified = choices.export_database(keypoints, database)
            runs.draw_graph(opened, graph, choices.min_matches, verified)
            if max_error is None:
                least = _MAX_ERROR_AFTER_SEARCH if keypoints.is_searched else 1.0
                max_error = max(least, _MAX_ERROR_IN_CELLS * keypoints.precision())
            prepared = time.perf_counter()
            with progress_bar("cameras", len(keypoints.images)) as advance:
                model = reconstruct(out, folder, max_error, choices.camera_params is None, advance)
        except BaseException:
            for path in () if has_model else (database, graph):
                path.unlink(missing_ok=True)
            raise
    rows = (
        ("cameras", f"{model.images} of {len(keypoints.images)}"),
        ("points", str(model.points)),
        ("images that see a point", f"{model.track_length:.2f} (mean)"),
        ("reprojection error", f"{model.error:.2f} px (mean)"),
        ("models", str(model.models)),
        ("time", f"{duration(prepared - start)} and {duration(time.perf_counter() - prepared)} for mapping"),
    )
    messages.print_rows(rows)
    if model.missing:
        missing = messages.first_names(model.missing, 5)
        say(f"note: the model lacks {counted(len(model.missing), 'image')}: {missing}")
    models = [model.path.with_name(str(number)) for number in range(model.models)]
    messages.say_written(database, *models, picture, graph, points)
