"""The commands ``deepmatching export``, ``export-onnx`` and ``sfm``."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from PIL import Image

from deepmatching.bulk_matching import RunFolder, bulk, exhaustive_pairs
from deepmatching.errors import DeepMatchingError
from deepmatching.reconstruction import colmap
from deepmatching.reconstruction.colmap import write_database
from deepmatching.reconstruction.keypoints import SharedKeypoints

QUICK: dict[str, Any] = {"model": "hog", "radius": 16, "device": "cpu"}
TURNED = {"rotations": (0, 90)}  #: the settings of a search


@pytest.fixture
def run(pair: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> RunFolder:
    """Match three photographs in the folder ``run``; the photographs are in ``photos``."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, image in zip(("a.png", "b.png", "c d.png"), (*pair, np.roll(pair[0], 3, axis=1)), strict=True):
        Image.fromarray(image).save(folder / name)
    return bulk(exhaustive_pairs(folder), folder, tmp_path / "run", **QUICK)


def test_hlocs_files_and_a_graph_are_written(run: RunFolder, tmp_path: Path, command: Callable[..., str]) -> None:
    paths = [tmp_path / name for name in ("feats.h5", "matches.h5", "graph.png")]
    printed = command("export", run.path, "--hloc", *paths[:2], "--graph", paths[2])
    assert "keypoints in 3 images" in printed and "of 3 pairs have at least 15 matches" in printed
    with h5py.File(paths[0]) as features, h5py.File(paths[1]) as matches:
        assert set(features) == {"a.png", "b.png", "c d.png"}
        assert (matches["a.png/c d.png/matches0"][()] >= 0).sum() > 10
    assert cv2.imread(str(paths[2])).shape == (960, 900, 3)


def test_a_table_is_written_or_pyarrow_asked_for(
    run: RunFolder, tmp_path: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyarrow", None)
        assert "pip install pyarrow" in command("export", run.path, "--parquet", tmp_path / "a.parquet", code=2)
    assert not (tmp_path / "a.parquet").exists()
    parquet = pytest.importorskip("pyarrow.parquet")
    for path, words in (("a.csv", "a.csv"), ("photos/a.png", "is an input")):
        assert words in command("export", run.path, "--parquet", tmp_path / path, code=2)
    assert "matches of 3 pairs" in command("export", run.path, "--parquet", tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == 3


def test_a_database_is_written_with_the_images_where_they_were(
    run: RunFolder, tmp_path: Path, command: Callable[..., str]
) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    printed = command("export", run.path, "--colmap", tmp_path / "scene.db", "--min-matches", 8)
    assert "pairs survive geometric verification" in printed
    with pycolmap.Database.open(tmp_path / "scene.db") as database:
        assert database.num_images() == 3 and database.num_matched_image_pairs() == 3


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


@pytest.mark.parametrize(("settings", "given", "expected"), [({}, (), 1), (TURNED, (), 4), (TURNED, (1.5,), 1.5)])
def test_matches_of_a_search_may_be_further_off(
    run: RunFolder, tmp_path: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any], given: tuple[float, ...], expected: float,
) -> None:  # fmt: skip
    """They come from images that were reduced and turned."""
    pytest.importorskip("pycolmap")
    limits: list[float] = []

    def stop(out: Path, images: Path, limit: float, *rest: object) -> None:
        limits.append(limit)
        raise DeepMatchingError("enough")

    monkeypatch.setattr(colmap, "reconstruct", stop)
    if settings:
        run = bulk(exhaustive_pairs(tmp_path / "photos"), tmp_path / "photos", tmp_path / "turned", **QUICK, **settings)
    option = [part for value in given for part in ("--max-error", value)]
    command("sfm", run.path, "--out", tmp_path / "model", "--quiet", *option, code=2)
    assert limits == [expected]


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


@pytest.mark.slow
def test_an_onnx_file_is_written_and_its_inputs_outputs_and_operators_are_listed(
    tmp_path: Path, command: Callable[..., str]
) -> None:
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx")
    path = tmp_path / "descriptor.onnx"
    said = command("export-onnx", path, "--descriptor")
    properties = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert properties["model"] == "compact" and properties["license"] == "Apache-2.0" and "radius" not in properties
    assert "image (1, 3, rows, columns)" in said and "cells (1, 64, " in said
    assert "opset 18" in said and "Conv (8)" in said and f"wrote {path}" in said
