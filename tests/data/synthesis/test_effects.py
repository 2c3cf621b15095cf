"""Effects of light and camera, and differences between two photographs of a place, one at a time."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from torch import Tensor

from deepmatching.data.datasets import Pair
from deepmatching.data.synthesis import PRESETS, Photos, SynthesisSettings, Synthesizer
from deepmatching.data.synthesis.effects import _compressed, _filtered, _styled, draw_differences, draw_photometry
from deepmatching.data.synthesis.generator import to_device
from helpers.synthetic_pictures import draw_photo

PLAIN = PRESETS["chairs"]
EFFECTS = (
    *("grey", "colour", "change", "lighting", "shadow", "fog", "motion_blur", "blur", "sharpen", "noise"),
    "compression",
)
APART = replace(PLAIN, photographs=1.0)  #: two photographs that do not differ yet, and how they may
DIFFERENCES = ("relit", "sensor", "styled", "grain")


def batch_of(photos: Photos, settings: SynthesisSettings) -> Pair:
    return Synthesizer(photos, (90, 122), settings).batch(4, torch.Generator().manual_seed(0))


def pairs(photos: Photos, **changes: float) -> tuple[Tensor, Tensor]:
    pair = batch_of(photos, replace(PLAIN, **changes))
    return pair.image0, pair.image1


@pytest.mark.parametrize("effect", EFFECTS)
def test_every_effect_shows_and_leaves_a_picture(photos: Photos, effect: str) -> None:
    changed, plain = pairs(photos, **{effect: 1.0}), pairs(photos)
    for image in changed:
        assert torch.isfinite(image).all() and image.min() >= 0 and image.max() <= 1
        assert torch.allclose(image * 255, (image * 255).round(), atol=1e-3)
        assert image.std() > 0.02
    assert max((one - other).abs().max().item() for one, other in zip(changed, plain, strict=True)) > 0.02


def test_all_effects_together_leave_grey_pairs_grey_and_change_neither_flow_nor_occlusion(photos: Photos) -> None:
    plain, rich = (batch_of(photos, s) for s in (PLAIN, replace(PLAIN, **dict.fromkeys(EFFECTS, 1.0))))
    for image in rich[:2]:
        assert (image.amax(1) - image.amin(1)).max() < 1.5 / 255
        assert torch.isfinite(image).all()
    assert torch.equal(plain.flow, rich.flow) and torch.equal(plain.occluded, rich.occluded)


def test_compression_does_what_jpeg_does_to_grey_pictures() -> None:
    picture = draw_photo(0, 83, 101)[:, :, 0]  # not a multiple of 8
    for quality in (12, 35, 70):
        photometry = to_device(draw_photometry(np.random.default_rng(0), 1, PLAIN), torch.device("cpu"))
        photometry.compressed, photometry.quality = torch.tensor([0]), torch.tensor([float(quality)])
        frames = torch.from_numpy(picture / np.float32(255)).expand(2, 3, 83, 101)
        ours = _compressed(frames, photometry)[0, 0].clamp(0, 1).numpy() * 255
        data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
        theirs = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE).astype(float)
        whole = np.s_[:80, :96]  # what lies beyond the last whole block is anybody's choice
        loss = np.abs(theirs - picture)[whole].mean()
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs)[whole].mean() < 0.35 * loss


def test_blur_is_gaussian() -> None:
    picture = draw_photo(1, 60, 80)
    photometry = to_device(draw_photometry(np.random.default_rng(0), 1, PLAIN), torch.device("cpu"))
    photometry.filtered, photometry.deviation = torch.tensor([1]), torch.tensor([1.5])
    photometry.weight = torch.tensor([1.0])
    frames = torch.from_numpy(picture).permute(2, 0, 1).float().div(255).expand(2, 3, 60, 80)
    blurred = _filtered(frames, photometry)
    expected = cv2.GaussianBlur(picture.astype(np.float32) / 255, (15, 15), 1.5, borderType=cv2.BORDER_REPLICATE)
    np.testing.assert_allclose(blurred[1].permute(1, 2, 0), expected, atol=1e-5)
    assert torch.equal(blurred[0], frames[0])


def test_motion_blur_follows_the_motion(photos: Photos) -> None:
    """What moves sideways is blurred sideways only: differences between columns shrink, those between rows do not."""
    bare = {"max_layers": 0, "min_layers": 0}
    sharp, blurred = (pairs(photos, motion_blur=share, still=1.0, **bare)[0] for share in (0.0, 1.0))
    assert (sharp - blurred).abs().max() < 0.05  # nothing moves
    sharp, blurred = (pairs(photos, motion_blur=share, **bare)[0] for share in (0.0, 1.0))
    assert blurred.diff(dim=3).abs().mean() < 0.9 * sharp.diff(dim=3).abs().mean()


def test_effects_are_as_frequent_as_their_settings(photos: Photos) -> None:
    photometry = draw_photometry(np.random.default_rng(0), 1000, replace(PLAIN, blur=0.5, motion_blur=0.25, fog=0.1))
    assert 0.2 < len(photometry.smeared) / 1000 < 0.3
    assert 0.07 < len(photometry.lit) / 2000 < 0.13
    assert 0.38 < len(photometry.filtered) / 2000 < 0.5  # in a quarter of these pairs only one frame is blurred


@pytest.mark.parametrize("effect", DIFFERENCES)
def test_every_effect_sets_the_frames_apart_and_keeps_the_flow(photos: Photos, effect: str) -> None:
    plain, changed = batch_of(photos, APART), batch_of(photos, replace(APART, **{effect: 1.0}))
    assert torch.equal(plain.flow, changed.flow) and torch.equal(plain.occluded, changed.occluded)
    for before, after in ((plain.image0, changed.image0), (plain.image1, changed.image1)):
        assert torch.isfinite(after).all() and after.min() >= 0 and after.max() <= 1
        assert (after - before).abs().mean() > 0.005


def test_other_pairs_are_not_touched_by_these_effects(photos: Photos) -> None:
    effects = dict.fromkeys((*DIFFERENCES, "wide"), 1.0)
    plain, changed = batch_of(photos, PRESETS["default"]), batch_of(photos, replace(PRESETS["default"], **effects))
    assert all(torch.equal(a, b) for a, b in zip(plain[:4], changed[:4], strict=True))


def test_wide_baselines_turn_and_zoom_more_than_a_change_of_viewpoint(photos: Photos) -> None:
    def turn(settings: SynthesisSettings) -> float:
        """Return the standard deviation of the background's linear part from the identity."""
        maker = Synthesizer(photos, (90, 122), replace(settings, min_layers=0, max_layers=0, max_displacement=300.0))
        flow = maker.batch(32, torch.Generator().manual_seed(0)).flow
        return torch.stack([flow[:, 45, 61] - flow[:, 45, 60], flow[:, 45, 60] - flow[:, 44, 60]]).std().item()

    assert turn(replace(APART, wide=1.0)) > 1.5 * turn(replace(PRESETS["chairs"], viewpoint=1.0)) > 0.1


