"""OpenCV's methods behind our interface."""

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from deepmatching.errors import DeepMatchingError
from deepmatching.evaluation import baselines
from deepmatching.evaluation.baselines import DENSE, KEYPOINTS, MIN_SIDES, DenseMethod, KeypointMatcher, baseline
from helpers.fake_datasets import FLOW, texture
from helpers.fake_datasets import moved as moved_pixels

HAS_CONTRIB = hasattr(cv2, "optflow")
NEEDS_CONTRIB = {"deepflow", "pcaflow", "tvl1", "sparse-to-dense", "rlof"}


@pytest.fixture(scope="module")
def picture() -> Tensor:
    """Large blobs, which every method can follow."""
    small = texture((60, 80)).astype(np.float32)
    return to_image(cv2.resize(small, (320, 240), interpolation=cv2.INTER_CUBIC).clip(0, 255).astype(np.uint8))


def to_image(pixels: np.ndarray) -> Tensor:
    """uint8 (H, W, C) to float32 (C, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1) / 255


def moved(image: Tensor) -> Tensor:
    return torch.from_numpy(moved_pixels(image.permute(1, 2, 0).numpy())).permute(2, 0, 1)


@pytest.mark.parametrize("name", DENSE)
def test_dense_methods_find_a_shift(name: str, picture: Tensor) -> None:
    if name in NEEDS_CONTRIB and not HAS_CONTRIB:
        pytest.skip("this OpenCV has no contrib modules")
    method = baseline(name)
    assert isinstance(method, DenseMethod)
    flow = method.flow(picture, moved(picture))
    assert flow.shape == (240, 320, 2) and flow.dtype == np.float32
    assert np.median(np.hypot(*np.moveaxis(flow[30:-30, 30:-30] - FLOW, 2, 0))) < 0.5


@pytest.mark.parametrize("name", KEYPOINTS)
def test_keypoints_find_a_shift_and_their_scores_are_ratios(name: str, picture: Tensor) -> None:
    if name == "akaze" and not hasattr(cv2, "AKAZE_create") and not hasattr(cv2, "xfeatures2d"):
        pytest.skip("this OpenCV has no AKAZE")
    matches = baseline(name).match(picture, moved(picture))
    assert len(matches) > 50 and matches.size0 == matches.size1 == (240, 320)
    right = (matches.displacements - torch.tensor(FLOW)).norm(dim=1) < 4  # ORB of a coarse scale
    assert right.float().mean() > 0.9
    assert (matches.scores >= 0.2 - 1e-6).all() and (matches.scores <= 1).all()
    assert len(torch.unique(matches.keypoints1, dim=0)) > 0.75 * len(matches)


def test_a_matched_flow_has_every_pixel_once(picture: Tensor) -> None:
    method = DenseMethod("dis")
    matches, flow = method.match(picture, moved(picture)), method.flow(picture, moved(picture))
    np.testing.assert_allclose(matches.displacements.numpy().reshape(240, 320, 2), flow, atol=1e-3)


def test_a_second_image_may_have_another_size_and_both_may_be_grey(picture: Tensor) -> None:
    second = moved(picture)
    pairs = [(picture, second[:, :200, :300]), (picture, F.pad(second, (0, 0, 0, 9))), (picture[:1], second[:1])]
    for first, other in pairs:
        flow = DenseMethod("dis").flow(first, other)
        assert flow.shape == (240, 320, 2)
        assert np.abs(np.median(flow[40:150, 40:250], axis=(0, 1)) - FLOW).max() < 0.5


def test_blank_images_have_no_matches() -> None:
    blank = torch.zeros(3, 64, 64)
    for name in ("sift", "orb"):
        assert len(KeypointMatcher(name).match(blank, blank)) == 0


def test_a_method_that_is_unknown_or_that_opencv_lacks_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(baselines.cv2, "optflow", raising=False)
    for name in sorted(NEEDS_CONTRIB):
        with pytest.raises(DeepMatchingError, match="opencv-contrib-python-headless"):
            baseline(name)
    baseline("dis")
    with pytest.raises(DeepMatchingError, match=r"must be 'sift', 'sift-8000', 'orb', 'akaze', 'dis'.* not 'magic'"):
        baseline("magic")


def test_a_failure_of_opencv_is_one_sentence() -> None:
    if not HAS_CONTRIB:
        pytest.skip("this OpenCV has no contrib modules")
    blank = torch.zeros(3, 128, 160)  # nothing to track
    with pytest.raises(DeepMatchingError, match="pcaflow fails on a pair of 160 x 128 pixels"):
        DenseMethod("pcaflow").flow(blank, blank)


@pytest.mark.parametrize("name", MIN_SIDES)
def test_images_that_would_crash_opencv_are_refused(name: str, picture: Tensor) -> None:
    """They never reach OpenCV; the smallest allowed ones are matched."""
    if name in {*NEEDS_CONTRIB, "akaze"} and not HAS_CONTRIB:
        pytest.skip("this OpenCV has no contrib modules")
    method, side = baseline(name), MIN_SIDES[name]
    for height, width in ((side - 1, 200), (200, side - 1), (8, 8), (1, 1)):
        if min(height, width) < side:
            small = picture[:, :height, :width]
            words = f"{name} needs images of {side} x {side} pixels or more, not {width} x {height}"
            with pytest.raises(DeepMatchingError, match=words):
                method.match(small, small)
    assert method.match(*[picture[:, :side, :side]] * 2).size0 == (side, side)
