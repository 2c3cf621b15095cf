from pathlib import Path

import cv2
import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from edge_network.bsds import read_split


@pytest.fixture
def boundaries() -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(3, 20, 30)) < 0.1


@pytest.fixture
def root(tmp_path: Path, boundaries: np.ndarray) -> Path:
    """One photograph with three annotators, the last of whom drew nothing."""
    boundaries[2] = False
    for folder in ("images/val", "boundaries/val"):
        (tmp_path / folder).mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "images/val/12.jpg"), np.full((20, 30, 3), (255, 0, 0), np.uint8))  # blue
    cv2.imwrite(str(tmp_path / "boundaries/val/12.png"), (boundaries[0] + 2 * boundaries[1]).astype(np.uint8))
    (tmp_path / "boundaries/val/annotators.txt").write_text("12 3\n")
    return tmp_path


def test_every_bit_is_an_annotator(root: Path, boundaries: np.ndarray) -> None:
    (photograph,) = read_split(root, "val")
    assert photograph.name == "12"
    assert photograph.image[0, 0, 2] > 240 and photograph.image[0, 0, 0] < 15  # RGB
    np.testing.assert_array_equal(photograph.boundaries, boundaries)
    np.testing.assert_allclose(photograph.consensus(), boundaries.mean(axis=0))


def test_the_published_archive(root: Path, boundaries: np.ndarray) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    (root / "boundaries").rename(root / "elsewhere")
    (root / "groundTruth/val").mkdir(parents=True)
    cells = np.empty((1, 3), object)
    for k, boundary in enumerate(boundaries):
        cells[0, k] = {"Segmentation": np.ones((20, 30), np.uint16), "Boundaries": boundary.astype(np.uint8)}
    scipy_io.savemat(root / "groundTruth/val/12.mat", {"groundTruth": cells})
    (photograph,) = read_split(root, "val")
    np.testing.assert_array_equal(photograph.boundaries, boundaries)
    (root / "groundTruth/val/12.mat").write_text("not MATLAB")
    with pytest.raises(DeepMatchingError, match="not a ground truth"):
        list(read_split(root, "val"))


def test_what_is_missing_is_named(root: Path) -> None:
    with pytest.raises(DeepMatchingError, match="no photographs"):
        list(read_split(root, "train"))
    listed = root / "boundaries/val/annotators.txt"
    for change, words in (
        (lambda: listed.write_text("12 many\n"), "NAME NUMBER"),
        (lambda: listed.write_text("13 3\n"), "not listed"),
        (listed.unlink, "number of annotators"),
        (lambda: (root / "boundaries").rename(root / "elsewhere"), "neither"),
    ):
        change()
        with pytest.raises(DeepMatchingError, match=words):
            list(read_split(root, "val"))


def test_a_map_of_another_size(root: Path) -> None:
    cv2.imwrite(str(root / "boundaries/val/12.png"), np.zeros((20, 31), np.uint8))
    with pytest.raises(DeepMatchingError, match="differ from it in size"):
        list(read_split(root, "val"))


def test_the_real_data_set(shared: Path) -> None:
    photographs = list(read_split(shared / "photos/bsds500", "val"))
    assert len(photographs) == 100
    assert all(4 <= len(photograph.boundaries) <= 8 for photograph in photographs)
    assert all(photograph.boundaries.any(axis=(1, 2)).sum() >= 4 for photograph in photographs)
