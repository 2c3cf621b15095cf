"""Arrow tables and Parquet files of matched pairs."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.bulk_matching import MatchedPair, exhaustive_pairs
from deepmatching.bulk_matching import arrow as arrow_module
from deepmatching.bulk_matching.arrow import arrow_table, load_pyarrow, write_parquet
from deepmatching.errors import DeepMatchingError
from deepmatching.matches import NO_MATCHES
from helpers.bulk_runs import SETTINGS, matched


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DeepMatchingError, match="pip install pyarrow"):
        load_pyarrow()


def test_a_row_has_the_matches_of_a_pair_or_why_there_are_none() -> None:
    pytest.importorskip("pyarrow")
    judged = matched("a", "b", [[1, 2], [3, 4]], [[5, 6], [7, 8]], [0.5, 1.5], [0.25, 0.75], turned=6)
    plain = matched("c", "d", [[9, 9]], [[8, 8]], [2], size=(10, 20))
    failed = MatchedPair(("e", "f"), NO_MATCHES, failure="No such file.")
    rows = arrow_table([judged, failed, plain]).to_pylist()
    assert rows[0]["x0"] == [1, 3] and rows[0]["y0"] == [2, 4] and rows[0]["x1"] == [5, 7] and rows[0]["y1"] == [6, 8]
    assert rows[0]["score"] == [0.5, 1.5] and rows[0]["confidence"] == [0.25, 0.75] and rows[0]["orientation0"] == 6
    assert rows[1]["failure"] == "No such file." and rows[1]["x0"] == [] and rows[1]["height0"] is None
    assert rows[2]["confidence"] is None and rows[2]["x1"] == [8] and rows[2]["failure"] is None
    assert (rows[2]["image0"], rows[2]["image1"], rows[2]["height1"], rows[2]["width1"]) == ("c", "d", 10, 20)
    assert arrow_table([]).schema == arrow_table([judged]).schema


def test_a_file_has_all_pairs_of_a_run(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(arrow_module, "_ROWS", 4)
    pairs = [*exhaustive_pairs(photos), ("wide.png", "lost.png")]
    run = dm.bulk(pairs, photos, tmp_path / "run", **{**SETTINGS, "model": "compact"})
    count = write_parquet(run, tmp_path / "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet")
    assert parquet.ParquetFile(tmp_path / "all.parquet").num_row_groups == 3
    rows = {(row["image0"], row["image1"]): row for row in table.to_pylist()}
    assert set(rows) == {pair.names for pair in run} and count == sum(len(row["x0"]) for row in rows.values())
    for pair in run:
        row = rows[pair.names]
        found = np.float32([row["x1"], row["y1"]]).T
        assert torch.equal(torch.from_numpy(found).reshape(-1, 2), pair.matches.keypoints1)
    kept = write_parquet(run, tmp_path / "some.parquet", 0.5)
    assert (
        kept == sum(int((p.matches.confidence >= 0.5).sum()) for p in run if p.matches.confidence is not None) < count
    )


def test_a_run_without_finished_pairs_gives_an_empty_table(photos: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run = dm.bulk(exhaustive_pairs(photos)[:1], photos, tmp_path / "run", **SETTINGS)
    for path in (run.path / "shards").iterdir():
        path.unlink()
    assert write_parquet(run, tmp_path / "none.parquet") == 0
    assert parquet.read_table(tmp_path / "none.parquet").num_rows == 0


def test_matches_without_a_confidence_cannot_be_filtered_by_it(photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    run = dm.bulk(exhaustive_pairs(photos)[:1], photos, tmp_path / "run", **SETTINGS)
    with pytest.raises(DeepMatchingError, match="no confidence"):
        write_parquet(run, tmp_path / "a.parquet", 0.5)
    assert not (tmp_path / "a.parquet").exists()
