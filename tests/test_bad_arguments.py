"""Whatever a caller passes, the library answers with its own error, in one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import deepmatching as dm
from deepmatching.alignment import stack
from deepmatching.errors import DeepMatchingError
from deepmatching.flow import interpolate, refine
from deepmatching.flow.edges import check_edges
from deepmatching.geometry.two_view import find_homography
from deepmatching.io.flow import write_flow
from deepmatching.io.images import load_image

GREY = np.full((16, 24), 99, np.uint8)
POINTS = np.ones((3, 2), np.float32)
ONES = np.ones(3, np.float32)
MASKED = np.ma.masked_array(np.ones((3, 2)), mask=np.eye(3, 2))
SEARCHED = {"transformation": [0, 1, 1], "transformations": torch.eye(3).expand(2, 3, 3)}


def matches(**changes: Any) -> dm.Matches:
    return dm.Matches(**{"keypoints0": POINTS, "keypoints1": POINTS, "scores": ONES, **changes})


def closed() -> Image.Image:
    image = Image.fromarray(GREY)
    image.close()
    return image


def matcher() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained("hog", device="cpu", radius=8)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: load_image(torch.zeros(8, 9).to_sparse()), "sparse, nested or meta"),
        (lambda: load_image(torch.zeros(8, 9).to_sparse_csr()), "sparse, nested or meta"),
        (lambda: load_image(torch.zeros(8, 9, device="meta")), "sparse, nested or meta"),
        (lambda: load_image(torch.nested.nested_tensor([torch.zeros(8, 9)] * 3)), "sparse, nested or meta"),
        (lambda: load_image(np.ma.masked_equal(GREY, 99)), "masked"),
        (lambda: load_image(closed()), "closed image"),
        (lambda: load_image(b"a.png"), "is a bytes"),  # type: ignore[arg-type]
        (lambda: matcher().match(None, GREY), "is a NoneType"),  # type: ignore[arg-type]
        (lambda: list(matcher().match_pairs([5])), "two images.*, not 5"),  # type: ignore[list-item]
        (lambda: matcher().draw_scores(GREY, GREY, "ab"), "points must be"),  # type: ignore[arg-type]
        (lambda: matcher().draw_scores(GREY, GREY, [1, 2, 3]), "points must be"),  # type: ignore[list-item]
        (lambda: matcher().draw_scores(GREY, GREY, []), "points must be"),
        (lambda: matcher().draw_scores(GREY, GREY, [(1, np.nan)]), "not in the first image"),
        (lambda: matcher().save(None), "A path must be"),  # type: ignore[arg-type]
        (lambda: dm.DeepMatcher.from_pretrained(None), "A path must be"),  # type: ignore[arg-type]
        (lambda: dm.DeepMatcher.from_pretrained(b"compact"), "A path must be"),  # type: ignore[arg-type]
        (lambda: check_edges(np.ma.masked_equal(GREY, 99), GREY.shape), "masked"),
        (lambda: write_flow("a.flo", np.ma.masked_equal(np.zeros((2, 2, 2)), 0)), "masked"),
        (lambda: matches(keypoints0=MASKED), "keypoints0 has masked"),
        (lambda: matches(keypoints0=[["a", "b"]] * 3), "keypoints0 must be numbers"),
        (lambda: matches(keypoints0=POINTS.astype(complex)), "keypoints0 cannot be of type"),
        (lambda: matches(keypoints0=torch.ones(3, 2).to_sparse()), "sparse, nested or meta"),
        (lambda: matches(keypoints1=POINTS[:2]), r"3 matches need keypoints1 of shape \(3, 2\), not \(2, 2\)"),
        (lambda: matches(confidence=ONES[:2]), r"3 matches need confidence of shape \(3,\), not \(2,\)"),
        (lambda: matches(**{**SEARCHED, "transformation": [0, 1]}), r"3 matches need transformation of shape \(3,\)"),
        (lambda: matches(transformation=[0, 0, 0]), "or neither"),
        (lambda: matches(scores=1.0), r"1 matches need keypoints0 of shape \(1, 2\)"),
        (lambda: matches(**{**SEARCHED, "transformation": [0, 1, 2]}), "one of the 2 transformations"),
        (lambda: matches(**{**SEARCHED, "transformation": [0, 1, -1]}), "one of the 2 transformations"),
        (lambda: matches(**{**SEARCHED, "transformation": ONES}), "transformation cannot be of type"),
        (lambda: matches(**{**SEARCHED, "transformations": torch.eye(3)}), r"of shape \(K, 3, 3\)"),
        (lambda: matches().to("x"), "Unknown device"),
        (lambda: matches().to(np.zeros(2)), "Unknown device"),
        (lambda: matches().best(-1), "n must be a whole number"),
        (lambda: matches(size0=(8, 0)), r"size0 must be \(rows, columns\)"),
        (lambda: matches(size0=(8, 9), size1=(8, 9)).at_sizes((8, 9), 5), r"size1 must be \(rows, columns\)"),  # type: ignore[arg-type]
        (lambda: matches(scores=None), "scores must be numbers"),
        (lambda: dm.Matches.load("a\nb.npz"), r"no matches file 'a\\nb.npz'"),
        (lambda: matcher().save("m.png"), "name it .safetensors"),
        (lambda: matcher().flow(GREY, GREY, []), "no preset"),  # type: ignore[arg-type]
        (lambda: dm.DeepMatcher.from_pretrained("hog", half="no"), "half must be of type bool"),
        (lambda: interpolate(POINTS, POINTS, GREY, 5), "image0 is a int"),  # type: ignore[arg-type]
        (lambda: refine(np.zeros((16, 24, 2)), GREY, GREY, None), "settings must be of type"),  # type: ignore[arg-type]
        (lambda: find_homography("ab", POINTS), "must be arrays of numbers"),  # type: ignore[arg-type]
        (lambda: matches().save(None), "A path must be"),  # type: ignore[arg-type]
        (lambda: matches().save(b"m.npz"), "A path must be"),  # type: ignore[arg-type]
        (lambda: matches().draw(GREY, GREY, b"m.png"), "A path must be"),  # type: ignore[arg-type]
        (lambda: dm.Matches.load(None), "A path must be"),  # type: ignore[arg-type]
        (lambda: dm.bulk(None, "photos", "run"), "pairs must be"),  # type: ignore[arg-type]
        (lambda: dm.bulk([("a.png", "b.png")], None, "run"), "A path must be"),  # type: ignore[arg-type]
        (lambda: dm.bulk([("a.png", "b.png")], "photos", 5), "A path must be"),  # type: ignore[arg-type]
        (lambda: dm.bulk([("a.png", "b.png")], "photos", "run", masks=5), "A path must be"),  # type: ignore[arg-type]
        (lambda: list(matcher().track("clip.mp4", POINTS)), "frames must be .*, not 'clip.mp4'"),
        (lambda: list(matcher().flow_sequence("clip.mp4")), "frames must be .*, not 'clip.mp4'"),
        (lambda: list(matcher().match_sequence("clip.mp4")), "frames must be .*, not 'clip.mp4'"),
        (lambda: list(matcher().match_pairs("pairs.txt")), "pairs must be .*, not 'pairs.txt'"),
        (lambda: list(dm.align("a.png")), "images must be .*, not 'a.png'"),
        (lambda: list(dm.align([GREY], "hog")), "matcher must be of type DeepMatcher"),  # type: ignore[arg-type]
        (lambda: stack([GREY]), r"of one size, but they are uint8 \(16, 24\)"),
        (lambda: stack([np.zeros((2, 3, 4))]), r"of one size, but they are float64"),
        (lambda: stack([[1, 2]]), r"of one size, but they are int[0-9]+ \(2,\)"),  # type: ignore[list-item]
        (lambda: stack(iter([])), "pictures must be of type Sequence"),  # type: ignore[arg-type]
        (lambda: matches().draw(GREY, GREY, inliers=[True]), "of 1 fits"),  # type: ignore[arg-type]
        (lambda: matches().draw(GREY, GREY, inliers="all"), "inliers must be numbers"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_argument_raises_our_error_in_one_sentence(
    call: Callable[[], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeepMatchingError, match=words) as raised:
        call()
    assert "\n" not in str(raised.value) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["La", "RGBa", "LAB"])
def test_unusual_pil_modes_are_loaded(mode: str) -> None:
    through = {"La": "LA", "RGBa": "RGBA", "LAB": "LAB"}[mode]
    image = Image.new("LAB", (8, 9)) if mode == "LAB" else Image.new(through, (8, 9), 255).convert(mode)
    assert load_image(image).shape == ((1 if mode == "La" else 3), 9, 8)


def test_a_matrix_is_an_image_and_whole_numbers_are_positions() -> None:
    assert torch.equal(load_image(np.matrix(GREY)), load_image(GREY))
    whole = matches(keypoints0=[[1, 2]] * 3, keypoints1=np.full((3, 2), 4), scores=[1, 2, 3])
    assert whole.displacements.tolist() == [[3, 2]] * 3 and "3 matches" in repr(whole)


@pytest.mark.parametrize("far", [1e7, 1e9, 1e30, np.inf, np.nan])
def test_a_coordinate_that_is_far_off_takes_no_memory(far: float) -> None:
    y, x = np.mgrid[3.5:80:8, 3.5:80:8]
    points = np.stack([x, y], axis=2).reshape(-1, 2)
    points[[0, -1]] = far
    found = dm.Matches(points, points, np.ones(len(points)))  # type: ignore[arg-type]
    assert np.isnan(found.agreement)
    if np.isfinite(far):
        assert "<img" not in found._repr_html_()
