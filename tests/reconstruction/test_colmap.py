"""Databases for COLMAP and models from them, on a made-up scene whose cameras are known."""

import sqlite3
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deepmatching.bulk_matching import RunFolder
from deepmatching.errors import DeepMatchingError
from deepmatching.reconstruction.colmap import (
    DATABASE,
    PICTURE,
    POINTS,
    Cameras,
    reconstruct,
    verify_pairs,
    write_database,
)
from deepmatching.reconstruction.keypoints import SharedKeypoints
from helpers.bulk_runs import MakeRun, matched

pycolmap: Any = pytest.importorskip("pycolmap")

ROWS, COLUMNS, FOCAL = 480, 640, 600.0


def cameras(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cameras along an arc, all of which look at the origin from a distance of 4: rotation and translation."""
    found = []
    for angle in np.linspace(-0.5, 0.5, count):
        rotation = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        found.append((rotation, np.array([0.05 * np.sin(7 * angle), 0.1 * angle, 4.0])))
    return found


def project(points: np.ndarray, camera: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Pixels, measured at pixel centres."""
    x, y, z = (points @ camera[0].T + camera[1]).T
    return np.stack([FOCAL * x / z + COLUMNS / 2, FOCAL * y / z + ROWS / 2], axis=1) - 0.5


def scene_run(make_run: MakeRun, folder: Path, count: int = 5, orientation: int = 1) -> RunFolder:
    """Every pair of images sees the same 300 points, up to a tenth of a pixel, among 60 wrong matches."""
    generator = np.random.default_rng(0)
    points = generator.uniform(-1, 1, (300, 3)) * (1.2, 0.9, 0.6)
    views = [project(points, camera) for camera in cameras(count)]
    for n in range(count):
        Image.fromarray(np.full((ROWS, COLUMNS, 3), 40 * n, np.uint8)).save(folder / f"{n}.png")
    pairs = []
    for i, j in combinations(range(count), 2):
        wrong = [generator.uniform(0, (COLUMNS, ROWS), (60, 2)) for _ in range(2)]
        ends = [np.concatenate([views[n], wrong[side]]) for side, n in enumerate((i, j))]
        ends[1] = ends[1] + generator.normal(0, 0.05, ends[1].shape)
        scores = np.concatenate([np.full(300, 3.0), np.full(60, 2.0)])
        turned = orientation if i == 0 else 1
        pairs.append(matched(f"{i}.png", f"{j}.png", *ends, scores, size=(ROWS, COLUMNS), turned=turned))
    return make_run(pairs)


def test_pycolmap_opens_the_database_and_finds_the_wrong_matches(make_run: MakeRun, tmp_path: Path) -> None:
    keypoints = SharedKeypoints(scene_run(make_run, tmp_path, 3), is_refined=False)
    summary = write_database(keypoints, tmp_path / "scene.db", tmp_path)
    assert len(summary.matches) == len(summary.verified) == 3
    for pair, count in summary.verified.items():
        assert 280 <= count <= 320 < summary.matches[pair]
    assert sorted(path.name for path in tmp_path.glob("*scene.db*")) == ["scene.db"]
    with pycolmap.Database.open(tmp_path / "scene.db") as database:
        assert (database.num_images(), database.num_cameras(), database.num_verified_image_pairs()) == (3, 1, 3)
        image = database.read_image_with_name("1.png")
        found = database.read_keypoints(image.image_id)
        np.testing.assert_allclose(np.asarray(found)[:, :2], keypoints.images["1.png"].points + 0.5, atol=1e-4)
        camera = database.read_camera(image.camera_id)
        assert (camera.width, camera.height) == (COLUMNS, ROWS)
    assert sqlite3.connect(tmp_path / "scene.db").execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_same_run_gives_the_same_verified_matches(make_run: MakeRun, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pairs = []
    for name in "bcdefgh":
        starts, ends = two_views(60, 60)
        ends = ends + generator.normal(0, 3, ends.shape)  # so that RANSAC's samples matter
        pairs.append(matched("a.png", f"{name}.png", starts, ends, np.ones(len(starts)), size=(480, 640)))
    for name in "abcdefgh":
        Image.new("RGB", (640, 480)).save(tmp_path / f"{name}.png")
    keypoints = SharedKeypoints(make_run(pairs), is_refined=False)
    found = [write_database(keypoints, tmp_path / f"{n}.db", tmp_path).verified for n in range(3)]
    assert found[0] == found[1] == found[2] and len(found[0]) == 7


@pytest.mark.parametrize(
    ("setup", "count"), [(Cameras(), 1), (Cameras("image"), 3), (Cameras("auto", "PINHOLE", (600, 600, 320, 240)), 1)]
)
def test_cameras_are_shared_or_not(make_run: MakeRun, tmp_path: Path, setup: Cameras, count: int) -> None:
    keypoints = SharedKeypoints(scene_run(make_run, tmp_path, 3), is_refined=False)
    write_database(keypoints, tmp_path / "scene.db", tmp_path, setup)
    with pycolmap.Database.open(tmp_path / "scene.db") as database:
        found = database.read_all_cameras()
    assert len(found) == count
    assert {camera.model_name for camera in found} == {setup.model}
    if setup.params:
        assert found[0].params.tolist() == list(setup.params) and found[0].has_prior_focal_length


@pytest.mark.parametrize("setup", [Cameras("auto", "UNKNOWN"), Cameras("auto", "PINHOLE", (600.0,))])
def test_wrong_camera_models_leave_no_file(make_run: MakeRun, tmp_path: Path, setup: Cameras) -> None:
    keypoints = SharedKeypoints(scene_run(make_run, tmp_path, 2), is_refined=False)
    with pytest.raises(DeepMatchingError, match="COLMAP refuses the camera model"):
        write_database(keypoints, tmp_path / "scene.db", tmp_path, setup)
    assert not list(tmp_path.glob("*.db*"))


def test_a_turned_photograph_has_keypoints_in_its_stored_pixels(make_run: MakeRun, tmp_path: Path) -> None:
    keypoints = SharedKeypoints(scene_run(make_run, tmp_path, 2, orientation=6), is_refined=False)
    write_database(keypoints, tmp_path / "scene.db", tmp_path)
    with pycolmap.Database.open(tmp_path / "scene.db") as database:
        image = database.read_image_with_name("0.png")
        camera = database.read_camera(image.camera_id)
        found = np.asarray(database.read_keypoints(image.image_id))[:, :2]
    assert (camera.width, camera.height) == (ROWS, COLUMNS)
    x, y = keypoints.images["0.png"].points.T
    np.testing.assert_allclose(found, np.stack([y, COLUMNS - 1 - x], axis=1) + 0.5, atol=1e-3)


@pytest.mark.slow
def test_the_scene_is_reconstructed(make_run: MakeRun, tmp_path: Path) -> None:
    keypoints = SharedKeypoints(scene_run(make_run, tmp_path), is_refined=False)
    (tmp_path / "model" / "7").mkdir(parents=True)
    (tmp_path / "model" / "7" / "cameras.bin").write_bytes(b"an older model")
    write_database(keypoints, tmp_path / "model" / DATABASE, tmp_path)
    registered: list[None] = []
    model = reconstruct(tmp_path / "model", tmp_path, 2.0, on_image=lambda: registered.append(None))
    assert (model.images, model.models, model.missing) == (5, 1, ())
    assert model.points > 250 and model.track_length > 4 and model.error < 0.3
    assert registered
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["0", DATABASE, PICTURE, POINTS]
    loaded = pycolmap.Reconstruction(model.path)
    centres = {image.name: image.cam_from_world().inverse().translation for image in loaded.images.values()}
    truth = {f"{n}.png": -rotation.T @ translation for n, (rotation, translation) in enumerate(cameras(5))}
    ratios = [
        np.linalg.norm(centres[a] - centres[b]) / np.linalg.norm(truth[a] - truth[b]) for a, b in combinations(truth, 2)
    ]
    assert np.ptp(ratios) < 0.05 * np.mean(ratios)  # the same scene up to a similarity
    assert (tmp_path / "model" / POINTS).read_bytes().startswith(b"ply\n")


def test_a_run_without_overlap_gives_no_model_and_one_sentence(make_run: MakeRun, tmp_path: Path) -> None:
    keypoints = SharedKeypoints(scene_run(make_run, tmp_path, 2), is_refined=False)
    (tmp_path / "model").mkdir()
    assert write_database(keypoints, tmp_path / "model" / DATABASE, tmp_path, min_matches=350).verified == {}
    with pytest.raises(DeepMatchingError, match="No camera could be found"):
        reconstruct(tmp_path / "model", tmp_path, 2.0)
    assert [path.name for path in (tmp_path / "model").iterdir()] == [DATABASE]


def two_views(count: int, wrong: int) -> tuple[np.ndarray, np.ndarray]:
    """Points in front of two cameras that are side by side, and wrong matches."""
    generator = np.random.default_rng(0)
    points = generator.uniform((-1, -1, 3), (1, 1, 6), (count, 3))
    views = [400 * (points - (shift, 0, 0))[:, :2] / points[:, 2:] + 200 for shift in (0.0, 0.7)]
    ends = [np.concatenate([view, generator.uniform(0, 400, (wrong, 2))]) for view in views]
    return ends[0], ends[1]


def test_pairs_are_kept_for_their_confident_matches_that_fit_one_geometry(make_run: MakeRun) -> None:
    pairs = []
    for number, (right, wrong, share) in enumerate(((200, 20, 1.0), (0, 220, 1.0), (200, 20, 0.4), (5, 0, 1.0))):
        count = right + wrong
        arrays = *two_views(right, wrong), np.ones(count), np.where(np.arange(count) < share * count, 0.9, 0.1)
        pairs.append(matched("a.png", f"{number}.png", *arrays, size=(400, 400)))
    counted: list[None] = []
    verified = verify_pairs(make_run(pairs), 100, lambda: counted.append(None))
    assert list(verified) == [("a.png", "0.png")] and 195 <= verified["a.png", "0.png"] <= 220
    assert len(counted) == 4
