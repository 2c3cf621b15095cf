"""Runs: what is stored, how they go on, and what is refused."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import deepmatching as dm
from deepmatching.bulk_matching import Progress, RunFolder, ShardReport, exhaustive_pairs, sequential_pairs
from deepmatching.bulk_matching.storage import MANIFEST, SHARDS, MatchedPair, write_shard
from deepmatching.errors import DeepMatchingError
from deepmatching.io.store import lock_folder
from deepmatching.matches import Matches
from helpers.bulk_runs import SETTINGS, shards
from helpers.fake_datasets import write_image
from helpers.synthetic_pictures import draw_photo


def matched_again(photos: Path, out: Path, **options: Any) -> list[ShardReport]:
    """Run again with the pairs of neighbours; return the reports of what was matched."""
    reports: list[ShardReport] = []
    pairs = options.pop("pairs", sequential_pairs(photos, 1))
    dm.bulk(pairs, photos, out, on_shard=lambda _, report: reports.append(report), **options, **SETTINGS)
    return reports


def test_an_interrupted_run_goes_on_and_ends_with_the_same_bytes(photos: Path, tmp_path: Path) -> None:
    pairs = exhaustive_pairs(photos)
    run = dm.bulk(pairs, photos, tmp_path / "whole", **SETTINGS)
    assert {pair.names for pair in run} == set(pairs) and run.failures() == {} and run.missing == []
    assert "10 pairs of 5 images" in repr(run)
    done: list[int] = []

    def stop(_: Progress, report: ShardReport) -> None:
        done.append(report.number)
        if len(done) % 4 == 0:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            dm.bulk(pairs, photos, tmp_path / "run", on_shard=stop, **SETTINGS)
    starts: list[Progress] = []
    dm.bulk(pairs, photos, tmp_path / "run", on_shard=stop, on_start=starts.append, **SETTINGS)
    assert starts[0].before >= 8 and starts[0].total == 10  # those that were on their way are written, too
    assert len(done) == len(set(done))  # none was matched twice
    assert shards(tmp_path / "run") == shards(tmp_path / "whole")


def test_a_run_with_other_settings_is_refused_and_keeps_its_matches(photos: Path, tmp_path: Path) -> None:
    pairs = sequential_pairs(photos, 1)
    before = shards(dm.bulk(pairs, photos, tmp_path, **SETTINGS))
    with pytest.raises(DeepMatchingError, match="radius 32, and now it is 16"):
        dm.bulk(pairs, photos, tmp_path, **{**SETTINGS, "radius": 16})
    assert shards(tmp_path) == before
    run = dm.bulk(pairs, photos, tmp_path, restart=True, **{**SETTINGS, "radius": 16})
    assert run.plan.settings["radius"] == 16
    assert shards(tmp_path) != before and list(shards(tmp_path)) == list(before)


def test_a_second_run_into_the_same_folder_at_once_is_refused(photos: Path, tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(DeepMatchingError, match="Another process"):
        dm.bulk(exhaustive_pairs(photos), photos, tmp_path, **SETTINGS)


def test_new_pairs_are_added_to_a_run(photos: Path, tmp_path: Path) -> None:
    before = shards(dm.bulk(sequential_pairs(photos, 1), photos, tmp_path / "run", **SETTINGS))
    run = dm.bulk(exhaustive_pairs(photos), photos, tmp_path / "run", **SETTINGS)
    assert before.items() <= shards(run).items()
    assert len(run) == 10 and len({frozenset(pair.names) for pair in run}) == 10


def test_pairs_of_changed_images_are_matched_again_and_of_copied_ones_not(photos: Path, tmp_path: Path) -> None:
    pairs = exhaustive_pairs(photos)
    assert len(matched_again(photos, tmp_path / "run", pairs=pairs)) == 10
    for path in photos.rglob("*.*"):
        os.utime(path, ns=(0, 0))
    assert matched_again(photos, tmp_path / "run", pairs=pairs) == []
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(photos / "wide.png")
    assert len(matched_again(photos, tmp_path / "run", pairs=pairs)) == 4
    run = RunFolder(tmp_path / "run")
    assert all(pair.matches.size1 == (64, 64) for pair in run if pair.names[1] == "wide.png")


def test_a_folder_without_the_images_is_refused_and_the_run_kept(photos: Path, tmp_path: Path) -> None:
    pairs = sequential_pairs(photos, 1)
    before = shards(dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS))
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "nowhere"):
        with pytest.raises(DeepMatchingError, match="has none of the images, such as 'left side/"):
            dm.bulk(pairs, tmp_path / folder, tmp_path / "run", **SETTINGS)
    assert shards(tmp_path / "run") == before


def test_failures_are_recorded_once_and_tried_again_on_request(photos: Path, tmp_path: Path) -> None:
    pairs = [*sequential_pairs(photos, 1), ("wide.png", "missing.png")]
    run = dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS)
    assert list(run.failures()) == [("wide.png", "missing.png")]
    assert matched_again(photos, tmp_path / "run", pairs=pairs) == []
    (report,) = matched_again(photos, tmp_path / "run", pairs=pairs, retry=True)
    assert list(report.failures) == [("wide.png", "missing.png")]
    (photos / "missing.png").write_bytes((photos / "wide.png").read_bytes())  # a file that appears has changed
    assert dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS).failures() == {}


def test_what_a_killed_run_left_half_written_is_removed(photos: Path, tmp_path: Path) -> None:
    before = shards(dm.bulk(sequential_pairs(photos, 1), photos, tmp_path / "run", **SETTINGS))
    (tmp_path / "run" / SHARDS / f".deepmatching-{'0' * 32}.npz").write_bytes(b"half")
    assert matched_again(photos, tmp_path / "run") == [] and shards(tmp_path / "run") == before


def test_damaged_files_of_a_run_are_one_sentence(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match="There is no run in"):
        RunFolder(tmp_path)
    run = dm.bulk(sequential_pairs(photos, 1), photos, tmp_path / "run", **SETTINGS)
    first, second = sorted((run.path / SHARDS).iterdir())[:2]
    first.write_bytes(second.read_bytes())
    with pytest.raises(DeepMatchingError, match="is not a shard of this run"):
        list(run)
    manifest = run.path / MANIFEST
    for change in ({"pairs": [[0, 99]]}, {"ends": [1]}, {"format": "other"}, {"names": 1}):
        (tmp_path / MANIFEST).write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
        with pytest.raises(DeepMatchingError, match="is not the manifest of a run"):
            RunFolder(tmp_path)


def test_a_shard_keeps_confidences_where_matches_have_them(tmp_path: Path) -> None:
    points = torch.rand(3, 2)
    pair = MatchedPair(("a", "b"), Matches(points, points + 1, torch.rand(3), (4, 4), (4, 4)))
    write_shard(tmp_path / "a.npz", [pair, pair])
    assert "confidence" not in np.load(tmp_path / "a.npz")
    judged = replace(pair.matches, confidence=torch.tensor([0.1, 0.2, 0.3]))
    write_shard(tmp_path / "b.npz", [replace(pair, matches=judged)])
    np.testing.assert_allclose(np.load(tmp_path / "b.npz")["confidence"], [0.1, 0.2, 0.3])


#: Matches 2,000 pairs of as many small images, and prints the peak of the memory after 800 and after all of them.
_MANY_PAIRS = """
import sys
import deepmatching as dm
import torch
from deepmatching.evaluation.speed import peak_memory

