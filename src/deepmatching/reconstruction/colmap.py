"""Geometric verification of a run's pairs, a COLMAP database, and a model of the scene by pycolmap (extra ``sfm``).

COLMAP works on the stored pixels, whatever EXIF says about their orientation, and measures positions from pixel
corners.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from deepmatching.bulk_matching import RunFolder
from deepmatching.bulk_matching.pairs import Pair
from deepmatching.drawing.pictures import write_image
from deepmatching.drawing.reconstruction import draw_model
from deepmatching.errors import DeepMatchingError, check_choice, check_number
from deepmatching.geometry.two_view import find_fundamental
from deepmatching.io.files import PathLike, atomic_write, check_suffix
from deepmatching.io.image_files import stored_size, to_stored
from deepmatching.io.matches import to_corners
from deepmatching.reconstruction.keypoints import ImageKeypoints, SharedKeypoints
from deepmatching.settings import MIN_CONFIDENCE

if TYPE_CHECKING:
    import pycolmap

MIN_MATCHES = 15  #: Pairs with fewer verified matches are dropped; COLMAP's own default.

#: Which images share a camera: those whose EXIF data and sizes agree (``auto``), or none (``image``).
CameraMode = Literal["auto", "image"]

#: Distance to the epipolar line up to which a match counts, in pixels of the size at which the images were matched.
_THRESHOLD = 1.5
_MAX_ITERATIONS = 5000  #: Largest number of MAGSAC's trials for a pair.
_FOCAL = 1.2  #: Focal length in units of the longer side where EXIF says nothing; COLMAP's own default.
SEED = 0  #: Seed of RANSAC and of the mapping.
DATABASE, PICTURE, POINTS = "database.db", "model.png", "points.ply"
_UNFINISHED = ".unfinished-"  #: Prefix of the folder where models are built before they replace older ones.
_MIN_IMAGES = 3  #: Models of fewer images are dropped.


@dataclass(frozen=True)
class Cameras:
    """How the cameras of the images are set up."""

    mode: CameraMode = "auto"
    model: str = "SIMPLE_RADIAL"  #: name of COLMAP's camera model
    params: tuple[float, ...] | None = None  #: known ones, for all images; None to estimate them from EXIF data

    def __post_init__(self) -> None:
        check_choice("The camera mode", self.mode, get_args(CameraMode))


@dataclass(frozen=True)
class DatabaseSummary:
    """The numbers of what was written."""

    keypoints: int  #: of all images
    matches: dict[Pair, int]  #: of each pair, before verification
    verified: dict[Pair, int]  #: matches of each pair that survived


def check_database_path(path: PathLike) -> None:
    """Raise unless the path is named as a database."""
    check_suffix(path, (".db", ".sqlite", ".sqlite3"), "database")


def load_pycolmap() -> Any:
    """Return the module pycolmap; raise if it is not installed."""
    try:
        return import_module("pycolmap")
    except ImportError:
        raise DeepMatchingError("This needs pycolmap: install it with pip install pycolmap.") from None


@contextlib.contextmanager
def quiet_pycolmap() -> Iterator[Any]:
    """Yield pycolmap, which prints nothing while the block lasts: it raises its errors, too."""
    pycolmap = load_pycolmap()
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = int(pycolmap.logging.Level.FATAL)
    try:
        yield pycolmap
    finally:
        pycolmap.logging.minloglevel = before


def write_database(
    keypoints: SharedKeypoints,
    path: PathLike,
    images: PathLike,
    cameras: Cameras = Cameras(),  # noqa: B008 - frozen
    min_matches: int = MIN_MATCHES,
) -> DatabaseSummary:
    """Write cameras, from the images' EXIF data, keypoints, matches and two-view geometries; replace an older database.

    Pairs with fewer than ``min_matches`` verified matches get no two-view geometry, so that COLMAP ignores them.
    """
    check_number("min_matches", min_matches, minimum=8, whole=True)
    with quiet_pycolmap() as pycolmap, atomic_write(path) as temporary, _refused_writes(path, temporary):
        with contextlib.closing(pycolmap.Database.open(temporary)) as database:
            ids = _write_images(pycolmap, database, keypoints, Path(images), cameras)
            matches = {}
            for pair in keypoints.matches():
                matches[pair.names] = len(pair.indices)
                if len(pair.indices) >= min_matches:
                    database.write_matches(*(ids[name] for name in pair.names), pair.indices.astype(np.uint32))
        options = pycolmap.TwoViewGeometryOptions()
        options.min_num_inliers = min_matches
        options.ransac.random_seed = SEED  # set_random_seed counts for this thread only, not for those that verify
        pycolmap.geometric_verification(temporary, two_view_geometry_options=options)
        verified = _verified(pycolmap, temporary, ids)
    total = sum(len(image.points) for image in keypoints.images.values())
    return DatabaseSummary(total, matches, {pair: verified[pair] for pair in matches if verified.get(pair)})


def verify_pairs(
    run: RunFolder, min_matches: int = MIN_MATCHES, on_pair: Callable[[], object] | None = None
) -> dict[Pair, int]:
    """Return the number of matches that fit one geometry, by OpenCV's MAGSAC, of pairs with at least ``min_matches``.

    Unsure matches do not count, since many of them fit some geometry by chance.
    """
    verified = {}
    max_size = run.plan.settings.get("max_size")
    for pair in run:
        sure = pair.matches if pair.matches.confidence is None else pair.matches.filter(MIN_CONFIDENCE)
        points0, points1, _ = sure.numpy()
        longest = max((*(sure.size0 or (1,)), *(sure.size1 or (1,))))
        scale = max(1.0, longest / max_size) if max_size else 1.0
        with contextlib.suppress(DeepMatchingError):  # too few matches, or none that fit
            inliers = find_fundamental(points0, points1, _THRESHOLD * scale, _MAX_ITERATIONS).inliers
            if (count := int(inliers.sum())) >= min_matches:
                verified[pair.names] = count
        if on_pair is not None:
            on_pair()
    return verified


@contextlib.contextmanager
def _refused_writes(path: PathLike, temporary: Path) -> Iterator[None]:
    """Raise ``DeepMatchingError`` if COLMAP cannot write a database; remove SQLite's journals in any case."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise DeepMatchingError(
            f"COLMAP cannot write '{path}' ({reason}): free some space there, or write to another disk."
        ) from error
    finally:
        for journal in temporary.parent.glob(f"{temporary.name}-*"):
            journal.unlink(missing_ok=True)


