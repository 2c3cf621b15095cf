"""``deepmatching export``."""

from pathlib import Path

from deepmatching.commands import messages, options, runs
from deepmatching.commands.messages import say
from deepmatching.commands.options import option
from deepmatching.errors import DeepMatchingError, counted


@options.command()
def export(
    run: Path = runs.RUN,
    hloc: tuple[Path, Path] | None = option(None, "Write hloc's features and matches.", "FEATURES.h5 MATCHES.h5"),
    colmap: Path | None = option(None, "Write a COLMAP database, verified geometrically.", "DATABASE"),
    parquet: Path | None = option(None, "Write the matches as a Parquet file, a row for each pair.", "FILE"),
    *,
    choices: runs.Choices,
    graph: Path | None = option(None, "Draw the match graph: images, and the pairs with verified matches.", "PICTURE"),
) -> None:
    """Write the matches of a run for hloc or COLMAP, with keypoints that the pairs of an image share, or as a table.

    Positions are in the stored pixels of each image, as hloc and COLMAP expect: hloc's at pixel centres, COLMAP's at
    pixel corners. A table has them as they were matched, in the upright images, and all of them unless
    --min-confidence is given.
    """
    from deepmatching.bulk_matching import RunFolder
    from deepmatching.bulk_matching.arrow import check_parquet_suffix, load_pyarrow, write_parquet
    from deepmatching.drawing import check_picture_path
    from deepmatching.reconstruction.colmap import check_database_path
    from deepmatching.reconstruction.hloc import check_hloc_suffix, write_hloc

    if hloc is None and colmap is None and graph is None and parquet is None:
        raise DeepMatchingError("Nothing would be written: give --hloc, --colmap, --parquet or --graph.")
    if parquet is not None:
        load_pyarrow()  # raises now, before any work
    features, matches = hloc or (None, None)
    opened = RunFolder(run)
    checks = [
        *((features, check_hloc_suffix), (matches, check_hloc_suffix)),
        *((colmap, check_database_path), (graph, check_picture_path), (parquet, check_parquet_suffix)),
    ]
    folders = filter(None, (Path(opened.plan.images), choices.images))
    options.check_outputs(checks, (folder / name for folder in folders for name in opened.plan.names))
    if colmap is None:
        for name in ("images", "cameras", "camera_model", "camera_params"):
            options.refuse({name: getattr(choices, name)}, "is for --colmap: leave it out.")
        if graph is None:
            options.refuse({"min_matches": choices.min_matches}, "is for --colmap and --graph: leave it out.")
    choices.setup()  # raises now, before any work
    verified = None
    if hloc is not None or colmap is not None:
        keypoints = choices.share_keypoints(opened)
        if features is not None and matches is not None:
            count = write_hloc(keypoints, features, matches)
            points = sum(len(image.points) for image in keypoints.images.values())
            say(f"{counted(count, 'match')} of {counted(points, 'keypoint')} in {len(keypoints.images)} images")
        if colmap is not None:
            verified = choices.export_database(keypoints, colmap)
    if parquet is not None:
        written = write_parquet(opened, parquet, choices.min_confidence)
        say(f"{counted(written, 'match')} of {counted(len(opened), 'pair')}")
    if graph is not None:
        runs.draw_graph(opened, graph, choices.min_matches, verified)
    messages.say_written(features, matches, colmap, parquet, graph)
