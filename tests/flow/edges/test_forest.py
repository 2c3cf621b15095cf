"""OpenCV crashes on a forest with wrong numbers, so none reaches it."""

import gzip
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges import structured_forest_edges
from deepmatching.flow.edges.forest import check_forest
from fuzzing.mutations import mutated

pytest.importorskip("cv2.ximgproc")

#: Two trees with one split each, in the format of OpenCV's converter.
FOREST = """%YAML:1.0

options:
    numberOfTrees: 2
    numberOfTreesToEvaluate: 1
    selfsimilarityGridSize: 5
    stride: 2
    shrinkNumber: 2
    patchSize: 32
    patchInnerSize: 16
    numberOfGradientOrientations: 4
    gradientSmoothingRadius: 0
    regFeatureSmoothingRadius: 2
    ssFeatureSmoothingRadius: 8
    gradientNormalizationRadius: 4

childs:
    - [2,0,0]
    - [2,0,0]

featureIds:
    - [7,0,0]
    - [5000,0,0]

thresholds:
    - [1.500000e-01,0,0]
    - [0.1,0,0]

edgeBoundaries:
    - [0,0,2,4,4]
    - [5,6]

edgeBins:
    - [0,17,34,51,
       68,85]

"""


def test_a_forest_that_opencv_understands_is_used(tmp_path: Path) -> None:
    (tmp_path / "model.yml.gz").write_bytes(gzip.compress(FOREST.encode()))
    (tmp_path / "model.yml").write_text(FOREST)
    image = torch.rand(3, 48, 64)
    with pytest.raises(DeepMatchingError, match="no structured-forest model"):
        structured_forest_edges(image, tmp_path / "missing.yml.gz")
    edges = structured_forest_edges(image, tmp_path / "model.yml.gz")
    assert edges.shape == (48, 64) and edges.max() > 0
    np.testing.assert_array_equal(structured_forest_edges(image, tmp_path / "model.yml"), edges)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("%YAML:1.0", "plain: 1", "not YAML"),
        ("options:", "settings:", "no options"),
        ("edgeBins:", "bins:", "no edgeBins"),
        ("numberOfTrees: 2", "numberOfTrees: 0", "numberOfTrees is missing or out of range"),
        ("numberOfTrees: 2", "numberOfTrees: 3", "different numbers of nodes"),
        ("stride: 2", "stride: 0", "stride"),
        ("shrinkNumber: 2", "shrinkNumber: -2", "shrinkNumber"),
        ("patchSize: 32", "patchSize: 8", "impossible sizes"),
        ("- [2,0,0]\n    - [2,0,0]", "- [2,0,0]\n    - [2,0]", "different numbers of nodes"),
        ("- [2,0,0]", "- [9,0,0]", "childs are out of range"),
        ("- [2,0,0]", "- [1,0,0]", "childs are out of range"),  # its own child: never ends
        ("5000", "50000000", "featureIds are out of range"),
        ("[5,6]", "[5,7]", "edgeBoundaries are out of range"),
        ("[5,6]", "[5]", "edgeBoundaries are out of range"),
        ("[0,0,2,4,4]", "[0,2,0,4,4]", "edgeBoundaries are out of range"),
        ("85]", "100000]", "edgeBins are out of range"),
        ("85]", "1e300]", "edgeBins are out of range"),
        ("85]", "nan]", "edgeBins are not lists of numbers"),
        ("85]", "85x]", "edgeBins are not lists of numbers"),
        ("85]", "8e]", "edgeBins are not lists of numbers"),
        ("85]", "[" * 100_000, "not lists of numbers"),
        ("childs:", "childs: !!map {a: 1}", "not lists of numbers"),
    ],
)
def test_a_forest_with_a_wrong_part_is_refused(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in FOREST
    (tmp_path / "model.yml").write_text(FOREST.replace(old, new))
    with pytest.raises(DeepMatchingError, match=says):
        structured_forest_edges(torch.rand(3, 48, 64), tmp_path / "model.yml")


def test_a_forest_is_not_unpacked_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepmatching.flow.edges.forest.LARGEST_CONTENT", 100)
    (tmp_path / "model.yml.gz").write_bytes(gzip.compress(FOREST.encode()))
    with pytest.raises(DeepMatchingError, match="too large"):
        check_forest(tmp_path / "model.yml.gz")


def test_a_file_that_is_replaced_is_checked_again(tmp_path: Path) -> None:
    (tmp_path / "model.yml").write_text(FOREST)
    check_forest(tmp_path / "model.yml")
    (tmp_path / "model.yml").write_text("%YAML:1.0\na: 1\n")
    with pytest.raises(DeepMatchingError, match="no options"):
        check_forest(tmp_path / "model.yml")


@pytest.mark.slow
def test_damaged_forests_are_refused_or_used_but_do_not_crash(tmp_path: Path) -> None:
    random, image, used = Random(0), torch.rand(3, 34, 34), []
    for number in range(300):
        path = tmp_path / f"{number}.yml"
        path.write_bytes(mutated(FOREST.encode(), random))
        with suppress(DeepMatchingError):
            used.append(structured_forest_edges(image, path))
    assert used and np.isfinite(used).all()
