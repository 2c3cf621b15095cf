"""Edge maps from files."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.flow.edges import load_edges

SIZE = (6, 9)


@pytest.fixture
def edges() -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 1, SIZE).astype(np.float32)


@pytest.mark.parametrize("name", ["edges", "edges.bin", "edges.edge"])
def test_raw_floats_and_npy_come_back_exactly(tmp_path: Path, edges: np.ndarray, name: str) -> None:
    edges[2, 3] = 1.2  # a small overshoot is clipped
    edges.astype("<f4").tofile(tmp_path / name)
    np.save(tmp_path / "edges.npy", edges)
    for path in (tmp_path / name, tmp_path / "edges.npy"):
        loaded = load_edges(path, SIZE)
        assert loaded.dtype == np.float32
        np.testing.assert_array_equal(loaded, np.minimum(edges, 1))


@pytest.mark.parametrize(("dtype", "white"), [(np.uint8, 255), (np.uint16, 65535)])
def test_pictures_are_divided_by_white(tmp_path: Path, edges: np.ndarray, dtype: type, white: int) -> None:
    picture = np.rint(edges * white).astype(dtype)
    cv2.imwrite(str(tmp_path / "edges.png"), picture)
    np.save(tmp_path / "edges.npy", picture)
    np.testing.assert_allclose(load_edges(tmp_path / "edges.png", SIZE), picture / white, atol=1e-6)
    np.testing.assert_allclose(load_edges(tmp_path / "edges.npy", SIZE), picture / white, atol=1e-6)


def test_a_grey_picture_of_three_channels_is_fine_and_a_colour_picture_is_not(
    tmp_path: Path, edges: np.ndarray
) -> None:
    grey = np.rint(edges * 255).astype(np.uint8)
    cv2.imwrite(str(tmp_path / "grey.png"), np.repeat(grey[:, :, None], 3, axis=2))
    np.testing.assert_allclose(load_edges(tmp_path / "grey.png", SIZE), grey / 255, atol=1e-6)
    cv2.imwrite(str(tmp_path / "colour.png"), np.stack([grey, 255 - grey, grey], axis=2))
    with pytest.raises(DeepMatchingError, match="colour picture"):
        load_edges(tmp_path / "colour.png", SIZE)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((9, 6)), "transposed"),
        (np.zeros((5, 9)), r"shape \(5, 9\)"),
        (np.full(SIZE, np.nan), "NaN"),
        (np.full(SIZE, -0.1), "from -0.1"),
        (np.full(SIZE, 255.0), "to 255"),
        (np.zeros(SIZE, np.int32), "dtype int32"),
        (np.zeros(SIZE, "U3"), "array of numbers"),
        (np.array([{}], dtype=object), "array of numbers"),
        (np.full(SIZE, 1e300), "infinite"),  # in float32
    ],
)
@pytest.mark.filterwarnings("error")
def test_arrays_that_cannot_be_edges_are_refused(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "edges.npy", array)
    with pytest.raises(DeepMatchingError, match=message):
        load_edges(tmp_path / "edges.npy", SIZE)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, edges: np.ndarray) -> None:
    (tmp_path / "short.bin").write_bytes(edges.tobytes()[:-4])
    with pytest.raises(DeepMatchingError, match=r"212 bytes.*9 x 6 pixels takes 216"):
        load_edges(tmp_path / "short.bin", SIZE)
    with (tmp_path / "archive.npy").open("wb") as file:
        np.savez(file, edges=edges)
    with pytest.raises(DeepMatchingError, match="archive of arrays"):
        load_edges(tmp_path / "archive.npy", SIZE)
    for name in ("missing.npy", "missing.bin", "missing.png"):
        with pytest.raises(DeepMatchingError, match="There is no edge map"):
            load_edges(tmp_path / name, SIZE)