def test_differences_are_as_frequent_as_their_settings() -> None:
    settings = replace(PRESETS["default"], photographs=0.5, wide=0.4, relit=0.8, sensor=0.4, styled=0.2, grain=0.1)
    drawn = draw_differences(np.random.default_rng(0), 4000, settings)
    assert 0.18 < len(drawn.wide) / 4000 < 0.22
    assert 0.31 < len(drawn.lit) / 8000 < 0.37  # in 3 of 10 of these pairs only one frame
    for index, share in ((drawn.sensed, 0.4), (drawn.styled, 0.2), (drawn.grainy, 0.1)):
        assert len(index) / 8000 == pytest.approx(0.5 * share * 0.625, abs=0.02)


def test_local_contrast_does_not_depend_on_brightness_and_edges_are_bright() -> None:
    frame = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    style = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    ours, brighter = (_styled(frames, torch.tensor([2.0]), style) for frames in (frame, 0.4 + 0.8 * frame))
    assert (ours - brighter).abs().mean() < 0.03 < 0.15 < ours.std()
    frame = torch.zeros(1, 3, 40, 40)
    frame[..., 20:] = 1
    edges = _styled(frame, torch.tensor([1.0]), torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    assert edges[..., 19:21].min() > 10 * edges[..., :18].max()
