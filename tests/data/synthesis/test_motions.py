"""Motions of synthetic scenes against points in space, and the bounds they keep."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepmatching.data.synthesis import Photos, SynthesisSettings, motions
from deepmatching.data.synthesis.layers import displacement, unbend
from deepmatching.data.synthesis.motions import Waves
from deepmatching.data.synthesis.scene import draw_layers, draw_scene, support

KINDS = ("small", "still", "driving", "viewpoint")


def only(kind: str | None, **changes: float) -> SynthesisSettings:
    return replace(SynthesisSettings(), **{name: float(name == kind) for name in KINDS}, **changes)


def test_planes_agree_with_points_in_space() -> None:
    rng = np.random.default_rng(0)
    focal, centre = np.array([200.0]), np.array([[100.0, 80.0]])
    turn, shift = rng.normal(0, 0.01, (1, 3)), rng.normal(0, 0.1, (1, 3))
    normal = np.array([[[0.1, -0.2, 0.5]]])
    motion = motions.planes(focal, centre, turn, shift, normal)
    x, y, z = turn[0]
    rotation = np.eye(3) + np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    rotation = rotation + (rotation - np.eye(3)) @ (rotation - np.eye(3)) / 2
    rays = np.column_stack([rng.uniform(-0.4, 0.4, (5, 2)), np.ones(5)])
    space = rays / (rays @ normal[0, 0])[:, None]  # on the plane
    before, after = (200 * p[:, :2] / p[:, 2:] + centre for p in (space, space @ rotation.T + shift))
    np.testing.assert_allclose(motions.apply(motion[:, 0], before[None])[0], after, atol=1e-8)


def test_the_planes_of_a_street_lie_where_their_normals_say() -> None:
    rng = np.random.default_rng(1)
    streets = motions.draw_streets(rng, (256, 320), np.arange(3), 296)
    for scene in range(3):
        for plane in range(motions.PLANES):
            corners = 0.5 * streets.box[scene, plane] * np.array([[-1, -1], [1, -1], [-1, 1], [1, 1]])
            # A placement divides by the depth: the third coordinate of (u, v, 1) mapped back is the depth itself.
            mapped = np.column_stack([corners, np.ones(4)]) @ np.linalg.inv(streets.placement[scene, plane]).T
            space = mapped @ np.linalg.inv(motions.intrinsics(streets.focal, streets.centre)[scene]).T
            assert (mapped[:, 2] > 0).all()
            np.testing.assert_allclose(space @ streets.normal[scene, plane], 1, atol=1e-6)


@given(st.integers(0, 2**32), st.floats(0.1, 8))
@settings(max_examples=20, deadline=None)
def test_bending_is_undone_to_a_twentieth_of_a_pixel(seed: int, height: float) -> None:
    rng = np.random.default_rng(seed)
    waves = motions.draw_waves(rng, rng.uniform(20, 300, 3), np.full(3, height))
    tensors = Waves(*(torch.from_numpy(values).float() for values in vars(waves).values()))
    target = torch.from_numpy(rng.uniform(0, 300, (3, 8, 8, 2))).float()
    point = unbend(tensors, target)
    assert (point + displacement(tensors, point) - target).abs().max() < 0.05


def test_a_displacement_is_the_sum_of_its_waves() -> None:
    rng = np.random.default_rng(3)
    waves = motions.draw_waves(rng, np.array([40.0, 90.0]), np.array([3.0, 5.0]))
    point = rng.uniform(0, 100, (2, 3, 4, 2))
    expected = np.zeros_like(point)
    for m in range(2):
        for k in range(motions.WAVES):
            angle = point[m] @ waves.frequency[m, k] + waves.phase[m, k]
            expected[m] += waves.amplitude[m, k] * np.sin(angle)[..., None]
    tensors = Waves(*(torch.from_numpy(values) for values in vars(waves).values()))
    np.testing.assert_allclose(displacement(tensors, torch.from_numpy(point)), expected, atol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_no_background_moves_further_than_allowed(photos: Photos, kind: str | None) -> None:
    rng = np.random.default_rng(0)
    size, largest = (96, 128), 30.0
    setting = only(kind, max_displacement=largest, nonrigid=0.0)
    frame = np.stack(np.meshgrid(np.linspace(0, 127, 5), np.linspace(0, 95, 5)), -1).reshape(-1, 2)
    reaches = []
    for _ in range(10):
        reaches.append(motions.reach(draw_scene(rng, photos, size, 4, setting).motion[-1], frame))
    assert np.max(reaches) < 1.06 * largest
    if kind in ("viewpoint", None):
        assert np.max(reaches) > 0.5 * largest


def test_small_scenes_move_little_and_still_backgrounds_hardly(photos: Photos) -> None:
    rng = np.random.default_rng(0)
    frame = np.array([[0.0, 0.0], [127.0, 95.0]])
    reach = {
        kind: np.median(motions.reach(draw_scene(rng, photos, (96, 128), 64, only(kind)).motion[-1], frame))
        for kind in ("small", "still", None)
    }
    assert reach["still"] < 0.3 * reach["small"] < 0.1 * reach[None]


def test_the_support_of_a_layer_is_the_rectangle_around_it(photos: Photos) -> None:
    objects = draw_layers(np.random.default_rng(0), photos, (96, 128), (2, 3), SynthesisSettings())
    rectangles = support(objects, (96, 128))
    assert rectangles.min() >= 0 and rectangles[..., 0].max() <= 127 and rectangles[..., 1].max() <= 95
    assert (rectangles[:, :, 3] >= rectangles[:, :, 0]).all()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"fog": 1.5}, "'fog' must be a number from 0 to 1"),
        ({"blur": -0.1}, "from 0 to 1"),
        ({"max_displacement": 0.0}, "above 0"),
        ({"min_layers": 5, "max_layers": 3}, "must not be larger than 'max_layers'"),
        ({"small": 0.7, "driving": 0.6}, "not exceed 1"),
        ({"noise": float("nan")}, "from 0 to 1, not nan"),
        ({"bending": -1.0}, "of at least 0"),
        ({"min_layers": 1.5}, "a whole number"),
        ({"grey": "often"}, "a number"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SynthesisSettings(**change)