torch.set_num_threads(1)
peaks = {}
def look(progress, report):
    peaks[progress.done] = peak_memory(torch.device("cpu"))
pairs = [(f"{n}.png", f"{n + 1}.png") for n in range(2000)]
dm.bulk(pairs, *sys.argv[1:], model="hog", radius=8, device="cpu", memory=160_000_000, on_shard=look)
print(peaks[800], peaks[2000])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_pairs(tmp_path: Path) -> None:
    """A quarter of the memory that is allowed, 40 MB, may hold descriptors: those of 650 images of 61 kB."""
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for n in range(2001):
        Image.fromarray(generator.integers(0, 256, (80, 96), np.uint8)).save(folder / f"{n}.png", compress_level=0)
    command = [sys.executable, "-c", _MANY_PAIRS, str(folder), str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    before, after = map(int, result.stdout.split())
    assert after - before < 10e6  # keeping all descriptors would take 73 MB more
    run = RunFolder(tmp_path / "run")
    assert len(run) == sum(1 for _ in run) == 2000


def test_a_least_confidence_leaves_out_matches_and_belongs_to_the_settings(photos: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "model": "compact"}
    pairs = sequential_pairs(photos, 1)
    whole = dm.bulk(pairs, photos, tmp_path / "whole", **settings)
    some = dm.bulk(pairs, photos, tmp_path / "some", min_confidence=0.5, **settings)
    for all_of_it, kept in zip(whole, some, strict=True):
        assert all_of_it.matches.confidence is not None
        assert torch.equal(kept.matches.keypoints1, all_of_it.matches.filter(0.5).keypoints1)
    with pytest.raises(DeepMatchingError, match="min_confidence"):
        dm.bulk(pairs, photos, tmp_path / "some", **settings)
    with pytest.raises(DeepMatchingError, match="does not judge its matches"):
        dm.bulk(pairs, photos, tmp_path / "hog", min_confidence=0.5, **SETTINGS)


@pytest.mark.slow
def test_a_failed_match_is_searched_unless_a_radius_is_given(tmp_path: Path) -> None:
    picture, pairs = draw_photo(0, 128, 128), [("a.png", "b.png")]
    write_image(tmp_path / "a.png", picture)
    write_image(tmp_path / "b.png", np.rot90(picture, 2))
    for given, is_searched in (({}, True), ({"radius": 80}, False), ({"auto": False}, False)):
        (found,) = dm.bulk(pairs, tmp_path, tmp_path / f"run{len(given)}", restart=True, device="cpu", **given)
        assert (found.matches.transformation is not None) == is_searched


def test_masks_are_a_setting_of_the_run_and_must_be_there(photos: Path, tmp_path: Path) -> None:
    pairs = sequential_pairs(photos, 1)
    with pytest.raises(DeepMatchingError, match=r"no mask of an image.*\.png"):
        dm.bulk(pairs, photos, tmp_path / "run", masks=photos, **SETTINGS)
    assert not (tmp_path / "run").exists()
    (tmp_path / "masks").mkdir()
    Image.new("L", (64, 48)).save(tmp_path / "masks" / "photo 1.png.png")
    run = dm.bulk(pairs, photos, tmp_path / "run", masks=tmp_path / "masks", **SETTINGS)
    assert all((len(pair.matches) == 0) == ("photo 1.png" in pair.names) for pair in run)
    with pytest.raises(DeepMatchingError, match="masks"):
        dm.bulk(pairs, photos, tmp_path / "run", **SETTINGS)


def test_pairs_of_changed_masks_are_matched_again(photos: Path, tmp_path: Path) -> None:
    pairs, masks, run = sequential_pairs(photos, 1), tmp_path / "masks", tmp_path / "run"
    masks.mkdir()
    Image.new("L", (64, 48)).save(masks / "photo 1.png.png")
    dm.bulk(pairs, photos, run, masks=masks, **SETTINGS)
    assert not matched_again(photos, run, masks=masks)
    Image.new("L", (64, 48), 255).save(masks / "photo 1.png.png")
    assert sum(report.matches for report in matched_again(photos, run, masks=masks)) > 0
    assert all(len(pair.matches) for pair in RunFolder(run))
    Image.new("L", (64, 48)).save(masks / "wide.png.png")  # a mask that appears has changed
    assert matched_again(photos, run, masks=masks)
    manifest = json.loads((run / MANIFEST).read_text())
    del manifest["mask_stamps"]  # as older runs lack them
    (run / MANIFEST).write_text(json.dumps(manifest))
    assert not matched_again(photos, run, masks=masks)
