"""The commands ``deepmatching export`` and ``deepmatching sfm``."""

import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
from PIL import Image

from deepmatching.bulk_matching import RunFolder, bulk, exhaustive_pairs
from deepmatching.errors import DeepMatchingError
from deepmatching.reconstruction.colmap import write_database
from deepmatching.reconstruction.keypoints import SharedKeypoints


@pytest.fixture
def run(pair: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> RunFolder:
    """A run of three photographs in the folder ``run``; the photographs are in ``photos``."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, image in zip(("a.png", "b.png", "c d.png"), (*pair, np.roll(pair[0], 3, axis=1)), strict=True):
        Image.fromarray(image).save(folder / name)
    return bulk(exhaustive_pairs(folder), folder, tmp_path / "run", model="hog", radius=16, device="cpu")


def test_hlocs_files_and_a_graph_are_written(run: RunFolder, tmp_path: Path, command: Callable[..., str]) -> None:
    paths = [tmp_path / name for name in ("feats.h5", "matches.h5", "graph.png")]
    printed = command("export", run.path, "--hloc", *paths[:2], "--graph", paths[2])
    assert "keypoints in 3 images" in printed and "of 3 pairs have at least 15 matches" in printed
    with h5py.File(paths[0]) as features, h5py.File(paths[1]) as matches:
        assert set(features) == {"a.png", "b.png", "c d.png"}
        assert (matches["a.png/c d.png/matches0"][()] >= 0).sum() > 10
    assert cv2.imread(str(paths[2])).shape == (960, 900, 3)


def test_a_database_is_written_with_the_images_where_they_were(
    run: RunFolder, tmp_path: Path, command: Callable[..., str]
) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    printed = command("export", run.path, "--colmap", tmp_path / "scene.db", "--min-matches", 8)
    assert "pairs survive geometric verification" in printed
    with pycolmap.Database.open(tmp_path / "scene.db") as database:
        assert database.num_images() == 3 and database.num_matched_image_pairs() == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("export run --colmap photos/a.png", "photos/a.png"),
        ("export run --colmap run/run.json", "run/run.json"),
        ("export run --colmap notes.db", "notes.db"),
        ("export run --hloc notes.h5 m.h5", "notes.h5"),
        ("export run --graph photos/a.png", "is an input"),
        ("bulk photos --exhaustive --out other --graph photos/b.png", "is an input"),
        ("bench --json photos/a.png", "photos/a.png"),
        ("evaluate demo --json photos/a.png", "photos/a.png"),
    ],
)
def test_inputs_and_files_of_others_are_not_replaced(
    run: RunFolder, tmp_path: Path, is_refused: Callable[[str, str], None], arguments: str, words: str
) -> None:
    for name in ("notes.db", "notes.h5"):
        (tmp_path / name).write_text("do not lose this")
    is_refused(arguments, words)


@pytest.mark.skipif(sys.platform == "win32", reason="the limit is of POSIX")
@pytest.mark.parametrize("limit", [8 * 2**10, 200 * 2**10])
def test_a_full_disk_is_reported_and_leaves_nothing(run: RunFolder, tmp_path: Path, limit: int) -> None:
    import resource

    pytest.importorskip("pycolmap")
    before = set(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(DeepMatchingError, match=r"scene\.db"):
            write_database(SharedKeypoints(run), tmp_path / "scene.db", tmp_path / "photos")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert set(tmp_path.iterdir()) == before


def test_photographs_that_cannot_be_reconstructed_are_reported(
    run: RunFolder, tmp_path: Path, command: Callable[..., str]
) -> None:
    """The views differ by a shift of the whole picture: there is no depth to find."""
    pytest.importorskip("pycolmap")
    assert "No camera could be found" in command("sfm", run.path, "--out", tmp_path / "model", "--quiet", code=2)
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("export run", "--hloc"),
        ("export photos --graph g.png", "photos"),
        ("export run --hloc feats.txt matches.h5", "feats.txt"),
        ("export run --hloc same.h5 same.h5", "same.h5"),
        ("export run --hloc a.h5 b.h5 --images photos", "--images"),
        ("export run --hloc a.h5 b.h5 --camera-model PINHOLE", "--camera-model"),
        ("export run --hloc a.h5 b.h5 --min-matches 20", "--min-matches"),
        ("export run --graph g.png --min-matches -1", "--min-matches"),
        ("export run --hloc a.h5 b.h5 --max-keypoints 0", "max_keypoints"),
        ("export run --hloc a.h5 b.h5 --cell 0", "cell"),
        ("export run --graph nowhere/g.png", "nowhere"),
        ("export run --colmap s.db --camera-params 1,x", "--camera-params"),
    ],
)
def test_mistakes_are_reported(
    run: RunFolder, is_refused: Callable[[str, str], None], arguments: str, words: str
) -> None:
    is_refused(arguments, words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("sfm run --out run", "run"),
        ("sfm run --out mine", "mine/database.db"),
        ("sfm run --out model --images nowhere", "nowhere"),
        ("sfm run --out model --max-error 0", "--max-error"),
        ("sfm run --out s3://bucket/model", "s3://"),
        ("sfm run --out new/model --cell 0", "cell"),
        ("sfm run --out new/model --camera-model FISH", "FISH"),
        ("export run --colmap s.db --min-matches 2", "--min-matches"),
        ("export run --colmap s.db --camera-model FISH", "FISH"),
    ],
)
def test_mistakes_with_pycolmap_are_reported(
    run: RunFolder, is_refused: Callable[[str, str], None], arguments: str, words: str
) -> None:
    pytest.importorskip("pycolmap")
    mine = run.path.parent / "mine" / "database.db"
    mine.parent.mkdir()
    mine.write_text("do not lose this")
    is_refused(arguments, words)


def test_without_pycolmap_the_command_says_how_to_install_it(
    run: RunFolder, is_refused: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    is_refused("sfm run --out model", "pip install pycolmap")


@pytest.mark.slow
def test_a_castle_is_reconstructed_in_two_commands(shared: Path, tmp_path: Path, command: Callable[..., str]) -> None:
    """At a quarter of the size; docs/bulk.md has the figures of larger ones."""
    pycolmap = pytest.importorskip("pycolmap")
    photos, out = shared / "sfm" / "sceaux", tmp_path / "model"
    matching = ("bulk", photos, "--sequential", 3, "--max-size", 320, "--radius", 136, "--device", "cpu")
    command(*matching, "--out", tmp_path / "run", "--quiet")
    command("sfm", tmp_path / "run", "--out", out, "--quiet")
    model = pycolmap.Reconstruction(out / "0")
    assert model.num_reg_images() == 11
    assert model.num_points3D() > 5000
    assert model.compute_mean_track_length() > 4
    assert model.compute_mean_reprojection_error() < 1.3  # pixels of 1416×1064, from images of 320×240
    assert not (out / "1").exists()
