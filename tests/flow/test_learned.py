"""Flow by the dense network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import deepmatching as dm
from deepmatching.errors import DeepMatchingError
from helpers.volumes import blobs


@pytest.fixture(scope="module")
def matcher() -> dm.DeepMatcher:
    return dm.DeepMatcher.from_pretrained("compact", device="cpu", radius=16)


def _moved(size: tuple[int, int], shift: tuple[int, int]) -> list[torch.Tensor]:
    """Two views of one picture: the second shows it moved by (x, y) pixels."""
    rows, columns = size
    picture = blobs(3, 1, 3, rows + 32, columns + 32)[0]
    return [picture[:, 16 - y : 16 - y + rows, 16 - x : 16 - x + columns].contiguous() for x, y in ((0, 0), shift)]


@pytest.mark.parametrize("size", [(96, 128), (93, 125)])
def test_a_constant_motion_is_found_up_to_the_last_rows(matcher: dm.DeepMatcher, size: tuple[int, int]) -> None:
    result = matcher.flow(*_moved(size, (5, -3)), "learned")
    assert result.flow.shape == (*size, 2) and result.confidence.shape == size
    inner = result.flow[16:-16, 16:-16]
    np.testing.assert_allclose(inner, np.broadcast_to([5.0, -3.0], inner.shape), atol=0.5)
    assert np.isfinite(result.flow).all() and result.occlusion is not None
    assert result.confidence.min() >= 0 and result.confidence.max() <= 1
    assert result.matches > 0 and result.agreement > 0.5


def test_a_model_without_a_dense_network_says_so() -> None:
    images = _moved((64, 64), (1, 1))
    with pytest.raises(DeepMatchingError, match="needs a model with a dense network"):
        dm.DeepMatcher.from_pretrained("hog", device="cpu", radius=16).flow(*images, "learned")


def test_given_matches_are_refused(matcher: dm.DeepMatcher) -> None:
    images = _moved((64, 64), (1, 1))
    with pytest.raises(DeepMatchingError, match="takes no matches"):
        matcher.flow(*images, "learned", matches=matcher.match(*images))


def test_frames_of_a_sequence_have_the_flow_of_pairs(matcher: dm.DeepMatcher) -> None:
    images = _moved((64, 96), (2, 1))
    found = [result.flow for result in matcher.flow_sequence([*images, images[0]], "learned")]
    np.testing.assert_array_equal(found[0], matcher.flow(*images, "learned").flow)
    np.testing.assert_array_equal(found[1], matcher.flow(*images[::-1], "learned").flow)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_flow_on_a_gpu_is_nearly_that_of_the_cpu(matcher: dm.DeepMatcher) -> None:
    images = _moved((96, 128), (5, -3))
    expected = matcher.flow(*images, "learned")
    found = dm.DeepMatcher.from_pretrained("compact", device="cuda", radius=16).flow(*images, "learned")
    assert found.tensors is not None and found.tensors.flow.is_cuda
    assert np.abs(found.flow - expected.flow).mean() < 0.01
    assert np.abs(found.confidence - expected.confidence).mean() < 0.01
