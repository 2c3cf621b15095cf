"""Structure from motion on the database of a run, by pycolmap's incremental mapping."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deepmatching.drawing.pictures import write_image
from deepmatching.drawing.reconstruction import draw_model
from deepmatching.errors import DeepMatchingError
from deepmatching.io.files import PathLike, atomic_write
from deepmatching.reconstruction.colmap import SEED, quiet_pycolmap

DATABASE, PICTURE, POINTS = "database.db", "model.png", "points.ply"

#: Prefix of the folder where models are built before they replace older ones.
_UNFINISHED = ".unfinished-"
#: Models of fewer images are dropped.
_MIN_IMAGES = 3


@dataclass(frozen=True)
class ModelSummary:
    """The largest model of a scene."""

    path: Path  #: its folder, in COLMAP's binary format
    images: int  #: number of images whose camera was found
    points: int  #: number of points
    track_length: float  #: mean number of images that see a point
    error: float  #: mean reprojection error in pixels
    models: int  #: number of models; more than one if images could not be joined
    missing: tuple[str, ...]  #: names of the images that are not in the largest model


def reconstruct(
    folder: PathLike,
    images: PathLike,
    max_error: float,
    refine_cameras: bool = True,
    on_image: Callable[[], object] | None = None,
) -> ModelSummary:
    """Find the cameras and points of a scene from the database in a folder, which must be locked.

    Models go to the folders ``0``, ``1``, … beside it, the largest first, with a picture and the points of the largest.

    Args:
        folder: has the database.
        images: the folder of the images, for the colours of the points.
        max_error: observations with a larger reprojection error, in pixels, are dropped.
        refine_cameras: estimate focal lengths and distortions too; off if they are known.
        on_image: called whenever the camera of another image was found.
    """
    folder = Path(folder)
    for left in folder.glob(f"{_UNFINISHED}*"):  # by a command that was killed
        shutil.rmtree(left, ignore_errors=True)
    with quiet_pycolmap() as pycolmap, tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as unfinished:
        options = _options(pycolmap, max_error, refine_cameras)
        pycolmap.set_random_seed(SEED)
        found = pycolmap.incremental_mapping(
            folder / DATABASE, images, unfinished, options, next_image_callback=on_image or (lambda: None)
        )
        models = sorted(found.values(), key=lambda model: -model.num_reg_images())
        with pycolmap.Database.open(folder / DATABASE) as database:
            names = [image.name for image in database.read_all_images()]
        if not models:
            raise DeepMatchingError(
                f"No camera could be found from '{folder / DATABASE}': match more pairs of neighbouring images, with a "
                "larger --radius if they are far apart."
            )
        _replace_models(folder, models, Path(unfinished))
    best = models[0]
    _write_pictures(folder, best)
    registered = {image.name for image in best.images.values() if image.has_pose}
    return ModelSummary(
        folder / "0",
        best.num_reg_images(),
        best.num_points3D(),
        best.compute_mean_track_length(),
        best.compute_mean_reprojection_error(),
        len(models),
        tuple(name for name in names if name not in registered),
    )


def _options(pycolmap: Any, max_error: float, refine_cameras: bool) -> Any:
    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed = SEED
    options.min_model_size = _MIN_IMAGES
    options.mapper.filter_max_reproj_error = max_error
    options.triangulation.complete_max_reproj_error = max_error
    options.triangulation.merge_max_reproj_error = max_error
    if not refine_cameras:
        options.ba_refine_focal_length = options.ba_refine_extra_params = False
        options.mapper.abs_pose_refine_focal_length = options.mapper.abs_pose_refine_extra_params = False
    return options


def _replace_models(folder: Path, models: list[Any], unfinished: Path) -> None:
    """Write the models to numbered folders, and remove those of an earlier reconstruction."""
    for number, model in enumerate(models):
        place = unfinished / f"model-{number}"
        place.mkdir()
        model.write(place)
    for old in folder.iterdir():
        if old.name.isdigit() and (old / "cameras.bin").is_file():
            shutil.rmtree(old)
    for number in range(len(models)):
        os.replace(unfinished / f"model-{number}", folder / str(number))


def _write_pictures(folder: Path, model: Any) -> None:
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3)
    colors = np.array([point.color for point in model.points3D.values()], np.uint8).reshape(-1, 3)
    poses = [image.cam_from_world().inverse() for image in model.images.values() if image.has_pose]
    centres = np.array([pose.translation for pose in poses]).reshape(-1, 3)
    rotations = np.array([pose.rotation.matrix() for pose in poses]).reshape(-1, 3, 3)
    with contextlib.suppress(DeepMatchingError):  # no reason to lose a model
        write_image(folder / PICTURE, draw_model(points, colors, centres, rotations))
    with atomic_write(folder / POINTS) as temporary:
        model.export_PLY(temporary)
