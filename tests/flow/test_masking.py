import math
from dataclasses import replace

import numpy as np
import pytest

from deepmatching.flow.masking import masked_flow
from deepmatching.flow.points import points_through
from deepmatching.flow.result import FlowResult
from deepmatching.io.images import load_image
from deepmatching.io.masks import with_mask

IMAGE = load_image(np.full((4, 6, 3), 99, np.uint8))


@pytest.fixture
def flow() -> FlowResult:
    """Everything moves by two pixels to the right."""
    moved = np.zeros((4, 6, 2), np.float32)
    moved[..., 0] = 2
    return FlowResult(moved, np.full((4, 6), 0.5, np.float32), 3, {}, 0.6, None, np.zeros((4, 6), np.float32))


def test_the_confidence_is_0_where_the_flow_starts_or_ends_in_a_mask(flow: FlowResult) -> None:
    first, second = np.ones((4, 6), bool), np.ones((4, 6), bool)
    first[1], second[:, 4] = False, False
    found = masked_flow(flow, with_mask(IMAGE, first), with_mask(IMAGE, second))
    expected = np.full((4, 6), 0.5)
    expected[1], expected[:, 2] = 0, 0
    assert np.array_equal(found.confidence, expected) and np.array_equal(found.flow, flow.flow)
    assert found.occlusion is not None and np.array_equal(np.argwhere(found.occlusion.any(axis=0)), [[2]])
    assert found.agreement == pytest.approx(0.6 / (18 / 24))
    assert (flow.confidence == 0.5).all()  # the given result is not changed


def test_what_ends_in_a_mask_is_hidden_even_if_nothing_else_is_known_of_what_is(flow: FlowResult) -> None:
    second, unknown = np.ones((4, 6), bool), replace(flow, occlusion=None)
    second[:, 4] = False
    found = masked_flow(unknown, IMAGE, with_mask(IMAGE, second))
    assert found.occlusion is not None and np.array_equal(np.argwhere(found.occlusion.any(axis=0)), [[2]])
    assert not found.warp(np.zeros((4, 6, 3), np.uint8))[:, 2, 3].any()
    assert points_through(found, np.array([[1.0, 1], [2, 1]])).visible.tolist() == [True, False]
    assert masked_flow(unknown, with_mask(IMAGE, second), IMAGE).occlusion is None


def test_what_is_known_of_the_matches_is_a_share_and_stays_unknown(flow: FlowResult) -> None:
    small = np.zeros((4, 6), bool)
    small[:2, :2] = True
    found = masked_flow(replace(flow, expected_fraction=0.9), with_mask(IMAGE, small), IMAGE)
    assert (found.agreement, found.expected_fraction) == (1, 1)
    unknown = masked_flow(replace(flow, agreement=math.nan), with_mask(IMAGE, small), IMAGE)
    assert math.isnan(unknown.agreement) and math.isnan(unknown.expected_fraction)


def test_without_masks_the_result_is_the_same_object(flow: FlowResult) -> None:
    assert masked_flow(flow, IMAGE, IMAGE) is flow
