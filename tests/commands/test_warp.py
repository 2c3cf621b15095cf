"""``deepmatching warp``, called as a function."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from deepmatching.commands.warp import warp

Pictures = tuple[Path, Path]


def run(pictures: Pictures, output: Path, **options: Any) -> np.ndarray:
    warp(*pictures, output=output, model="hog", radius="16", device="cpu", **options)
    picture = cv2.imread(str(output), cv2.IMREAD_UNCHANGED)
    assert picture is not None
    return picture


@pytest.mark.parametrize("geometry", [None, "homography"])
def test_the_warp_of_a_moved_image_is_the_first_and_transparent_where_that_has_left(
    pictures: Pictures, tmp_path: Path, geometry: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    warped, first = run(pictures, tmp_path / "w.png", geometry=geometry), cv2.imread(str(pictures[0]))
    assert first is not None and warped.shape == (64, 96, 4)
    assert np.abs(warped[8:-8, 8:-12, :3].astype(int) - first[8:-8, 8:-12]).mean() < 6
    assert (warped[8:-8, 8:-12, 3] == 255).all() and not warped[:2, :, 3].any() and not warped[:, -4:, 3].any()
    said = capsys.readouterr().err
    assert f"{(warped[..., 3] > 0).mean():.0%} of the pixels are visible" in said and f"wrote {tmp_path}/w.png" in said


def test_a_view_mixes_both_images(pictures: Pictures, tmp_path: Path) -> None:
    difference = run(pictures, tmp_path / "d.png", geometry="homography", view="difference")
    assert difference.shape == (64, 96, 3) and difference[8:-8, 8:-12].mean() < 6


def test_a_picture_between_two_frames_has_half_of_the_motion(pictures: Pictures, tmp_path: Path) -> None:
    middle, first = run(pictures, tmp_path / "m.png", between=0.5), cv2.imread(str(pictures[0]))
    assert first is not None and middle.shape == (64, 96, 3)
    moved = first[2:, :-3]  # by (3, -2), half of (6, -4)
    assert np.abs(middle[:-2, 3:].astype(int) - moved)[8:-8, 8:-8].mean() < 6


@pytest.mark.parametrize("of_flow", ["warp -o w.png", "warp -o w.png --between 0.5", "match -o p.csv --points p.txt"])
def test_what_follows_a_flow_that_is_probably_wrong_gets_a_warning(
    of_flow: str,
    pictures: Pictures,
    tmp_path: Path,
    command: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    rng: np.random.Generator,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.txt").write_text("20 30\n")
    cv2.imwrite("other.png", rng.integers(0, 256, (64, 96, 3)))
    for second, expected in (("b.png", False), ("other.png", True)):
        said = command(*of_flow.split(), "a.png", second, "--model", "hog", "--radius", 16, "--device", "cpu")
        assert ("warning: this is probably wrong" in said) == expected, said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("warp a.png b.png -o a.png", "is an input"),
        ("warp a.png b.png -o w.flo", "image format of 'w.flo'"),
        ("warp a.png b.png -o none/w.png", "there is no folder"),
        ("warp a.png c.png -o w.png", "c.png"),
        ("warp a.png b.png -o w.png --view both", "both"),
        ("warp a.png b.png -o w.png --between 1.5", "between"),
        ("warp a.png b.png -o w.png --between 0.5 --view blend", "--view is for warps"),
        ("warp a.png b.png -o w.png --between 0.5 --geometry homography", "--geometry is for warps"),
        ("warp a.png clear.png -o w.png --use-alpha", "mask"),
        ("warp a.png small.png -o w.png --between 0.5", "96x64 and 64x48 pixels"),
        ("warp a.png b.png -o w.png --min-confidence 0.5", "--min-confidence is for --geometry"),
    ],
)
def test_mistakes_are_refused(
    arguments: str, words: str, pictures: Pictures, tmp_path: Path, is_refused: Callable[[str, str], None]
) -> None:
    cv2.imwrite(str(tmp_path / "small.png"), np.zeros((48, 64), np.uint8))
    cv2.imwrite(str(tmp_path / "clear.png"), np.zeros((64, 96, 4), np.uint8))
    is_refused(arguments, words)
