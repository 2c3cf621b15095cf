"""Pairs that come line by line: each line is answered, whatever is wrong with it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deepmatching.commands.answers import answers, parse_request
from deepmatching.errors import DeepMatchingError
from deepmatching.matches import Matches
from helpers.processes import errors_of


def test_two_names_and_a_json_object_are_the_same_request() -> None:
    assert parse_request(b"a.png\tmy b.png\r\n", 1) == {"image0": "a.png", "image1": "my b.png"}
    request = {"image0": "a.png", "image1": "my b.png", "output": "ab.npz", "id": [7]}
    assert parse_request(json.dumps(request).encode(), 1) == request


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"a.png", "Line 3 .* does not name two images"),
        (b'{"image0": "a.png"', "Line 3 is not JSON"),
        (b'{"image0": "a.png"}', "Line 3 needs a path as image1, not None"),
        (b'{"image0": "a.png", "image1": 5}', "image1, not 5"),
        (b'{"image0": "a", "image1": "b", "output": null}', "output, not None"),
        (b'{"image0": "a", "image1": "b", "mask1": [0]}', "mask1, not"),
        (b'{"image0": "a", "image1": "b", "radius": 5}', "Line 3 has 'radius'"),
    ],
)
def test_what_is_no_pair_is_one_sentence(line: bytes, words: str) -> None:
    with pytest.raises(DeepMatchingError, match=words):
        parse_request(line, 3)


def test_an_error_is_an_answer_and_the_next_line_is_answered() -> None:
    def match(request: dict[str, Any]) -> dict[str, Any]:
        if request["image0"] == "bad":
            raise DeepMatchingError("No.")
        if request["image0"] == "large":
            raise MemoryError
        return {"matches": 3}

    lines = [b"bad b\n", b"\n", b"large b\n", b"junk\n", b"a b"]
    found = [json.loads(line) for line in answers(lines, match)]
    assert [answer["line"] for answer in found] == [1, 3, 4, 5]
    assert found[0] == {"line": 1, "image0": "bad", "image1": "b", "error": "No."}
    assert "memory" in found[1]["error"] and "Line 4" in found[2]["error"]
    assert found[3] == {"line": 5, "image0": "a", "image1": "b", "matches": 3}


def test_a_bug_is_no_answer() -> None:
    with pytest.raises(ZeroDivisionError):
        list(answers([b"a b\n"], lambda request: {"matches": 1 // 0}))


@pytest.mark.slow
def test_one_process_answers_one_pair_after_the_other(pictures: tuple[Path, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deepmatching", "match", "-", "--radius", "16", "--geometry", "homography"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=tmp_path, **pipes) as process:  # type: ignore[call-overload]

        def ask(line: str) -> dict[str, Any]:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return dict(json.loads(process.stdout.readline()))  # before the next line is written

        assert "missing.png" in ask("a.png missing.png")["error"]
        found = ask("a.png b.png")
        assert "a.png" in ask('{"image0": "a.png", "image1": "b.png", "output": "a.png"}')["error"]
        written = ask('{"image0": "a.png", "image1": "b.png", "output": "m.npz", "id": "second"}')
        masked = ask('{"image0": "a.png", "image1": "b.png", "mask0": "20,10 60,10 60,40 20,40"}')
        rest, errors = process.communicate()
    result = subprocess.CompletedProcess(command, process.returncode, rest, errors)
    assert (result.returncode, result.stdout, errors_of(result)) == (0, "", [])
    matches = Matches.load(tmp_path / "m.npz")
    assert written["id"] == "second" and written["matches"] == len(matches) > 50 and "keypoints0" not in written
    assert np.array_equal(np.array(found["keypoints1"], np.float32), matches.keypoints1)
    assert 5 < len(masked["scores"]) < 30 and min(masked["keypoints0"])[0] > 20
    assert found["geometry"] == written["geometry"] and found["geometry"]["matches"] == len(matches)
