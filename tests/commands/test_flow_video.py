"""``deepmatching flow VIDEO -o FLOW.mp4``, called as a function."""

import re
from pathlib import Path
from typing import Any

import pytest

from deepmatching.commands import messages
from deepmatching.commands.flow import flow
from deepmatching.errors import DeepMatchingError
from deepmatching.io.video import open_frames, write_video
from helpers.fake_datasets import moved, texture, write_image


def run(source: Path, **options: Any) -> None:
    flow(source, **{"device": "cpu", "model": "hog", "radius": "16", "edges": "gradient", **options})


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    """Four frames of one motion."""
    for number in range(4):
        write_image(tmp_path / "frames" / f"{number}.png", moved(texture(), number))
    return tmp_path / "frames"


def test_a_video_is_drawn_without_any_flow_file(
    frames: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "LINES_EVERY", -1.0)
    write_video(tmp_path / "clip.avi", [moved(texture(), number) for number in range(4)], 25.0)
    before = set(tmp_path.iterdir())
    for source, name, style, shape in (
        (frames, "above.mp4", None, (128, 80, 3)),
        (tmp_path / "clip.avi", "arrows.avi", "arrows", (64, 80, 3)),
    ):
        run(source, output=tmp_path / name, style=style)
        drawn = list(open_frames(tmp_path / name).between(0, 3))
        assert len(open_frames(tmp_path / name)) == 3 and tuple(drawn[0].permute(1, 2, 0).shape) == shape
        said = capsys.readouterr().err
        assert f"{name}, 3 frames, " in said and re.search(r"frames: 1 of 3, [0-9.]+ frames a second", said)
    assert set(tmp_path.iterdir()) - before == {tmp_path / "above.mp4", tmp_path / "arrows.avi"}
    assert open_frames(tmp_path / "arrows.avi").rate == 25


def test_an_interrupted_video_leaves_nothing(frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deepmatching.flow.sequence.draw_frame", interrupted)
    before = set(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        run(frames, output=tmp_path / "f.mp4")
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output": "f.flo"}, "video format of .*f.flo"),
        ({"output": "f.mp4", "out": "flows"}, "--out is for flow files"),
        ({"output": "f.mp4", "draw": "g.mp4"}, "--draw is for flow files"),
        ({"output": "clip.avi"}, "is an input"),
        ({"out": "flows", "style": "arrows"}, "--style is for a video"),
        ({}, "--out DIR or -o FLOW.mp4"),
    ],
)
def test_a_video_that_cannot_be_drawn_is_refused(options: dict[str, str], words: str, tmp_path: Path) -> None:
    write_video(tmp_path / "clip.avi", [texture(), texture()], 25.0)
    given = {name: value if name == "style" else tmp_path / value for name, value in options.items()}
    with pytest.raises(DeepMatchingError, match=words):
        run(tmp_path / "clip.avi", **given)
    assert {path.name for path in tmp_path.iterdir()} == {"clip.avi"}
