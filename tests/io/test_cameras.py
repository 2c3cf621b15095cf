"""Camera matrices as numbers and in files."""

import json
from pathlib import Path

import numpy as np
import pytest

from deepmatching.errors import DeepMatchingError
from deepmatching.io.cameras import parse_camera, read_camera

CAMERA = [[700.0, 0, 320], [0, 710, 240.5], [0, 0, 1]]


def test_four_numbers_and_every_kind_of_file_give_the_same_matrix(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "k.txt", CAMERA)
    np.save(tmp_path / "k.npy", CAMERA)
    (tmp_path / "k.json").write_text(json.dumps(CAMERA))
    for text in ("700,710,320,240.5", *(str(tmp_path / f"k.{suffix}") for suffix in ("txt", "npy", "json"))):
        assert parse_camera(text).tolist() == CAMERA


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("k.txt", "1 0 0 0 1 0", "k.txt' does not hold a 3 x 3"),
        ("k.txt", "1 0 0 0 1 0 0 0 one", "k.txt' does not hold a 3 x 3"),
        ("k.json", "[[1, 0], [0, 1]]", "k.json' does not hold a 3 x 3"),
        ("k.json", "[[1, 0], [0]]", "k.json' does not hold a 3 x 3"),
        ("k.json", '{"K": 1}', "k.json' does not hold a 3 x 3"),
        ("k.xml", "1", "k.xml"),
    ],
)
def test_files_without_a_matrix_are_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DeepMatchingError, match=words):
        read_camera(tmp_path / name)


def test_a_missing_file_and_too_few_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DeepMatchingError, match=r"missing\.txt"):
        parse_camera(str(tmp_path / "missing.txt"))
    with pytest.raises(DeepMatchingError, match="FX,FY,CX,CY"):
        parse_camera("700,320,240")
