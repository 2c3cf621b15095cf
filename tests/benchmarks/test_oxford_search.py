from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from deepmatching.geometry.homographies import centre, similarity
from helpers.benchmarks import output_of
from helpers.fake_datasets import write_image
from helpers.synthetic_pictures import draw_photo


@pytest.mark.slow
def test_a_turned_pair_is_matched_by_the_search_alone(tmp_path: Path) -> None:
    picture = draw_photo(0, 160, 208)
    write_image(tmp_path / "a.png", picture)
    write_image(tmp_path / "b.png", np.ascontiguousarray(np.rot90(picture, -1)))
    np.savetxt(tmp_path / "h.txt", similarity(90, 1, centre((160, 208)), centre((208, 160))))
    entry = {"scene": "noise", "image0": "a.png", "image1": "b.png", "homography": "h.txt"}
    (tmp_path / "pairs.json").write_text(json.dumps([entry]))
    printed = output_of("oxford_search", tmp_path / "pairs.json", "--cache", tmp_path / "cache")
    result = json.loads((tmp_path / "cache" / "0.json").read_text())
    assert "noise b" in printed and result["rotation"] == pytest.approx(90) and result["zoom"] == pytest.approx(1)
    assert result["search"][0] > 90 > 10 > result["plain"][2]
    assert all(0 <= value <= 100 for method in ("SIFT matches", "SIFT homography") for value in result[method])
