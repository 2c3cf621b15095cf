"""Files of points, and points that a caller passes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deepmatching.errors import DeepMatchingError
from deepmatching.io.points import check_points, read_points, write_table

PLACES = [[3.25, 4], [-0.5, 0]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.txt", "# x y\n3.25 4\n-0.5 0 7 left\n\n"),
        ("p.txt", "3.25,4\n-0.5;0\n"),
        ("p.csv", "3.25,4\n-0.5,0\n"),
        ("p.csv", '\ufeffname,"Y",X\nnose,4,3.25\near,0,-0.5\n'),
    ],
)
def test_points_are_read_from_lines(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_points(tmp_path / name).tolist() == PLACES


def test_points_are_read_from_an_array_that_is_not_pickled(tmp_path: Path) -> None:
    np.save(tmp_path / "p.npy", np.float32(PLACES))
    assert read_points(tmp_path / "p.npy").tolist() == PLACES
    np.save(tmp_path / "p.npy", np.array([{"x": 1}], object), allow_pickle=True)
    with pytest.raises(DeepMatchingError, match="not hold an array of numbers"):
        read_points(tmp_path / "p.npy")


@pytest.mark.parametrize(
    ("text", "words"),
    [("a b\n", "begin with two numbers"), ("1\n", "begin with two numbers"), ("#\n", "no points"), ("", "empty file")],
)
def test_a_file_without_points_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "p.txt").write_text(text)
    with pytest.raises(DeepMatchingError, match=words):
        read_points(tmp_path / "p.txt")


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([], r"shape \(0,\)"),
        ([1.0, 2.0], r"shape \(2,\)"),
        (np.zeros((2, 3)), r"shape \(2, 3\)"),
        ([["a", "b"]], "of x and y"),
        ([[1 + 2j, 3]], "of x and y"),
        ([[1, np.nan]], r"The point \(1, nan\)"),
        ([[1, 2], [7.6, 2]], r"The point \(7.6, 2\) is not in the first image of 8x6 pixels"),
        ([[0, -0.6]], r"The point \(0, -0.6\)"),
        (np.ma.masked_equal([[1, 2]], 2), "masked"),
    ],
)
def test_what_is_not_a_point_of_the_image_is_refused(points: Any, words: str) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        check_points(points, (6, 8))


def test_points_of_a_tensor_may_lie_on_the_border() -> None:
    points = torch.tensor([[-0.5, 0], [7.5, 5.5]], requires_grad=True)
    assert check_points(points, (6, 8)).tolist() == [[-0.5, 0], [7.5, 5.5]]


def test_a_table_is_text_comma_separated_or_json(tmp_path: Path) -> None:
    for suffix in (".txt", ".csv", ".json"):
        write_table(tmp_path / f"t{suffix}", ("a", "b"), [(1, 0.1), (2.5, 1e6)])
    assert (tmp_path / "t.txt").read_text() == "1 0.1\n2.5 1000000\n"
    assert (tmp_path / "t.csv").read_text() == "a,b\n1,0.1\n2.5,1000000\n"
    assert json.loads((tmp_path / "t.json").read_text())["points"] == [[1, 0.1], [2.5, 1e6]]
    with pytest.raises(DeepMatchingError, match=r"\.txt, \.csv or \.json"):
        write_table(tmp_path / "t.npz", ("a",), [])
