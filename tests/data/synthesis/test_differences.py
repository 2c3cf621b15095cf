"""Pairs that are two photographs of a place, one effect at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from deepmatching.data.datasets.pairs import Pair
from deepmatching.data.synthesis import PRESETS, Photos, SynthesisSettings, Synthesizer
from deepmatching.data.synthesis.developing import _styled
from deepmatching.data.synthesis.photometry import draw_differences

NONE = replace(PRESETS["chairs"], photographs=1.0)  # two photographs that do not differ yet
EFFECTS = ("relit", "sensor", "styled", "grain")


def pairs(photos: Photos, settings: SynthesisSettings) -> Pair:
    return Synthesizer(photos, (90, 122), settings).batch(4, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("effect", EFFECTS)
def test_every_effect_sets_the_frames_apart_and_keeps_the_flow(photos: Photos, effect: str) -> None:
    plain, changed = pairs(photos, NONE), pairs(photos, replace(NONE, **{effect: 1.0}))
    assert torch.equal(plain.flow, changed.flow) and torch.equal(plain.occluded, changed.occluded)
    for before, after in ((plain.image0, changed.image0), (plain.image1, changed.image1)):
        assert torch.isfinite(after).all() and after.min() >= 0 and after.max() <= 1
        assert (after - before).abs().mean() > 0.005


def test_other_pairs_are_not_touched_by_these_effects(photos: Photos) -> None:
    effects = dict.fromkeys((*EFFECTS, "wide"), 1.0)
    plain, changed = pairs(photos, PRESETS["default"]), pairs(photos, replace(PRESETS["default"], **effects))
    assert all(torch.equal(a, b) for a, b in zip(plain[:4], changed[:4], strict=True))


def test_wide_baselines_turn_and_zoom_more_than_a_change_of_viewpoint(photos: Photos) -> None:
    def turn(settings: SynthesisSettings) -> float:
        """The standard deviation of the background's linear part from the identity."""
        maker = Synthesizer(photos, (90, 122), replace(settings, min_layers=0, max_layers=0, max_displacement=300.0))
        flow = maker.batch(32, torch.Generator().manual_seed(0)).flow
        gradient = torch.stack([flow[:, 45, 61] - flow[:, 45, 60], flow[:, 45, 60] - flow[:, 44, 60]])
        return gradient.std().item()

    viewpoint = turn(replace(PRESETS["chairs"], viewpoint=1.0))
    assert turn(replace(NONE, wide=1.0)) > 1.5 * viewpoint > 0.1


def test_effects_are_as_frequent_as_their_settings() -> None:
    settings = replace(PRESETS["default"], photographs=0.5, wide=0.4, relit=0.8, sensor=0.4, styled=0.2, grain=0.1)
    drawn = draw_differences(np.random.default_rng(0), 4000, settings)
    assert 0.18 < len(drawn.wide) / 4000 < 0.22
    assert 0.31 < len(drawn.lit) / 8000 < 0.37  # in 3 of 10 of these pairs only one frame
    for index, share in ((drawn.sensed, 0.4), (drawn.styled, 0.2), (drawn.grainy, 0.1)):
        assert len(index) / 8000 == pytest.approx(0.5 * share * 0.625, abs=0.02)


def test_local_contrast_does_not_depend_on_brightness_and_contrast() -> None:
    frame = torch.rand(1, 3, 48, 64, generator=torch.Generator().manual_seed(0))
    style = torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    ours, brighter = (_styled(frames, torch.tensor([2.0]), style) for frames in (frame, 0.4 + 0.8 * frame))
    assert (ours - brighter).abs().mean() < 0.03 < 0.15 < ours.std()


def test_edges_are_bright_and_areas_dark() -> None:
    frame = torch.zeros(1, 3, 40, 40)
    frame[..., 20:] = 1
    edges = _styled(frame, torch.tensor([1.0]), torch.tensor([[0.0, 0.0, 0.0, 1.0]]))
    assert edges[..., 19:21].min() > 10 * edges[..., :18].max()
