"""Files that were copied are the same, files with other pixels are not."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deepmatching as dm
from deepmatching.bulk_matching import ShardReport, sequential_pairs
from deepmatching.bulk_matching.storage import MANIFEST, MISSING, SHARDS, is_same, stamp
from deepmatching.errors import DeepMatchingError

SETTINGS: dict[str, Any] = {"model": "hog", "radius": 16, "device": "cpu"}


def matched_again(photos: Path, out: Path) -> int:
    """The number of pairs that another run matches."""
    reports: list[ShardReport] = []
    dm.bulk(sequential_pairs(photos, 1), photos, out, on_shard=lambda _, report: reports.append(report), **SETTINGS)
    return sum(report.pairs for report in reports)


def test_photographs_with_another_time_are_not_matched_again(photos: Path, tmp_path: Path) -> None:
    assert matched_again(photos, tmp_path / "run") == 4
    for path in photos.rglob("*.*"):
        os.utime(path, ns=(0, 0))
    assert matched_again(photos, tmp_path / "run") == 0


def test_runs_from_before_there_were_digests_go_on(photos: Path, tmp_path: Path) -> None:
    matched_again(photos, tmp_path / "run")
    manifest = tmp_path / "run" / MANIFEST
    content = json.loads(manifest.read_text())
    content["stamps"] = [text.rpartition(", ")[0] for text in content["stamps"]]
    manifest.write_text(json.dumps(content))
    assert matched_again(photos, tmp_path / "run") == 0
    for path in photos.rglob("*.*"):
        os.utime(path, ns=(0, 0))
    assert matched_again(photos, tmp_path / "run") == 0  # the run before has added them


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp"])
def test_other_pixels_in_the_middle_are_noticed(suffix: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)
    path = tmp_path / f"a{suffix}"
    Image.fromarray(pixels).save(path)
    before = stamp(path)
    assert is_same(path.name, before, stamp(path)) and stamp(path, before) is before
    pixels[100, 100] += 100
    Image.fromarray(pixels).save(path)
    os.utime(path, ns=(0, 0))
    assert not is_same(path.name, before, stamp(path))


def test_a_file_that_is_missing_differs_from_one_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    assert stamp(path) == MISSING and is_same("a.png", MISSING, MISSING)
    path.write_bytes(b"picture")
    assert not is_same("a.png", MISSING, stamp(path)) and not is_same("a.png", stamp(path), MISSING)


def test_a_folder_without_any_of_the_images_is_refused_and_the_run_keeps_its_matches(
    photos: Path, tmp_path: Path
) -> None:
    pairs = sequential_pairs(photos, 1)
    dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run" / SHARDS).iterdir()}
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        with pytest.raises(DeepMatchingError, match="has none of the images, such as 'left side/"):
            dm.bulk(pairs, tmp_path / folder, tmp_path / "run", **SETTINGS)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run" / SHARDS).iterdir()} == before
