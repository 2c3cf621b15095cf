"""The adapter to Ray Data: as Ray calls it, and inside Ray where that is installed."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import deepmatching as dm
from deepmatching.bulk_matching.pairs import exhaustive_pairs

arrow = pytest.importorskip("pyarrow")

SETTINGS: dict[str, Any] = {"model": "hog", "radius": 16, "device": "cpu"}


@pytest.fixture
def rows(tmp_path: Path, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Write four pictures; return all their pairs, and one with a file that is not there."""
    for number in range(4):
        pixels = rng.integers(0, 256, (48, 64, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    pairs = [*exhaustive_pairs(tmp_path), ("3.png", "lost.png")]
    return [{"id": n, **{f"image{s}": str(tmp_path / p[s]) for s in (0, 1)}} for n, p in enumerate(pairs)]


def test_a_batch_of_paths_gives_the_matches_of_the_matcher_in_order(rows: list[dict[str, Any]]) -> None:
    from deepmatching.plugins.ray_data import Match

    match = Match(**SETTINGS)
    shuffled = [rows[place] for place in (6, 3, 0, 5, 1, 4, 2)]
    found = match(arrow.Table.from_pylist(shuffled)).to_pylist()
    assert [row["id"] for row in found] == [row["id"] for row in shuffled]
    assert match.described == 4  # once each
    matcher = dm.DeepMatcher.from_pretrained(**SETTINGS)
    for row in found[1:]:
        expected = matcher.match(row["image0"], row["image1"]).keypoints1
        np.testing.assert_array_equal(np.float32([row["x1"], row["y1"]]).T, expected.numpy())
    assert "lost.png" in found[0]["failure"] and found[0]["x0"] == []
    match({name: np.array([row[name] for row in rows[:6]], object) for name in rows[0]})
    assert match.described == 4  # kept from the batch before


def test_contents_of_files_give_the_same_and_are_left_out(rows: list[dict[str, Any]]) -> None:
    from deepmatching.plugins.ray_data import Match

    expected = Match(**SETTINGS)(arrow.Table.from_pylist(rows[:6]))
    contents = [
        {name: Path(value).read_bytes() if name != "id" else value for name, value in row.items()} for row in rows[:6]
    ]
    match = Match(**SETTINGS)
    found = match(arrow.Table.from_pylist([*contents, {**contents[0], "image1": b"no picture"}]))
    assert found.slice(0, 6).equals(expected.drop_columns(["image0", "image1"]))
    assert match.described == 4 and "cannot be decoded" in found["failure"][6].as_py()


@pytest.mark.slow
def test_ray_data_maps_batches_with_it(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("ray.data")
    from deepmatching.plugins.ray_data import Match

    monkeypatch.setenv("PYTHONPATH", str(Path(dm.__file__).parents[1]))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    except Exception as error:
        if "timed out" not in str(error):
            raise
        pytest.skip("Ray does not start in time here")
    try:
        ordered = ray.data.from_items(rows, override_num_blocks=2)
        found = ordered.map_batches(Match, fn_constructor_kwargs=SETTINGS, batch_size=4, concurrency=1).take_all()
    finally:
        ray.shutdown()
    expected = Match(**SETTINGS)(arrow.Table.from_pylist(rows)).to_pylist()
    found.sort(key=lambda row: row["id"])  # Ray promises no order
    assert [row["id"] for row in found] == [row["id"] for row in rows] and os.path.isabs(found[0]["image0"])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one["x1"], other["x1"])