def _write_images(
    pycolmap: Any, database: Any, keypoints: SharedKeypoints, folder: Path, cameras: Cameras
) -> dict[str, int]:
    """Write cameras, images and keypoints; return the number of each image."""
    known: dict[object, tuple[int, int]] = {}  # the numbers of a camera and of its rig
    ids = {}
    for name, image in sorted(keypoints.images.items()):
        camera = _camera(pycolmap, folder / name, image, cameras)
        key = name if cameras.mode == "image" else (camera.width, camera.height, *camera.params.tolist())
        if key not in known:
            camera.camera_id = database.write_camera(camera)
            rig = pycolmap.Rig()
            rig.add_ref_sensor(camera.sensor_id)
            known[key] = camera.camera_id, database.write_rig(rig)
        entry, frame = pycolmap.Image(name=name), pycolmap.Frame()
        entry.camera_id, frame.rig_id = known[key]
        entry.image_id = ids[name] = database.write_image(entry)
        frame.add_data_id(entry.data_id)
        database.write_frame(frame)
        points = to_corners(to_stored(image.points, image.size, image.orientation))
        database.write_keypoints(entry.image_id, points.astype(np.float32))
    return ids


def _camera(pycolmap: Any, path: Path, image: ImageKeypoints, cameras: Cameras) -> pycolmap.Camera:
    """Return the camera of an image: the parameters that are known, or those that EXIF data suggests."""
    rows, columns = stored_size(image.size, image.orientation)
    focal, has_prior = _FOCAL * max(rows, columns), cameras.params is not None
    if cameras.params is None and os.path.isfile(path):
        with contextlib.suppress(ValueError, RuntimeError):  # a format that COLMAP does not read
            found = pycolmap.infer_camera_from_image(path)
            if (found.height, found.width) == (rows, columns):
                focal, has_prior = found.focal_length, found.has_prior_focal_length
    try:
        camera = pycolmap.Camera.create_from_model_name(0, cameras.model, focal, columns, rows)
        if cameras.params is not None:
            camera.params = list(cameras.params)
            if not camera.verify_params():
                raise ValueError(f"it does not take {len(cameras.params)} parameters")
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DeepMatchingError(
            f"COLMAP refuses the camera model '{cameras.model}' ({reason}): use a name such as SIMPLE_RADIAL, PINHOLE "
            "or OPENCV, and as many parameters as it has."
        ) from error
    camera.has_prior_focal_length = has_prior
    return camera


def _verified(pycolmap: Any, path: Path, ids: dict[str, int]) -> dict[Pair, int]:
    """Return the number of verified matches of the pairs that have some, in both directions of the names."""
    names, found = {number: name for name, number in ids.items()}, {}
    with pycolmap.Database.open(path) as database:
        for pair, count in zip(*database.read_two_view_geometry_num_inliers(), strict=True):
            first, second = (names[number] for number in pycolmap.pair_id_to_image_pair(pair))
            found[first, second] = found[second, first] = int(count)
    return found


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
    The images give the points their colours. Observations with a reprojection error above ``max_error`` pixels are
    dropped. Known focal lengths and distortions need no refinement.
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
    options.random_seed, options.min_model_size = SEED, _MIN_IMAGES
    options.mapper.filter_max_reproj_error = max_error
    options.triangulation.complete_max_reproj_error = options.triangulation.merge_max_reproj_error = max_error
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
