from pathlib import Path

import cv2
import numpy as np
import pytest

from helpers.benchmarks import output_of
from helpers.fake_datasets import write_image


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    """BSDS500 with two photographs of a square, whose outline two annotators drew a pixel apart."""
    for folder in ("images/test", "boundaries/test"):
        (tmp_path / folder).mkdir(parents=True)
    photograph = np.full((48, 64, 3), 60, np.uint8)
    photograph[12:36, 16:48] = 200
    outlines = np.zeros((48, 64), np.uint8)
    for annotator, margin in enumerate((0, 1)):
        drawn = cv2.rectangle(np.zeros((48, 64), np.uint8), (16 - margin, 12 - margin), (47 + margin, 35 + margin), 1)
        outlines += drawn << annotator
    for name in ("1", "2"):
        write_image(tmp_path / f"images/test/{name}.jpg", photograph)
        write_image(tmp_path / f"boundaries/test/{name}.png", outlines)
    (tmp_path / "boundaries/test/annotators.txt").write_text("1 2\n2 2\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(cv2, "ximgproc"), reason="this OpenCV has no contrib modules")
def test_the_network_stands_beside_simple_detectors_and_people(annotated: Path) -> None:
    printed = output_of("edges", annotated, "--thresholds", 5, "--tolerance", 0.03, "--limit", 1)
    assert "1 photograph" in printed
    rows = {line.split("│")[1].strip(): line.split("│")[2:] for line in printed.splitlines() if "│" in line}
    assert set(rows) == {"Sobel", "Canny", "gradient_edges", "network (shipped)", "people"}
    assert all(0.5 < float(values[0]) <= 1 for values in rows.values())
